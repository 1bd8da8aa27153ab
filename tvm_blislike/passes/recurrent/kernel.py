"""The loop over time of a recurrent layer, and how threads share it.

Threads divide the directions and the rows of the batch, which do not know of each other, or the
units: then they wait for each other after every product. A thread keeps its units: their weights
stay in its caches. Even steps go through them forwards, odd ones backwards: what a step has read
last, the next one finds in the nearest cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.passes.recurrent.cells import finish
from tvm_blislike.passes.recurrent.layer import Layer, Place
from tvm_blislike.passes.recurrent.products import summed
from tvm_blislike.tvm_seams.attributes import BARRIER_BEHIND, NO_ALIAS, ONE_LAUNCH

_Buffers = Mapping[str, Any]


def kernel(layer: Layer) -> tirx.PrimFunc:
    """Return the function of the parameters that a layer names, scheduled, not yet lowered."""
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main", **NO_ALIAS})
            buffers = {name: T.arg(name, T.buffer(*of)) for name, of in layer.parameters.items()}
            with T.sblock("root"):
                T.reads()
                T.writes()
                for name, shape in layer.workspaces.items():
                    buffers[name] = T.alloc_buffer(shape, "float32")
                _begin(layer, buffers)
                (_by_units if layer.block.parts else _by_directions)(layer, buffers)
                _end(layer, buffers)
    return builder.get()


def _by_directions(layer: Layer, buffers: _Buffers) -> None:
    """Emit all steps; each direction, or rows of one, is a thread's."""
    parts = layer.block.row_parts
    with T.parallel(0, layer.cell.directions * parts) as thread, T.serial(0, layer.steps) as step:
        place = (thread // parts, step, T.int32(0), T.int32(layer.groups), thread % parts)
        for phase in range(len(layer.phases)):
            _units(layer, buffers, phase, *place)


def _by_units(layer: Layer, buffers: _Buffers) -> None:
    """Emit all steps; each thread has a run of units."""
    parts, groups = layer.block.parts, layer.groups
    each = -(-groups // parts)
    with T.attr(T.int32(0), *ONE_LAUNCH), T.serial(0, layer.steps) as step:
        for phase in range(len(layer.phases)):
            with T.attr(T.int32(0), *BARRIER_BEHIND), T.parallel(0, parts) as part:
                first = part * each
                count = T.min(T.int32(each), T.max(groups - first, T.int32(0)))
                with T.serial(0, layer.cell.directions) as direction:
                    _units(layer, buffers, phase, direction, step, first, count, T.int32(0))


def _units(
    layer: Layer,
    buffers: _Buffers,
    phase: int,
    direction: Any,
    step: Any,
    first: Any,
    count: Any,
    part: Any,
) -> None:
    """Emit a product of a step for some blocks of units and a part of the rows."""
    time = _time(layer, direction, step)
    with T.serial(0, count) as number:
        turned = tirx.Select(step % 2 == 0, number, count - 1 - number)
        _rows(layer, (buffers, phase, direction, step, time, first + turned), part)


def _rows(layer: Layer, place: tuple[Any, ...], part: Any) -> None:
    """Emit the blocks of all rows, or of a part: so many each, what is left over by the last."""
    mr, parts = layer.block.mr, layer.block.row_parts
    whole, rest = divmod(layer.batch, mr)
    first, count = T.int32(0), T.int32(whole)
    if parts > 1:
        each = T.int32(layer.block.each(layer.batch))
        first = part * each
        count = T.min(each, T.max(whole - first, T.int32(0)))
    if whole:
        with T.serial(0, count) as block:
            _block(layer, Place(*place, (first + block) * mr, mr))
    if rest:
        with T.If(part == parts - 1), T.Then():
            _block(layer, Place(*place, T.int32(whole * mr), rest))


def _block(layer: Layer, place: Place) -> None:
    finish(layer, place, summed(layer, place))


def _time(layer: Layer, direction: Any, step: Any) -> Any:
    last = T.int32(layer.steps - 1)
    if layer.cell.directions == 1:
        return last - step if layer.cell.reverse[0] else step
    return tirx.Select(direction == 0, step, last - step)


def _begin(layer: Layer, buffers: _Buffers) -> None:
    """Emit the states before the first step: zero, or given."""
    cell = layer.cell
    given = {"state": "h", "cells": "c"}
    for workspace in [name for name in given if name in buffers]:
        before = buffers.get(given[workspace])
        leading = [T.int32(0)] if workspace == "state" else []
        with T.grid(cell.directions, layer.batch) as (direction, row):
            at = [*leading, direction, row]
            with T.serial(0, layer.padded) as unit:
                T.buffer_store(buffers[workspace], T.float32(0), [*at, unit])
            if before is not None:
                with T.serial(0, cell.hidden) as unit:
                    value = before[_state_at(layer, direction, row, unit)]
                    T.buffer_store(buffers[workspace], value, [*at, unit])


def _end(layer: Layer, buffers: _Buffers) -> None:
    """Emit the copies of the last states into the results; of no step at all they are zero.

    ONNX leaves the latter open; ONNX Runtime has it so whatever the first states are.
    """
    results = {"y_h": ("state", [T.int32(layer.steps % 2)]), "y_c": ("cells", [])}
    for name in [name for name in results if name in buffers]:
        workspace, leading = results[name]
        with T.grid(layer.cell.directions, layer.batch, layer.cell.hidden) as at:
            value = buffers[workspace][(*leading, *at)]
            if "lengths" in buffers:
                value = tirx.Select(buffers["lengths"][at[1]] > 0, value, T.float32(0))
            T.buffer_store(buffers[name], value, list(_state_at(layer, *at)))


def _state_at(layer: Layer, direction: Any, row: Any, unit: Any) -> tuple[Any, ...]:
    return (row, direction, unit) if layer.cell.batch_first else (direction, row, unit)
