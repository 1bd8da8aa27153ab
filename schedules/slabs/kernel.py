"""A chain of depthwise and 1x1 convolutions as one kernel, a few rows at a time.

    for image, part                            (threads)
      for slab of the part
        for layer
          what the slab before has left of the rows that the next layer reads, moved to the front
          rows of padding that the next layer reads
          rows of the result = convolution of those of the layer before, and what follows it

Each slab is an image of its own, computed as the template of a layer computes images, for one
thread: tiles, borders and micro-kernels are those of `conv2d_depthwise` and `conv2d_direct`. Where
a chain begins with a depthwise convolution rows above and below that a slab reads are those of the
image, and the first and last slabs are functions of their own, which know of padding. 1x1
convolutions are one function of as many rows as divide those of all slabs, called in a loop. What
lies between two layers stays in the caches of the core that computes it: it never goes to memory,
nor to another core's caches.
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

from tvm_blislike.cost_models.slabs.geometry import SlabGeometry, Step
from tvm_blislike.model.layouts import Layout
from tvm_blislike.schedules.lowering.llvm_functions import apart, with_sources
from tvm_blislike.schedules.lowering.rewrite import redirected
from tvm_blislike.schedules.slabs.layer import Layer
from tvm_blislike.tvm_seams.attributes import NO_ALIAS


@dataclass(frozen=True)
class Code:
    """How a layer computes a step: a function of so many rows, called until all are there."""

    func: tirx.PrimFunc
    rows: int


def kernel(
    layers: Sequence[Layer], code: Sequence[dict[Step, Code]], geo: SlabGeometry, threads: int
) -> tirx.PrimFunc:
    """Return the function of a chain of layers, with final loops.

    Its parameters are the data, what is packed and others of each layer, and the result.

    Parameters
    ----------
    code : sequence of dict
        Of each layer that of its steps with rows.
    """
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main", **NO_ALIAS})
            buffers = _parameters(layers)
            with T.sblock("root"):
                T.reads()
                T.writes()
                _Chain(layers, code, geo, buffers).emit(threads)
    whole = s_tir.transform.ConvertSSA()(tvm.IRModule({"main": builder.get()}))["main"]
    return with_sources(whole)


def declared(layers: Sequence[Layer]) -> tirx.PrimFunc:
    """Return a function with the parameters of `kernel` that does nothing."""
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main", **NO_ALIAS})
            _parameters(layers)
            T.evaluate(0)
    return builder.get()


def _parameters(layers: Sequence[Layer]) -> list[Any]:
    given = [layers[0].data]
    for layer in layers:
        given += [layer.packed, *layer.others]
    given.append(layers[-1].result)
    return [T.arg(f"p{i}", T.buffer(p.shape, p.dtype)) for i, p in enumerate(given)]


@dataclass(frozen=True)
class _Chain:
    """The layers, the code of their steps, and the buffers of their function's parameters."""

    layers: Sequence[Layer]
    code: Sequence[dict[Step, Code]]
    geo: SlabGeometry
    buffers: list[Any]

    def emit(self, threads: int) -> None:
        """Emit the loops over images, parts and slabs."""
        geo, images = self.geo, self.layers[0].workload.n
        loop = T.parallel if threads > 1 else T.serial
        with loop(0, images * geo.used_parts) as index:
            image, part = index // geo.used_parts, index % geo.used_parts
            made = [self._buffer(number) for number in range(len(self.layers) - 1)]
            with T.serial(0, geo.per_part) as place:
                slab = part * geo.per_part + place
                if geo.count % geo.per_part:
                    with T.If(slab < geo.count), T.Then():
                        self._slab(image, slab, made)
                else:
                    self._slab(image, slab, made)

    def _buffer(self, number: int) -> Any:
        """Return the memory of a layer's rows that the next one reads."""
        layer = self.layers[number]
        shape = [int(extent) for extent in layer.result.shape]
        shape[0], shape[layer.height] = 1, self.geo.buffer_rows[number]
        return T.alloc_buffer(shape, str(layer.result.dtype))

    def _slab(self, image: Any, slab: Any, made: Sequence[Any]) -> None:
        """Emit what all layers do in one slab."""
        for number, steps in enumerate(self.geo.steps):
            _choose(
                [
                    (numbers, partial(self._step, number, step, image, slab, made))
                    for step, numbers in steps.items()
                ],
                slab,
                self.geo,
            )
            # A layer may read by an address, of which LLVM knows no buffer.
            T.add_to_parent(apart())

    def _step(self, number: int, step: Step, image: Any, slab: Any, made: Sequence[Any]) -> None:
        """Emit what one layer does."""
        height, behind = self.layers[number].height, step.written + step.rows
        # There are steps without anything.
        T.evaluate(0)
        if step.moved:
            _fill(made[number], height, 0, step.kept, step.moved)
        if step.blank_above:
            _fill(made[number], height, step.written - step.blank_above, step.blank_above)
        if step.rows:
            self._compute(number, step, image, slab, made)
        if step.blank_below:
            _fill(made[number], height, behind, step.blank_below)

    def _compute(self, number: int, step: Step, image: Any, slab: Any, made: Sequence[Any]) -> None:
        """Emit the calls that compute the rows of one layer."""
        layer, code, place = self.layers[number], self.code[number], slab * self.geo.pitch(number)
        stride, func = layer.workload.stride[0], code[step].func
        read = (made[number - 1], 0, 0)
        if number == 0:
            read = (self.buffers[0], image, place * stride + step.read)
        written = (self.buffers[-1], image, place + step.written)
        if number < len(made):
            written = (made[number], 0, step.written)
        with T.serial(0, step.rows // code[step].rows) as call:
            done = call * code[step].rows
            own = [
                self._rows(layer.config.data_layout, func.params[0], read, done * stride),
                *self._others(number, func, image, place + step.start + done),
                self._rows(layer.config.out_layout, func.params[-1], written, done),
            ]
            _emit(func, own)

    def _others(self, number: int, func: tirx.PrimFunc, image: Any, row: Any) -> list[Any]:
        """Return what a layer reads beside its image: what is packed, and rows of the others."""
        layer = self.layers[number]
        first = 1 + sum(1 + len(before.others) for before in self.layers[:number])
        packed, *buffers = self.buffers[first : first + 1 + len(layer.others)]
        found = [packed]
        for buffer, param in zip(buffers, func.params[2:-1], strict=True):
            at = row if int(buffer.shape[layer.height]) > 1 else 0
            of = image if int(buffer.shape[0]) > 1 else 0
            found.append(self._rows(layer.config.out_layout, param, (buffer, of, at), 0))
        return found

    @staticmethod
    def _rows(layout: str, like: Any, place: tuple[Any, Any, Any], further: Any) -> Any:
        """Return rows of one image, from some row on, as a buffer of the shape of `like`."""
        buffer, image, row = place
        strides = _strides(buffer)
        offset = image * strides[0] + (row + further) * strides[Layout(layout).height_axis]
        return T.decl_buffer(
            like.shape, str(buffer.dtype), data=buffer.data, strides=strides, elem_offset=offset
        )


def _strides(buffer: Any) -> list[int]:
    sizes = [int(extent) for extent in buffer.shape]
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def _fill(buffer: Any, height: int, first: int, rows: int, further: int = 0) -> None:
    """Emit the loops that fill rows of a buffer with those further down, or with zeros.

    In order of memory: what is written was read before.
    """
    strides = _strides(buffer)
    flat = T.decl_buffer((math.prod(map(int, buffer.shape)),), str(buffer.dtype), data=buffer.data)
    run, row = strides[height - 1], strides[height]
    with T.serial(0, int(flat.shape[0]) // run) as outer, T.serial(0, rows * row) as element:
        at = outer * run + first * row + element
        T.buffer_store(
            flat, flat[at + further * row] if further else tirx.const(0.0, flat.dtype), [at]
        )


def _choose(
    steps: Sequence[tuple[Sequence[int], Callable[[], None]]], slab: Any, geo: SlabGeometry
) -> None:
    """Emit the step, each with its slabs' numbers, that a slab belongs to; the commonest last."""
    (numbers, emit), *rest = sorted(steps, key=lambda step: len(step[0]))
    if not rest:
        emit()
        return
    with T.If(_is_one_of(slab, numbers, geo)):
        with T.Then():
            emit()
        with T.Else():
            _choose(rest, slab, geo)


def _is_one_of(slab: Any, numbers: Sequence[int], geo: SlabGeometry) -> Any:
    """Return whether a slab is one of those with these numbers, in ascending order."""
    if set(range(numbers[0], geo.count, geo.per_part)) == set(numbers) and len(numbers) > 1:
        # Those at the same place of each part but perhaps the first ones.
        same = slab % geo.per_part == numbers[0] % geo.per_part
        return tirx.all(same, slab >= numbers[0])
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return tirx.any(*(tirx.all(slab >= first, slab <= last) for first, last in runs))


def _emit(func: tirx.PrimFunc, buffers: list[Any]) -> None:
    """Emit the body of a lowered function on other buffers."""
    given = dict(zip(func.params, buffers, strict=True))

    def place(buffer: Any, at: Any) -> tuple[Any, Any] | None:
        return (given[buffer], at) if buffer in given else None

    T.add_to_parent(redirected(func.body, place))
