"""Copies of operands of attention, as micro-kernels read them."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.schedules.attention.loops import along
from tvm_blislike.schedules.attention.task import Block, Task
from tvm_blislike.schedules.default.transpose import transpose


def copy_queries(task: Task) -> None:
    """Emit scaled rows of Q side by side; a cut tile is filled up with copies of the last row."""
    attention, (q, *_) = task.attention, task.operands
    scale = T.float32(attention.scale)
    with T.serial(0, task.tiles * task.blocks.kernel.mr) as row:
        place = T.min(task.first + row, attention.rows - 1)

        def element(at: Any) -> None:
            value = q[attention.q.at(task.head, place, at)]
            T.buffer_store(task.queries, value * scale, [row, at])

        along(attention.depth, task.lanes, element)


def pack_keys(block: Block) -> None:
    """Emit panels of K, columns side by side; the last panel is filled up with the last column.

    Squares of keys that lie in rows are transposed in registers, what is left goes one by one.
    """
    task = block.task
    depth, lanes = task.attention.depth, task.lanes
    squares = depth // lanes if task.attention.k.stride(2) == 1 else 0
    with T.serial(0, block.panels) as panel:
        if squares:
            with T.serial(0, task.blocks.kernel.vectors) as group:
                with T.serial(0, squares) as square:
                    _square(block, panel, group, square)
        if depth > squares * lanes:
            with T.serial(squares * lanes, depth) as step:
                with T.vectorized(0, task.blocks.kernel.nr) as lane:
                    value = _key(block, panel, lane, step)
                    T.buffer_store(task.keys, value, [panel, step, lane])


def _key(block: Block, panel: Any, lane: Any, step: Any) -> Any:
    """Return an element of K."""
    task = block.task
    place = block.first + panel * task.blocks.kernel.nr + lane
    column = T.min(place, task.attention.columns - 1)
    return task.operands[1][task.attention.k.at(task.head, column, step)]


def _square(block: Block, panel: Any, group: Any, square: Any) -> None:
    """Emit a vector of each of as many keys, transposed."""
    task, lanes = block.task, block.task.lanes
    rows = []
    for row in range(lanes):
        load = _key(block, panel, group * lanes + row, square * lanes)
        rows.append(tirx.BufferLoad(load.source, [tirx.Ramp(load.indices[0], 1, lanes)]))
    steps, turned = transpose(rows, lanes, "float32")
    for step in steps:
        T.bind(step.value, var=step.var)
    for row, vector in enumerate(turned):
        place = [panel, square * lanes + row, tirx.Ramp(group * lanes, 1, lanes)]
        T.buffer_store(task.keys, vector, place)


def pack_values(block: Block) -> None:
    """Emit panels of V, zeros beyond its columns and rows."""
    task = block.task
    attention, nr, v = task.attention, task.blocks.kernel.nr, task.operands[2]
    whole, rest = divmod(attention.width, nr)

    def copied(panel: Any, step: Any, lane: Any) -> None:
        value = v[attention.v.at(task.head, block.first + step, panel * nr + lane)]
        T.buffer_store(task.values, value, [panel, step, lane])

    with T.serial(0, block.count) as step:
        if whole:
            with T.serial(0, whole) as panel:
                with T.vectorized(0, nr) as lane:
                    copied(panel, step, lane)
        if rest:
            _zeros(task, whole, step)
            with T.vectorized(0, rest) as lane:
                copied(whole, step, lane)
    if not isinstance(block.count, int):
        with T.serial(block.count, block.steps) as step:
            with T.serial(0, task.panels) as panel:
                _zeros(task, panel, step)
    elif block.steps > block.count:
        with T.serial(0, task.panels) as panel:
            _zeros(task, panel, block.count)


def _zeros(task: Task, panel: Any, step: Any) -> None:
    nr = task.blocks.kernel.nr
    value = T.broadcast(T.float32(0), nr)
    T.buffer_store(task.values, value, [panel, step, tirx.Ramp(0, 1, nr)])
