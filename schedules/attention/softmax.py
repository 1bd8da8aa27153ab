"""The softmax of attention, one row of a strip at a time, and what becomes of the sums."""

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
    columns = int(task.sums.shape[1])
    with T.serial(0, task.tiles * task.blocks.kernel.mr) as row:
        T.buffer_store(task.most, T.float32(_LOWEST), [row])
        T.buffer_store(task.total, T.float32(0), [row])
        zero = T.float32(0)
        along(columns, task.lanes, lambda at: T.buffer_store(task.sums, zero, [row, at]))


def row(strip: Strip, number: Any) -> None:
    """Emit weights in place of the scores of a row, its maximum, and its sum."""
    task, count = strip.block.task, strip.block.count
    place = strip.first + number
    masks = _masks(strip, place)
    largest = T.alloc_buffer((task.lanes,), "float32")
    peak, less = (T.alloc_buffer((1,), "float32") for _ in range(2))
    T.buffer_store(largest, T.broadcast(T.float32(_LOWEST), task.lanes), [_all(task)])

    def compared(at: Any, lane: Any) -> None:
        value = task.scores[number, at]
        for mask in masks:
            value = mask(value, at)
        if masks:
            T.buffer_store(task.scores, value, [number, at])
            value = task.scores[number, at]
        T.buffer_store(largest, tirx.Max(largest[lane], value), [lane])

    along(count, task.lanes, compared, by_lane=True)
    _fold(largest, task.lanes, tirx.Max)
    T.buffer_store(peak, tirx.Max(task.most[place], largest[0]), [0])
    # Of a row that is masked so far all weights are e^-inf, not e^(-inf + inf).
    T.buffer_store(less, tirx.Select(peak[0] == T.float32(_LOWEST), T.float32(0), peak[0]), [0])
    T.buffer_store(task.rescale, exp_below_one(task.most[place] - less[0]), [number])
    T.buffer_store(task.most, peak[0], [place])
    added = _weights(strip, number, less)
    T.buffer_store(task.total, task.total[place] * task.rescale[number] + added, [place])


def _weights(strip: Strip, number: Any, less: Any) -> Any:
    """Emit e^(score - largest) in place of the scores; return the sum."""
    task, block = strip.block.task, strip.block
    sums = T.alloc_buffer((task.lanes,), "float32")
    T.buffer_store(sums, T.broadcast(T.float32(0), task.lanes), [_all(task)])

    def weight(at: Any, lane: Any) -> None:
        value = exp_below_one(task.scores[number, at] - less[0])
        T.buffer_store(task.scores, value, [number, at])
        T.buffer_store(sums, sums[lane] + task.scores[number, at], [lane])

    along(block.count, task.lanes, weight, by_lane=True)
    for at in range(block.count, block.steps):
        T.buffer_store(task.scores, T.float32(0), [number, at])
    _fold(sums, task.lanes, tirx.Add)
    return sums[0]


def finish(task: Task) -> None:
    """Emit the result: sums over the sum of their weights."""
    attention, out = task.attention, task.operands[3]
    factor = T.alloc_buffer((1,), "float32")
    with T.serial(0, task.count) as row:
        inverse = T.float32(1) / task.total[row]
        if attention.guarded:
            inverse = tirx.Select(task.total[row] > T.float32(0), inverse, T.float32(0))
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
