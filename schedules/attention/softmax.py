"""The softmax of attention, one strip of rows at a time, and what becomes of the sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.model.attention import Mask
from tvm_blislike.schedules.attention.loops import along
from tvm_blislike.schedules.attention.task import Strip, Task
from tvm_blislike.schedules.lowering.vector_functions import exp_below_one

_LOWEST = -math.inf


def start(task: Task) -> None:
    """Emit sums of nothing."""
    columns, zero = int(task.sums.shape[1]), T.float32(0)
    strips, rows = (int(size) for size in task.most.shape)
    with T.serial(0, strips) as strip:
        _fill(task, task.most, T.float32(_LOWEST), rows, strip)
    _fill(task, task.peak, T.float32(_LOWEST), rows)
    with T.serial(0, task.tiles * task.blocks.kernel.mr) as row:
        _fill(task, task.total, zero, task.lanes, row)
        _fill(task, task.sums, zero, columns, row)


def _fill(task: Task, buffer: Any, value: Any, count: int, *first: Any) -> None:
    along(count, task.lanes, lambda at: T.buffer_store(buffer, value, [*first, at]))


def strip(strip: Strip) -> None:
    """Emit the weights of the scores of a strip, and add them to the sums of its rows."""
    with T.serial(0, strip.rows) as row:
        _largest(strip, row)
    _rescaling(strip)
    with T.serial(0, strip.rows) as row:
        _weights(strip, row)


def _largest(strip: Strip, number: Any) -> None:
    """Emit the largest score of a row, in place of which masked ones are stored."""
    task = strip.block.task
    masks = _masks(strip, strip.first + number)
    largest = T.alloc_buffer((task.lanes,), "float32")
    T.buffer_store(largest, T.broadcast(T.float32(_LOWEST), task.lanes), [_all(task)])

    def compared(at: Any, lane: Any) -> None:
        value = task.scores[number, at]
        for mask in masks:
            value = mask(value, at)
        if masks:
            T.buffer_store(task.scores, value, [number, at])
            value = task.scores[number, at]
        T.buffer_store(largest, tirx.Max(largest[lane], value), [lane])

    count = strip.block.count
    along(count, task.lanes, compared, by_lane=True)
    if not isinstance(count, int):
        with T.serial(count, strip.block.steps) as at:
            T.buffer_store(task.scores, T.float32(_LOWEST), [number, at])
    _fold(largest, task.lanes, tirx.Max)
    T.buffer_store(task.peak, largest[0], [number])


def _rescaling(strip: Strip) -> None:
    """Emit, for all rows of a strip at once, what a larger score than all so far changes."""
    task = strip.block.task

    def rescaled(row: Any) -> None:
        most = task.most[strip.number, row]
        peak = tirx.Max(most, task.peak[row])
        # Of a row that is masked so far all weights are e^-inf, not e^(-inf + inf).
        less = tirx.Select(peak == T.float32(_LOWEST), T.float32(0), peak)
        T.buffer_store(task.less, less, [row])
        T.buffer_store(task.rescale, exp_below_one(most - task.less[row]), [row])
        T.buffer_store(task.most, peak, [strip.number, row])

    along(int(task.peak.shape[0]), task.lanes, rescaled)


def _weights(strip: Strip, number: Any) -> None:
    """Emit the weights e^(score - largest) of the scores of a row; add them up by lanes."""
    task, block, place = strip.block.task, strip.block, strip.first + number
    sums = T.alloc_buffer((task.lanes,), "float32")
    before = tirx.BufferLoad(task.total, [place, _all(task)])
    T.buffer_store(sums, before * T.broadcast(task.rescale[number], task.lanes), [_all(task)])

    def weight(at: Any, lane: Any) -> None:
        value = exp_below_one(task.scores[number, at] - task.less[number])
        T.buffer_store(task.weights, task.rounded(value), [number, at])
        # As products take it: of equal values the result is the value.
        stored = task.weights[number, at]
        wide = stored if task.weights is task.scores else tirx.Cast("float32", stored)
        T.buffer_store(sums, sums[lane] + wide, [lane])

    if isinstance(block.count, int):
        along(block.count, task.lanes, weight, by_lane=True)
        for at in range(block.count, block.groups * task.blocks.kernel.ks):
            T.buffer_store(task.weights, task.rounded(T.float32(0)), [number, at])
    else:
        # Whole vectors: `_largest` left no score behind the last one.
        with T.serial(0, block.steps // task.lanes) as vector:
            with T.vectorized(0, task.lanes) as lane:
                weight(vector * task.lanes + lane, lane)
    T.buffer_store(task.total, tirx.BufferLoad(sums, [_all(task)]), [place, _all(task)])


def finish(task: Task) -> None:
    """Emit the result: sums over the sum of their weights."""
    attention, out = task.attention, task.operands[3]
    sums, factor = (T.alloc_buffer((size,), "float32") for size in (task.lanes, 1))
    with T.serial(0, task.count) as row:
        T.buffer_store(sums, tirx.BufferLoad(task.total, [row, _all(task)]), [_all(task)])
        _fold(sums, task.lanes, tirx.Add)
        inverse = T.float32(1) / sums[0]
        if attention.guarded:
            inverse = tirx.Select(sums[0] > T.float32(0), inverse, T.float32(0))
        T.buffer_store(factor, inverse, [0])

        def stored(at: Any) -> None:
            value = task.sums[row, at] * factor[0]
            T.buffer_store(out, value, [attention.out.at(task.head, task.first + row, at)])

        along(attention.width, task.lanes, stored)


def _masks(strip: Strip, place: Any) -> list[Callable[[Any, Any], Any]]:
    """Return each mask as a function of a score and its column in the block."""
    task = strip.block.task
    buffers = iter(task.masks)
    return [
        _by_diagonal(strip, place, mask)
        if mask.view is None
        else _by_view(strip, place, mask, next(buffers))
        for mask in task.attention.masks
    ]


def _by_diagonal(strip: Strip, place: Any, mask: Mask) -> Callable[[Any, Any], Any]:
    last = strip.block.task.first + place + mask.diagonal

    def kept(score: Any, at: Any) -> Any:
        return tirx.Select(strip.block.first + at <= last, score, T.float32(mask.fill))

    return kept


def _by_view(strip: Strip, place: Any, mask: Mask, buffer: Any) -> Callable[[Any, Any], Any]:
    task = strip.block.task

    def masked(score: Any, at: Any) -> Any:
        where = mask.view.at(task.head, task.first + place, strip.block.first + at)
        found = buffer[where]
        if not mask.replaces:
            return score + found
        return tirx.Select(found == T.float32(0), score, found)

    return masked


def _fold(vector: Any, lanes: int, joined: Callable[[Any, Any], Any]) -> None:
    """Emit what joins all elements of a vector, in the first one."""
    while lanes > 1:
        lanes //= 2
        low, high = (_span(first, lanes) for first in (0, lanes))
        value = joined(tirx.BufferLoad(vector, [low]), tirx.BufferLoad(vector, [high]))
        T.buffer_store(vector, value, [low])


def _all(task: Task) -> Any:
    return tirx.Ramp(0, 1, task.lanes)


def _span(first: int, lanes: int) -> Any:
    return tirx.Ramp(first, 1, lanes) if lanes > 1 else first
