"""softmax(scale * Q K^T, masked) V without the matrix of scores in memory.

T. Dao et al., "FlashAttention" (2022), algorithm 1, on the register blocks of this library: blocks
of keys and values pass by rows of queries, which keep the largest score so far, the sum of their
weights, and the sum of weighted values. A block with a larger score rescales both sums.

    for task                one head, `queries` rows              (threads)
      copy scale * Q
      for block             `keys` columns: pack K and V into panels
        for strip           `tiles` register blocks of rows
          for panel, tile   S = Q K^T                             micro-kernel, depth steps
          for row           mask, maximum; exponential, sum       (`softmax`)
          for panel, tile   O = rescaled O + S V                  micro-kernel, `keys` steps
      store O / sum

Operands are read where they lie, and so is the result written: heads are split and merged by
strides. Rows and columns of tiles that do not exist are computed from copies of others, and left
out of every sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.cost_models.attention.blocks import Blocks, Few
from tvm_blislike.microkernels.operands import Operand, Update
from tvm_blislike.microkernels.products import groups
from tvm_blislike.microkernels.update_shape import UpdateShape
from tvm_blislike.microkernels.vector_code import vector_code
from tvm_blislike.model.attention import Attention
from tvm_blislike.schedules.attention import packing, softmax
from tvm_blislike.schedules.attention.task import Block, Strip, Task, ceil_div
from tvm_blislike.tvm_seams.attributes import NO_ALIAS

Shape = tuple[int, ...]
_FLOAT = "float32"
# Steps of a micro-kernel's loop.
_UNROLL = 4


def kernel(
    attention: Attention,
    operands: Sequence[Shape],
    result: Shape,
    blocks: Blocks,
    threads: int,
    few: Few | None = None,
) -> tirx.PrimFunc:
    """Return the function (Q, K, V, mask of each view, result), of float32.

    Factors of products may be rounded to `attention.factors` where they are copied. Its loops are
    final; what micro-kernels need is left to `schedules.lowering`.

    Parameters
    ----------
    operands : sequence of tuple of int
        Shapes of the tensors that the views of the attention are of.
    result : tuple of int
        Of the result.
    few : Few or None
        Blocks of fewer rows, where running tells how many there are.
    """
    names = ["q", "k", "v", *(f"mask{i}" for i in range(len(operands) - 3)), "result"]
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main", **NO_ALIAS})
            given = [
                T.arg(name, T.buffer(shape, _FLOAT))
                for name, shape in zip(names, [*operands, result], strict=True)
            ]
            with T.sblock("root"):
                T.reads()
                T.writes()
                flat = [T.decl_buffer((math.prod(b.shape),), _FLOAT, data=b.data) for b in given]
                if few is None:
                    _tasks(attention, blocks, threads, flat)
                else:
                    _by_rows(attention, blocks, few, threads, flat)
    return builder.get()


def _by_rows(attention: Attention, blocks: Blocks, few: Few, threads: int, flat: list[Any]) -> None:
    """Emit the loops of both blocks, of which the number of rows takes one."""
    with T.If(attention.rows <= few.rows):
        with T.Then():
            _tasks(attention, few.blocks, threads, flat)
        with T.Else():
            _tasks(attention, blocks, threads, flat)


def _tasks(attention: Attention, blocks: Blocks, threads: int, flat: list[Any]) -> None:
    """Emit the loop over heads and blocks of queries."""
    groups = ceil_div(attention.rows, blocks.queries)
    loop = T.parallel if threads > 1 else T.serial
    with loop(0, attention.batch * groups) as number:
        several = not isinstance(groups, int) or groups > 1
        head, group = (number // groups, number % groups) if several else (number, 0)
        q, k, v, *masks, out = flat
        task = Task.of(attention, blocks, (q, k, v, out), tuple(masks), head, group)
        _task(task)


def _task(task: Task) -> None:
    blocks, columns = task.blocks, task.attention.columns
    is_known = isinstance(columns, int)
    whole = columns // blocks.keys
    rest = columns - whole * blocks.keys
    packing.copy_queries(task)
    softmax.start(task)
    if not is_known or whole:
        with T.serial(0, whole) as number:
            _block(Block(task, number * blocks.keys, blocks.keys))
    if not is_known:
        # Through memory, or TVM would cut buffers of a block to what this number leaves of them.
        count = T.alloc_buffer((1,), "int32")
        T.buffer_store(count, rest, [0])
        with T.If(count[0] > 0):
            with T.Then():
                _block(Block(task, whole * blocks.keys, count[0]))
    elif rest:
        _block(Block(task, whole * blocks.keys, rest))
    softmax.finish(task)


def _block(block: Block) -> None:
    """Emit what a block of keys adds to the sums, unless all rows leave it out."""
    task = block.task
    if task.attention.diagonal is None:
        _block_of_rows(block)
        return
    with T.If(block.first <= task.last_column(task.count)):
        with T.Then():
            _block_of_rows(block)


def _block_of_rows(block: Block) -> None:
    task = block.task
    packing.pack_keys(block)
    packing.pack_values(block)
    tiles = task.blocks.tiles
    with T.serial(0, (task.tiles + (tiles - 1)) // tiles) as number:
        strip = Strip(block, number)
        if task.attention.diagonal is None:
            _strip(strip)
        else:
            with T.If(block.first <= task.last_column(strip.first + strip.rows)):
                with T.Then():
                    _strip(strip)


def _strip(strip: Strip) -> None:
    with T.serial(0, strip.block.panels) as panel:
        with T.serial(0, strip.tiles) as tile:
            _scores(strip, panel, tile)
    softmax.strip(strip)
    with T.serial(0, strip.block.task.panels) as panel:
        with T.serial(0, strip.tiles) as tile:
            _values(strip, panel, tile)


def _scores(strip: Strip, panel: Any, tile: Any) -> None:
    """Emit a tile of S = Q K^T."""
    task = strip.block.task
    kernel = task.blocks.kernel
    mr, nr = kernel.mr, kernel.nr
    steps, ks = groups(task.attention.depth, kernel.ks), kernel.ks
    a = Operand.part(task.queries, (mr, steps * ks), strip.first + tile * mr, 0)
    b = Operand.part(task.keys, (steps, nr * ks), panel, 0, 0)
    sums = _product(task, a, b, steps)
    for row, lanes, loaded in _registers(task, sums):
        at = [tile * mr + row, _moved(lanes, panel * nr)]
        T.buffer_store(task.scores, loaded, at)


def _values(strip: Strip, panel: Any, tile: Any) -> None:
    """Emit a tile of O = rescaled O + S V."""
    task = strip.block.task
    kernel = task.blocks.kernel
    mr, nr = kernel.mr, kernel.nr
    steps, ks = strip.block.groups, kernel.ks
    a = Operand.part(task.weights, (mr, steps * ks), tile * mr, 0)
    b = Operand.part(task.values, (steps, nr * ks), panel, 0, 0)
    sums = _product(task, a, b, steps)
    for row, lanes, loaded in _registers(task, sums):
        at = [strip.first + tile * mr + row, _moved(lanes, panel * nr)]
        factor = T.broadcast(task.rescale[tile * mr + row], kernel.lanes)
        T.buffer_store(task.sums, tirx.BufferLoad(task.sums, at) * factor + loaded, at)


def _product(task: Task, a: Operand, b: Operand, steps: Any) -> Operand:
    """Emit a micro-kernel call; return its block of C in registers."""
    kernel = task.blocks.kernel
    sums = Operand.local((1, kernel.mr, kernel.nr), _FLOAT)
    for row, lanes, _ in _registers(task, sums):
        T.buffer_store(sums.buffer, T.broadcast(T.float32(0), kernel.lanes), sums.at(0, row, lanes))
    # Of a number that is known at run time only, whole vectors are a multiple.
    unroll = _UNROLL if isinstance(steps, int) else _UNROLL // kernel.ks
    shape = UpdateShape(1, kernel.mr, steps=steps, unroll=unroll, ks=kernel.ks)
    vector_code(Update(kernel, shape, a, b, sums))
    return sums


def _registers(task: Task, block: Operand) -> Any:
    """Yield row, columns and load of each register of a block of C, inside unrolled loops."""
    kernel = task.blocks.kernel
    with T.unroll(0, kernel.mr) as row:
        with T.unroll(0, kernel.vectors) as vector:
            lanes = T.ramp(vector * kernel.lanes, 1, kernel.lanes)
            yield row, lanes, tirx.BufferLoad(block.buffer, block.at(0, row, lanes))


def _moved(lanes: Any, by: Any) -> Any:
    return T.ramp(lanes.base + by, 1, lanes.lanes)
