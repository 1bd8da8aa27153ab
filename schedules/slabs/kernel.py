"""A depthwise convolution and the 1x1 convolution of its result, a few rows at a time.

    for image, slab                            (threads)
      W = depthwise convolution of a slab, and what follows it
      rows of the result = 1x1 convolution of W, and what follows it

Each slab is an image of its own, computed as the template of a layer computes images, for one
thread: tiles, borders and micro-kernels are those of `conv2d_depthwise` and `conv2d_direct`. Rows
above and below that a slab reads are those of the image; padding is read by the first and last
slabs only, which are functions of their own. W stays in the caches of the core that computes it:
the depthwise result never goes to memory, nor to another core's caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.cost_models.slabs.geometry import Slabs
from tvm_blislike.model.layouts import Layout
from tvm_blislike.schedules.lowering.rewrite import redirected
from tvm_blislike.schedules.slabs.layer import Layer
from tvm_blislike.tvm_seams.attributes import NO_ALIAS


@dataclass(frozen=True)
class Part:
    """A run of equal slabs: the functions that compute one of them, of both layers.

    Runs with the same rows share the function of the second.
    """

    slabs: Slabs
    depthwise: tirx.PrimFunc
    pointwise: tirx.PrimFunc


def kernel(
    first: Layer, second: Layer, parts: Sequence[Part], rows: int, threads: int
) -> tirx.PrimFunc:
    """Return the function of both layers, with final loops.

    Its parameters are data, packed and others of the first, packed and others of the second, and
    the result.

    Parameters
    ----------
    rows : int
        Of the slabs, but perhaps the last.
    """
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main", **NO_ALIAS})
            buffers = _parameters(first, second)
            with T.sblock("root"):
                T.reads()
                T.writes()
                _slabs(_Pair(first, second, buffers, rows), parts, threads)
    return s_tir.transform.ConvertSSA()(tvm.IRModule({"main": builder.get()}))["main"]


def declared(first: Layer, second: Layer) -> tirx.PrimFunc:
    """Return a function with the parameters of `kernel` that does nothing."""
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main", **NO_ALIAS})
            _parameters(first, second)
            T.evaluate(0)
    return builder.get()


def _parameters(first: Layer, second: Layer) -> list[Any]:
    given = [first.data, first.packed, *first.others]
    given += [second.packed, *second.others, second.result]
    return [T.arg(f"p{i}", T.buffer(p.shape, p.dtype)) for i, p in enumerate(given)]


@dataclass(frozen=True)
class _Pair:
    """Both layers, the buffers of the parameters of their function, and the rows of a slab."""

    first: Layer
    second: Layer
    buffers: list[Any]
    rows: int

    def slab(self, parts: Sequence[Part], image: Any, number: Any) -> None:
        """Emit the code of one slab; that of the 1x1 convolution once for parts that share it."""
        most = max(parts, key=lambda part: part.slabs.rows)
        made = T.alloc_buffer(most.depthwise.params[-1].shape, str(self.first.result.dtype))
        _choose(
            [(p.slabs.last, partial(self._above, p, made, image, number)) for p in parts], number
        )
        below = {part.pointwise: part for part in parts}.values()
        _choose(
            [(p.slabs.last, partial(self._below, p, made, image, number)) for p in below], number
        )

    def _above(self, part: Part, made: Any, image: Any, number: Any) -> None:
        data, packed, *others = self.buffers[: 2 + len(self.first.others)]
        w, func = self.first.workload, part.depthwise
        row = number * self.rows * w.stride[0] + (part.slabs.above - w.padding[0])
        layout = Layout(self.first.config.data_layout)
        own = [_rows(data, func.params[0], layout, image, row), packed]
        own += self._others(self.first, func, others, image, number)
        _emit(func, [*own, _seen_as(made, func.params[-1])])

    def _below(self, part: Part, made: Any, image: Any, number: Any) -> None:
        packed, *others, result = self.buffers[2 + len(self.first.others) :]
        func, layout = part.pointwise, Layout(self.second.config.out_layout)
        written = _rows(result, func.params[-1], layout, image, number * self.rows)
        own = self._others(self.second, func, others, image, number)
        _emit(func, [_seen_as(made, func.params[0]), packed, *own, written])

    def _others(
        self, layer: Layer, func: tirx.PrimFunc, buffers: list[Any], image: Any, number: Any
    ) -> list[Any]:
        layout, found = Layout(layer.config.out_layout), []
        for buffer, param in zip(buffers, func.params[2:-1], strict=True):
            row = number * self.rows if int(buffer.shape[layer.height]) > 1 else 0
            at = image if int(buffer.shape[0]) > 1 else 0
            found.append(_rows(buffer, param, layout, at, row))
        return found


def _slabs(pair: _Pair, parts: Sequence[Part], threads: int) -> None:
    """Emit the loop over images and slabs."""
    images, count = pair.first.workload.n, parts[-1].slabs.last + 1
    loop = T.parallel if threads > 1 else T.serial
    with loop(0, images * count) as index:
        number, image = (index % count, index // count) if images > 1 else (index, 0)
        pair.slab(parts, image, number)


def _choose(parts: Sequence[tuple[int, Callable[[], None]]], number: Any) -> None:
    """Emit the first part, each with the number of its last slab, that a slab belongs to."""
    (last, emit), *rest = parts
    if not rest:
        emit()
        return
    with T.If(number <= last):
        with T.Then():
            emit()
        with T.Else():
            _choose(rest, number)


def _seen_as(buffer: Any, like: Any) -> Any:
    """Return the memory of a buffer as one of the shape of `like`, which has no more elements."""
    if [int(size) for size in buffer.shape] == [int(size) for size in like.shape]:
        return buffer
    return T.decl_buffer(like.shape, str(buffer.dtype), data=buffer.data)


def _rows(buffer: Any, like: Any, layout: Layout, image: Any, row: Any) -> Any:
    """Return the rows of one image, from `row` on, as a buffer of the shape of `like`."""
    sizes = [int(extent) for extent in buffer.shape]
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    offset = image * strides[0] + row * strides[layout.height_axis]
    return T.decl_buffer(
        like.shape, str(buffer.dtype), data=buffer.data, strides=strides, elem_offset=offset
    )


def _emit(func: tirx.PrimFunc, buffers: list[Any]) -> None:
    """Emit the body of a lowered function on other buffers."""
    given = dict(zip(func.params, buffers, strict=True))

    def place(buffer: Any, at: Any) -> tuple[Any, Any] | None:
        return (given[buffer], at) if buffer in given else None

    T.add_to_parent(redirected(func.body, place))
