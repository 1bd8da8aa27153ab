"""Kernels of caches and memory: streams of loads and stores, and lines far apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm.script.ir_builder import tirx as T

from tvm_blislike.probe.builders import (
    BLOCK_VECTORS,
    ONE_BITS,
    Arguments,
    add_product,
    copied,
    kernel,
    put,
    registers,
    value,
)

# A linear congruential generator modulo any power of two: x * 1664525 + an odd number.
_FACTOR, _SUMMAND = 1664525, 1013904223


def read(sums: int, lanes: int) -> tvm.tirx.PrimFunc:
    """Loads joined by `or`, which every vector pipe does in one cycle: what the ports deliver.

    A task reads its `steps` blocks `repeats` times.
    """
    with kernel(sums, lanes) as (builder, args):
        with T.parallel(0, args.tasks) as task:
            with registers(args.state, task, "int32") as totals:
                for total, loaded in _loads(args, task, totals):
                    put(total, T.bitwise_or(value(total), loaded))
    return builder.get()


def stream(sums: int, lanes: int) -> tvm.tirx.PrimFunc:
    """Loads as factors of FMAs, one each: a micro-kernel of one row, whose panel streams in."""
    with kernel(sums, lanes) as (builder, args):
        with T.parallel(0, args.tasks) as task:
            with registers(args.state, task, "float32") as totals:
                x = copied(totals[0])
                for total, loaded in _loads(args, task, totals):
                    add_product(total, value(x), T.reinterpret(f"float32x{lanes}", loaded))
    return builder.get()


def _loads(args: Arguments, task: Any, totals: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Within loops over a task's blocks, yield the vectors of one, each with a register."""
    with T.serial(0, args.repeats), T.serial(0, args.steps) as step:
        yield from _block(args, task, step, totals)


def _block(args: Arguments, task: Any, step: Any, totals: list[Any]) -> Iterator[tuple[Any, Any]]:
    for row in range(BLOCK_VECTORS):
        yield totals[row % len(totals)], args.load(task, step, row)


def write(sums: int, lanes: int) -> tvm.tirx.PrimFunc:
    """Write a task's `steps` blocks, `repeats` times: ones, as floats."""
    with kernel(sums, lanes) as (builder, args):
        with T.parallel(0, args.tasks) as task:
            with T.serial(0, args.repeats):
                _write_blocks(args, task)
    return builder.get()


def written_and_read(sums: int, lanes: int, passed: bool) -> tvm.tirx.PrimFunc:
    """Write a task's blocks; when all have, read them, or those of the next task if `passed`."""
    with kernel(sums, lanes) as (builder, args):
        with T.serial(0, args.repeats):
            with T.parallel(0, args.tasks) as task:
                _write_blocks(args, task)
            with T.parallel(0, args.tasks) as task:
                whose = T.floormod(task + 1, args.tasks) if passed else task
                with registers(args.state, task, "int32") as totals:
                    with T.serial(0, args.steps) as step:
                        for total, loaded in _block(args, whose, step, totals):
                            put(total, T.bitwise_or(value(total), loaded))
    return builder.get()


def _write_blocks(args: Arguments, task: Any) -> None:
    with T.serial(0, args.steps) as step:
        for row in range(BLOCK_VECTORS):
            place = T.ramp(args.element(task, step, row), 1, args.lanes)
            T.buffer_store(args.data, T.broadcast(T.int32(ONE_BITS), args.lanes), [place])


def scattered(sums: int, lanes: int, line_bytes: int, waits: bool) -> tvm.tirx.PrimFunc:
    """Read lines in no order, of the first `steps` ones, a power of two: one per repeat.

    Where it `waits`, what was read is part of the next address, so that one line is missing at a
    time; else as many as the core can keep track of.
    """
    with kernel(sums, lanes) as (builder, args):
        with T.parallel(0, args.tasks) as task:
            walk, joined = (_scalar(args.state[task, 0, lane]) for lane in range(2))
            loaded = _scalar(T.int32(0))
            # One step per iteration: of several LLVM makes a gather.
            with T.serial(0, args.repeats):
                step = walk[0] * _FACTOR + _SUMMAND
                # The high bits of such a generator are the ones in no order.
                line = T.bitwise_and(T.shift_right(step, T.int32(8)), args.steps - 1)
                _set(loaded, args.data[line * (line_bytes // 4)])
                _set(walk, step + loaded[0] if waits else step)
                _set(joined, T.bitwise_xor(joined[0], loaded[0]))
            # The walk goes on where it ended: other lines in the next call.
            for lane, scalar in enumerate((walk, joined)):
                T.buffer_store(args.state, scalar[0], [task, 0, lane])
    return builder.get()


def _scalar(first: Any) -> Any:
    scalar = T.alloc_buffer((1,), "int32")
    _set(scalar, first)
    return scalar


def _set(scalar: Any, number: Any) -> None:
    T.buffer_store(scalar, number, [0])
