"""Dilated convolutions whose taps lie on padding for most outputs leave these taps out.

Segmentation networks dilate kernels of 3x3 by 12, 24 and 36 over maps of 20 to 65 pixels. A tap
that is beside the image for every output goes; where 36 are as much as the map, one of nine stays.
Outputs that reach the same taps lie in bands, rows by columns, and each band is a convolution of
the part of the kernel that it reaches, on its part of the image, without padding:

    20 outputs, 3 taps dilated by 12    0 to 7: last two    8 to 11: middle    12 to 19: first two

That is 36 of 60 products along an axis, and 0.36 of them along both. Bands are put beside each
other again, in whichever layout they lie. A number that is not finite no longer meets the zeros of
padding, which it did not in the model either.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.passes.image_operators import convolved_like
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
)

# Largest share of the products that bands may keep: they have more kernels, smaller ones.
_MOST_PRODUCTS = 0.7
# Products saved for each element that is copied out of the image or beside the others.
_LEAST_SAVED = 16
_PLAIN = ("NCHW", "OIHW", "NCHW")
_FLOATS = {"float32", "float16"}


@dataclass(frozen=True)
class _Band:
    """Outputs in a row along an axis, and the taps that they reach.

    Parameters
    ----------
    outputs, taps : range
        The first ones and those behind the last.
    begin, end : int
        Pixels that they read; before 0 and from the size on there is padding.
    """

    outputs: range
    taps: range
    begin: int
    end: int

    @property
    def products(self) -> int:
        return len(self.outputs) * len(self.taps)


@dataclass(frozen=True)
class _Axis:
    """An axis of a convolution.

    Parameters
    ----------
    size, outputs, taps, stride, dilation, padding : int
        Along it; padding at its beginning.
    """

    size: int
    outputs: int
    taps: int
    stride: int
    dilation: int
    padding: int

    def reached(self, output: int) -> range:
        """Return the taps that lie on the image for an output."""
        at = output * self.stride - self.padding
        first = max(0, math.ceil(-at / self.dilation))
        behind = min(self.taps, math.ceil((self.size - at) / self.dilation))
        return range(first, max(first, behind))

    def whole(self) -> _Band:
        """Return all outputs as one band, with the taps that any of them reaches."""
        reached = [taps for taps in map(self.reached, range(self.outputs)) if taps]
        first, behind = min(t.start for t in reached), max(t.stop for t in reached)
        return self._band(range(self.outputs), range(first, behind))

    def bands(self) -> list[_Band]:
        """Return bands of outputs that reach the same taps."""
        groups = itertools.groupby(range(self.outputs), self.reached)
        found = [(list(outputs), taps) for taps, outputs in groups]
        return [self._band(range(o[0], o[-1] + 1), taps) for o, taps in found]

    def _band(self, outputs: range, taps: range) -> _Band:
        begin = outputs.start * self.stride + taps.start * self.dilation - self.padding
        last = (outputs.stop - 1) * self.stride + (taps.stop - 1) * self.dilation - self.padding
        return _Band(outputs, taps, begin, last + 1)


@mutator
class Bands(PyExprMutator):
    """Rewrite dilated convolutions of constant weights where that saves products.

    Parameters
    ----------
    mod, func : IRModule, relax.Function
        What is rewritten.
    is_for_many : bool
        Whether smaller images come, too: they have other bands, but reach no other taps.
    """

    def __init__(self, mod: tvm.IRModule, _func: relax.Function, is_for_many: bool) -> None:
        super().__init__(mod)
        self.is_for_many = is_for_many

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Return a convolution of fewer taps, or several side by side; any other call as it is."""
        call = super().visit_call_(call)
        axes = _axes_of(call)
        if axes is None:
            return call
        whole = [[axis.whole()] for axis in axes]
        parted = [axis.bands() for axis in axes]
        if not self.is_for_many and _is_worth(call, whole, parted):
            return self._side_by_side(call, *parted)
        pairs = [(band, axis) for (band,), axis in zip(whole, axes, strict=True)]
        is_cut = any(len(band.taps) < axis.taps for band, axis in pairs)
        # Pixels that no output reads are others in a smaller image.
        leaves = any(band.begin > 0 or band.end < axis.size for band, axis in pairs)
        if not is_cut or (leaves and self.is_for_many):
            return call
        return self._part(call, whole[0][0], whole[1][0])

    def _side_by_side(
        self, call: relax.Call, rows: Sequence[_Band], columns: Sequence[_Band]
    ) -> relax.Expr:
        emit = self.builder_.emit
        lines = [[emit(self._part(call, row, column)) for column in columns] for row in rows]
        joined = [emit(op.concat(line, 3)) if len(line) > 1 else line[0] for line in lines]
        return op.concat(joined, 2) if len(joined) > 1 else joined[0]

    def _part(self, call: relax.Call, row: _Band, column: _Band) -> relax.Expr:
        """Return the convolution of the outputs of two bands."""
        data, weights = call.args
        sizes, bands = static_shape(data)[2:], (row, column)
        begin = [max(0, band.begin) for band in bands]
        end = [min(size, band.end) for size, band in zip(sizes, bands, strict=True)]
        before = [max(0, -band.begin) for band in bands]
        behind = [max(0, band.end - size) for size, band in zip(sizes, bands, strict=True)]
        if begin != [0, 0] or tuple(end) != tuple(sizes):
            data = self.builder_.emit(op.strided_slice(data, [2, 3], begin, end))
        taps = constant_array(weights)[
            :, :, row.taps.start : row.taps.stop, column.taps.start : column.taps.stop
        ]
        # One tap alone has no other to be apart from: the same layer whatever the dilation was.
        apart = zip(bands, call.attrs.dilation, strict=True)
        dilation = [int(each) if len(band.taps) > 1 else 1 for band, each in apart]
        kept = constant(taps, dtype_name(weights))
        return convolved_like(call, data, kept, padding=(*before, *behind), dilation=dilation)


