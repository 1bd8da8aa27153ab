"""Channel shuffles: channels of several equal parts by turns, in any layout of images.

Exporters write a shuffle as a reshape, a permutation and another reshape, and often take a part of
its channels behind it. Either becomes one `relax.take` of channels by constant numbers, which
layouts know: in vectors of channels the parts are interleaved in registers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.model.layouts import NCHW, Layout
from tvm_blislike.passes.slices import SLICE, is_of_channels, kept_channels
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
)
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED, NEVER_FUSED, NO_ALIAS

SHUFFLING = frozenset({"relax.permute_dims"})
_TAKE, _RESHAPE = "relax.take", "relax.reshape"
# Channels side by side are taken by up to so many bytes, of the widest type one of each part.
_VECTOR_BYTES, _MOST_PARTS = 64, 8
# Of a result, from which on threads share the work: lines of one take no longer than a fork.
_LEAST_SHARED_BYTES = 1 << 17
# Axes of (n, part, channel, h, w) with channels of different parts side by side.
_BY_TURNS = [0, 2, 1, 3, 4]


@dataclass(frozen=True)
class Shuffle:
    """Channels of an image by turns of its parts.

    Parameters
    ----------
    parts : int
        Equal parts of the channels; channel c of a shuffle is the (c // parts)-th of part
        c % parts.
    channels : int
        Of the image.
    first, count : int
        Which channels of the shuffle are taken.
    """

    parts: int
    channels: int
    first: int
    count: int

    @property
    def each(self) -> int:
        """Channels of a part."""
        return self.channels // self.parts

    def sources(self) -> np.ndarray:
        """Return the channel of the image that each of the result is."""
        at = np.arange(self.first, self.first + self.count)
        return at % self.parts * self.each + at // self.parts

    def fits(self, layout: Layout) -> bool:
        """Whether image and result have this layout, and equal shares of each part in a block."""
        if layout.block:
            whole = (self.channels, self.first, self.count)
            return layout.block % self.parts == 0 and not any(n % layout.block for n in whole)
        return layout == NCHW or (self.parts <= _MOST_PARTS and self.first % self.parts == 0)


def shuffle_of(call: relax.Expr) -> Shuffle | None:
    """Return the shuffle that a call is; None for any other call."""
    if op_name(call) != _TAKE or call.attrs.axis is None or not is_constant(call.args[1]):
        return None
    shape, places = static_shape(call.args[0]), constant_array(call.args[1])
    if shape is None or len(shape) != 4 or int(call.attrs.axis) % 4 != 1:
        return None
    # A channel by itself could be any shuffle's.
    return _by_turns(shape[1], places) if places.ndim == 1 and places.size > 1 else None


def _by_turns(channels: int, places: np.ndarray) -> Shuffle | None:
    """Return the shuffle of so many channels that takes them from these places."""
    for parts in range(2, channels // 2 + 1):
        if channels % parts:
            continue
        part, within = divmod(int(places[0]), channels // parts)
        found = Shuffle(parts, channels, within * parts + part, places.size)
        if np.array_equal(found.sources(), places):
            return found
    return None


@mutator
class Shuffles(PyExprMutator):
    """Shuffles of channels, and parts of their channels, become one operator.

    Parameters
    ----------
    is_for_many : bool
        Whether the functions serve smaller images, too: then shuffles stay what they are, since
        their kernels go through all of an image.
    """

    def __init__(self, mod: tvm.IRModule, _func: relax.Function, is_for_many: bool) -> None:
        super().__init__(mod)
        self.is_for_many = is_for_many

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Rewrite the last reshape of a shuffle, or a slice of one; any other call stays."""
        call = super().visit_call_(call)
        if self.is_for_many:
            return call
        if op_name(call) == _RESHAPE:
            return self._shuffled(call)
        return self._part(call) if op_name(call) == SLICE else call

    def _shuffled(self, call: relax.Call) -> relax.Call:
        moved = self._value(call.args[0])
        if op_name(moved) != "relax.permute_dims" or moved.attrs.axes is None:
            return call
        apart = self._value(moved.args[0])
        if list(map(int, moved.attrs.axes)) != _BY_TURNS or op_name(apart) != _RESHAPE:
            return call
        image, five = static_shape(apart.args[0]), static_shape(apart)
        if image is None or five is None or len(image) != 4 or static_shape(call) != image:
            return call
        n, parts, each, *pixels = five
        if (n, parts * each, *pixels) != image or 1 in (parts, each):
            return call
        return _taken(apart.args[0], Shuffle(parts, image[1], 0, image[1]))

    def _part(self, call: relax.Call) -> relax.Call:
        source = self._value(call.args[0])
        shuffle = shuffle_of(source)
        if shuffle is None or not is_of_channels(call):
            return call
        kept = kept_channels(call)
        if kept.step != 1:
            return call
        first = shuffle.first + kept.start
        return _taken(source.args[0], replace(shuffle, first=first, count=len(kept)))

    def _value(self, expr: relax.Expr) -> relax.Expr:
        bound = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return expr if bound is None else bound


def _taken(image: relax.Expr, shuffle: Shuffle) -> relax.Call:
    return op.take(image, constant(shuffle.sources(), "int64"), axis=1)


def joined_for_turns(bindings: Sequence[relax.Binding]) -> dict[relax.Var, list[relax.Expr]]:
    """Return the parts of concatenations in a block that only shuffles read, each part one turn.

    These need not be made: a kernel takes channels from tensors of their own as well.
    """
    joined = {
        b.var: list(b.value.args[0].fields)
        for b in bindings
        if isinstance(b.var, relax.DataflowVar) and _joins_equal_parts(b.value)
    }
    for binding in bindings:
        shuffle = shuffle_of(binding.value)
        for var in relax.analysis.free_vars(binding.value):
            if var in joined and (shuffle is None or shuffle.parts != len(joined[var])):
                del joined[var]
    return joined


def _joins_equal_parts(value: relax.Expr) -> bool:
    if op_name(value) != "relax.concat" or not isinstance(value.args[0], relax.Tuple):
        return False
    shapes = [static_shape(part) for part in value.args[0].fields]
    is_images = None not in shapes and len(shapes[0]) == 4 and int(value.attrs.axis or 0) % 4 == 1
    return is_images and len(set(shapes)) == 1


def shuffled(
    builder: relax.BlockBuilder,
    call: relax.Call,
    sources: Sequence[relax.Expr],
    layout: Layout,
) -> relax.Expr | None:
    """Return a shuffle of an image that lies in a layout, the result in that layout as well.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to add the kernel.
    call : relax.Call
        A shuffle, on NCHW.
    sources : sequence of relax.Expr
        Its image, or each part of it, in `layout`; NCHW takes no parts.
    layout : Layout
        Of both.

    Returns
    -------
    relax.Expr or None
        None where the shuffle does not fit into the layout.
    """
    shuffle, sizes, dtype = shuffle_of(call), static_shape(call), dtype_name(call)
    if not shuffle.fits(layout):
        return None
    if layout == NCHW:
        return builder.call_te(partial(_rows, shuffle), *sources, primfunc_name_hint="shuffle")
    func = kernel(shuffle, layout, sizes, dtype, len(sources)).without_attr("global_symbol")
    gvar = builder.add_func(func.with_attr({**IS_SCHEDULED, **NEVER_FUSED}), "shuffle")
    return relax.call_tir(gvar, list(sources), relax.TensorType(layout.shape(*sizes), dtype))


def _rows(shuffle: Shuffle, image: te.Tensor) -> te.Tensor:
    """Return the shuffle of an image in NCHW, whose rows of pixels are of one channel each."""
    n, _, h, w = image.shape

    def element(n: tirx.Expr, c: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        place = shuffle.first + c
        return image[n, place % shuffle.parts * shuffle.each + place // shuffle.parts, y, x]

    return te.compute((n, shuffle.count, h, w), element, name="shuffle")


def kernel(
    shuffle: Shuffle,
    layout: Layout,
    sizes: tuple[int, int, int, int],
    dtype: str,
    images: int = 1,
) -> tirx.PrimFunc:
    """Return the function (images, result), scheduled, of a layout with channels side by side.

    Parameters
    ----------
    shuffle : Shuffle
        Fits into the layout.
    layout : Layout
        Of both, blocked or NHWC.
    sizes : tuple of int
        (n, c, h, w) of the result.
    dtype : str
        Of both.
    images : int
        One, or as many as there are parts.
    """
    n, channels, h, w = sizes
    size = tvm.DataType(dtype).itemsize
    lanes = layout.block or _VECTOR_BYTES // size // shuffle.parts * shuffle.parts
    whole, rest = divmod(channels, lanes)
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main", **NO_ALIAS})
            shape = layout.shape(n, shuffle.channels // images, h, w)
            parts = [T.arg(f"image_{i}", T.buffer(shape, dtype)) for i in range(images)]
            result = T.arg("result", T.buffer(layout.shape(*sizes), dtype))
            vectors = partial(_interleave, shuffle, layout, parts, result)
            with T.sblock("root"):
                T.reads()
                T.writes()
                shared = math.prod(sizes) * size >= _LEAST_SHARED_BYTES
                with (T.parallel if shared else T.serial)(0, n * h) as row:
                    # Pixels inside blocks of channels, channels inside pixels: as they lie.
                    outer, inner = (whole, w) if layout.block else (w, whole)
                    with T.serial(0, outer) as one, T.serial(0, inner) as other:
                        vector, x = (one, other) if layout.block else (other, one)
                        vectors(row // h, row % h, x, vector * lanes, lanes)
                    if rest:
                        with T.serial(0, w) as x:
                            vectors(row // h, row % h, x, T.int32(whole * lanes), rest)
    return builder.get()


def _interleave(
    shuffle: Shuffle,
    layout: Layout,
    images: Sequence[tirx.Buffer],
    result: tirx.Buffer,
    n: tirx.Expr,
    y: tirx.Expr,
    x: tirx.Expr,
    channel: tirx.Expr,
    lanes: int,
) -> None:
    """Emit so many channels of a pixel of the result, from one that begins a turn of the parts."""
    parts, begin = shuffle.parts, (shuffle.first + channel) // shuffle.parts
    counts = [-(-(lanes - part) // parts) for part in range(parts)]

    def side_by_side(first: tirx.Expr, count: int) -> list[tirx.Expr]:
        *outer, last = layout.index(n, first, y, x)
        return [*outer, T.ramp(last, 1, count) if count > 1 else last]

    def of_part(part: int) -> tirx.Expr:
        image, first = images[0], begin + part * shuffle.each
        if len(images) == parts:
            image, first = images[part], begin
        return tirx.BufferLoad(image, side_by_side(first, counts[part]))

    loaded = [of_part(part) for part in range(parts) if counts[part]]
    places = [sum(counts[: lane % parts]) + lane // parts for lane in range(lanes)]
    turns = tirx.Shuffle(loaded, [tirx.IntImm("int32", place) for place in places])
    T.buffer_store(result, turns if lanes > 1 else loaded[0], side_by_side(channel, lanes))
