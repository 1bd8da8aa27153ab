"""Copies of operands of attention, as micro-kernels read them."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.schedules.attention.loops import along
from tvm_blislike.schedules.attention.task import Block, Task
from tvm_blislike.schedules.default.transpose import transpose


def copy_queries(task: Task) -> None:
    """Emit scaled rows of Q side by side; a cut tile is filled up with copies of the last row.

    Zeros fill up a last group of k.
    """
    attention, (q, *_) = task.attention, task.operands
    scale = T.float32(attention.scale)
    with T.serial(0, task.tiles * task.blocks.kernel.mr) as row:
        place = T.min(task.first + row, attention.rows - 1)

        def element(at: Any) -> None:
            value = q[attention.q.at(task.head, place, at)]
            T.buffer_store(task.queries, task.rounded(value * scale), [row, at])

        along(attention.depth, task.lanes, element)
        for at in range(attention.depth, int(task.queries.shape[1])):
            T.buffer_store(task.queries, task.rounded(T.float32(0)), [row, at])


def pack_keys(block: Block) -> None:
    """Emit panels of K, columns side by side; the last panel is filled up with the last column.

    Squares of keys that lie in rows are transposed in registers, what is left goes one by one.
    """
    task, kernel = block.task, block.task.blocks.kernel
    width, steps = task.lanes * kernel.ks, int(task.keys.shape[1])
    squares = task.attention.depth // width if task.attention.k.stride(2) == 1 else 0
    with T.serial(0, block.panels) as panel:
        if squares:
            with T.serial(0, kernel.vectors) as group:
                with T.serial(0, squares) as square:
                    _square(block, panel, group, square)
        if steps > squares * task.lanes:
            with T.serial(squares * task.lanes, steps) as step:
                with T.vectorized(0, kernel.nr * kernel.ks) as lane:
                    column, element = lane // kernel.ks, lane % kernel.ks
                    value = _key_or_zero(block, panel, column, step * kernel.ks + element)
                    T.buffer_store(task.keys, task.rounded(value), [panel, step, lane])


def _key_or_zero(block: Block, panel: Any, lane: Any, step: Any) -> Any:
    """Return an element of K, 0 where a last group of k has none."""
    depth, ks = block.task.attention.depth, block.task.blocks.kernel.ks
    if depth % ks == 0:
        return _key(block, panel, lane, step)
    key = _key(block, panel, lane, T.min(step, depth - 1))
    return tirx.Select(step < depth, key, T.float32(0))


def _key(block: Block, panel: Any, lane: Any, step: Any) -> Any:
    """Return an element of K."""
    task = block.task
    place = block.first + panel * task.blocks.kernel.nr + lane
    column = T.min(place, task.attention.columns - 1)
    return task.operands[1][task.attention.k.at(task.head, column, step)]


def _square(block: Block, panel: Any, group: Any, square: Any) -> None:
    """Emit a vector of groups of k of each of as many keys, transposed."""
    task, lanes, kernel = block.task, block.task.lanes, block.task.blocks.kernel
    width = lanes * kernel.ks
    rows = []
    for row in range(lanes):
        load = _key(block, panel, group * lanes + row, square * width)
        elements = tirx.BufferLoad(load.source, [tirx.Ramp(load.indices[0], 1, width)])
        rows.append(_as_groups(task, elements))
    steps, turned = transpose(rows, lanes, kernel.group_type)
    for step in steps:
        T.bind(step.value, var=step.var)
    for row, vector in enumerate(turned):
        place = [panel, square * lanes + row, tirx.Ramp(group * width, 1, width)]
        T.buffer_store(task.keys, _as_elements(task, vector), place)


def _as_groups(task: Task, elements: Any) -> Any:
    """Return a vector of float32 as one of groups of k, rounded."""
    kernel, factors = task.blocks.kernel, task.attention.factors
    if kernel.ks == 1:
        return elements
    rounded = tirx.Cast(f"{factors}x{task.lanes * kernel.ks}", elements)
    return T.reinterpret(f"{kernel.group_type}x{task.lanes}", rounded)


def _as_elements(task: Task, groups: Any) -> Any:
    """Return a vector of groups of k as one of their elements."""
    kernel, factors = task.blocks.kernel, task.attention.factors
    if kernel.ks == 1:
        return groups
    return T.reinterpret(f"{factors}x{task.lanes * kernel.ks}", groups)


def pack_values(block: Block) -> None:
    """Emit panels of V, zeros beyond its columns and rows."""
    if block.task.blocks.kernel.ks == 1:
        _pack_rows(block)
    else:
        _pack_pairs(block)


def _pack_rows(block: Block) -> None:
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


def _pack_pairs(block: Block) -> None:
    """Emit panels of pairs of rows of V: whole vectors of columns, then column by column."""
    task, kernel = block.task, block.task.blocks.kernel
    width, lanes, vectors = task.attention.width, task.lanes, kernel.vectors
    whole = width // lanes if task.attention.v.stride(2) == 1 else 0
    with T.serial(0, block.groups) as group:
        if whole:
            with T.serial(0, whole) as number:
                place = tirx.Ramp(number % vectors * 2 * lanes, 1, 2 * lanes)
                pair = _pair(block, group, number * lanes)
                T.buffer_store(task.values, pair, [number // vectors, group, place])
        if task.panels * kernel.nr > whole * lanes:
            with T.serial(whole * lanes, task.panels * kernel.nr) as column:
                for row in range(2):
                    value = task.rounded(_value_or_zero(block, 2 * group + row, column))
                    place = column % kernel.nr * 2 + row
                    T.buffer_store(task.values, value, [column // kernel.nr, group, place])


def _pair(block: Block, group: Any, column: Any) -> Any:
    """Return two rows of V as a vector of pairs."""
    task, lanes = block.task, block.task.lanes
    rows = []
    for row in (2 * group, 2 * group + 1):
        load = _value(block, row, column)
        vector = tirx.BufferLoad(load.source, [tirx.Ramp(load.indices[0], 1, lanes)])
        rows.append(_unless_beyond(block, row, vector, T.broadcast(T.float32(0), lanes)))
    order = [row * lanes + lane for lane in range(lanes) for row in range(2)]
    pairs = tirx.Shuffle(rows, [tirx.const(place, "int32") for place in order])
    return tirx.Cast(f"{task.attention.factors}x{2 * lanes}", pairs)


def _value_or_zero(block: Block, row: Any, column: Any) -> Any:
    """Return an element of V, 0 where there is none."""
    width = block.task.attention.width
    value = _unless_beyond(block, row, _value(block, row, T.min(column, width - 1)), T.float32(0))
    return tirx.Select(column < width, value, T.float32(0))


def _value(block: Block, row: Any, column: Any) -> Any:
    """Return an element of V, or of the last row where there is no such row."""
    task = block.task
    place = block.first + T.min(row, block.count - 1)
    return task.operands[2][task.attention.v.at(task.head, place, column)]


def _unless_beyond(block: Block, row: Any, value: Any, otherwise: Any) -> Any:
    """Return a value of a row, and something else where there is no such row."""
    if isinstance(block.count, int) and block.count % 2 == 0:
        return value
    return tirx.Select(row < block.count, value, otherwise)