def _axes_of(call: relax.Call) -> list[_Axis] | None:
    """Return the axes of a dilated convolution whose every output reaches a tap; else None."""
    if op_name(call) != "relax.nn.conv2d" or not is_constant(call.args[1]):
        return None
    attrs, shapes = call.attrs, [static_shape(each) for each in (*call.args, call)]
    dilation = [int(each) for each in attrs.dilation]
    types = {dtype_name(each) for each in (*call.args, call)}
    is_plain = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == _PLAIN
    known = None not in shapes and not any(0 in shape for shape in shapes)
    if max(dilation) == 1 or not (is_plain and known and len(types) == 1 and types <= _FLOATS):
        return None
    data, weights, result = shapes
    strides, padding = ([int(each) for each in list(v)[:2]] for v in (attrs.strides, attrs.padding))
    numbers = zip(data[2:], result[2:], weights[2:], strides, dilation, padding, strict=True)
    axes = [_Axis(*each) for each in numbers]
    reach = all(axis.reached(o) for axis in axes for o in range(axis.outputs))
    return axes if reach else None


def _is_worth(
    call: relax.Call, whole: Sequence[Sequence[_Band]], parted: Sequence[Sequence[_Band]]
) -> bool:
    """Whether bands save enough products for what is copied."""
    (n, ci, *_), (_, co, height, width) = static_shape(call.args[0]), static_shape(call)
    before, after = (
        math.prod(sum(band.products for band in bands) for bands in along)
        for along in (whole, parted)
    )
    read = math.prod(sum(band.end - band.begin for band in bands) for bands in parted)
    copied = n * (ci * read + 2 * co * height * width)
    saved = n * ci // int(call.attrs.groups) * co * (before - after)
    return after <= _MOST_PRODUCTS * before and saved >= _LEAST_SAVED * copied
