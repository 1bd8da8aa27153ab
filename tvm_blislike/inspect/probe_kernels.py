"""The kernels that `probe` times: FMAs, dependent integer operations, reads and a fill.

All sizes of the work are arguments, so each core needs one compilation. `tasks` equal pieces of
work run in TVM's thread pool, piece t on row t of the kernel's state, which only keeps LLVM from
dropping the work.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.tvm_seams.attributes import NO_ALIAS

if TYPE_CHECKING:
    from tvm_blislike.hardware import Core

# Work per iteration of the emitted loops: enough to make the loop's own instructions negligible.
FMA_ROUNDS = 2
CHAIN_PAIRS = 64
READ_ROUNDS = 4
# `or` takes up to three cycles on Arm: eight sums keep two loads a cycle going.
READ_ACCUMULATORS = 8


@dataclass(frozen=True)
class Kernels:
    """The kernels as functions, and the registers they work on.

    Parameters
    ----------
    lanes : int
        32-bit elements of one vector register.
    accumulators : int
        Independent sums: three quarters of the registers, 12 or 24. That hides a latency of 6
        cycles at two FMAs a cycle with 16 registers, and at four with 32.
    fma : callable
        (state, tasks, steps): each task makes steps * FMA_ROUNDS FMAs per accumulator.
    chain : callable
        (state, tasks, steps): one chain of steps * CHAIN_PAIRS times an add and an xor.
    read : callable
        (data, state, tasks, steps, repeats): each task reads its own `steps` blocks of
        `block_bytes` bytes, `repeats` times.
    fill : callable
        (data, steps): write `steps` blocks, so that each page has memory of its own.
    """

    lanes: int
    accumulators: int
    fma: Callable[..., None]
    chain: Callable[..., None]
    read: Callable[..., None]
    fill: Callable[..., None]

    @property
    def block_bytes(self) -> int:
        """Bytes that `read` and `fill` treat per step."""
        return READ_ROUNDS * READ_ACCUMULATORS * self.lanes * 4


@functools.cache
@compiler_lock()
def kernels(core: Core) -> Kernels:
    """Return the kernels for a core that this machine runs, compiled once per process."""
    library = tvm.compile(module(core), tvm.target.Target(core.target_config()))
    compiled = {name: library[name] for name in ("fma", "chain", "read", "fill")}
    return Kernels(*_registers_of(core), **compiled)


def module(core: Core) -> tvm.IRModule:
    """Return the kernels for any core as PrimFuncs, named as in `Kernels`."""
    lanes, accumulators = _registers_of(core)
    functions = {
        "fma": _fma(accumulators, lanes),
        "chain": _chain(),
        "read": _read(lanes),
        "fill": _fill(lanes),
    }
    return tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()})


def _registers_of(core: Core) -> tuple[int, int]:
    """Return (lanes, accumulators)."""
    return core.lanes("float32"), core.vector_registers * 3 // 4


def _fma(accumulators: int, lanes: int) -> tvm.tirx.PrimFunc:
    """Independent sums of one constant product, all in registers."""
    with _function() as builder:
        state = _buffer("state", "float32", accumulators, lanes)
        tasks, steps = _sizes("tasks", "steps")
        with T.parallel(0, tasks) as task, _registers(state, task) as sums:
            # The intrinsic keeps LLVM from computing the product once, before the loop.
            vector = f"float32x{lanes}"
            x = _register(state, task, 0)
            with T.serial(0, steps):
                for total in sums * FMA_ROUNDS:
                    product = (x[_span(x)], x[_span(x)], total[_span(total)])
                    value = T.call_llvm_pure_intrin(vector, "llvm.fma", *product)
                    T.buffer_store(total, value, [_span(total)])
    return builder.get()


def _chain() -> tvm.tirx.PrimFunc:
    """One value through adds and xors, a cycle each, that nothing can shorten."""
    with _function() as builder:
        state = _buffer("state", "int32", 1, 3)
        tasks, steps = _sizes("tasks", "steps")
        with T.parallel(0, tasks) as task:
            x, a, b = (T.alloc_buffer((1,), "int32") for _ in range(3))
            for index, scalar in enumerate((x, a, b)):
                T.buffer_store(scalar, state[task, 0, index], [0])
            with T.serial(0, steps):
                for _ in range(CHAIN_PAIRS):
                    T.buffer_store(x, T.bitwise_xor(x[0] + a[0], b[0]), [0])
            T.buffer_store(state, x[0], [task, 0, 0])
    return builder.get()


def _read(lanes: int) -> tvm.tirx.PrimFunc:
    """Vector loads, joined by `or`, which every vector pipe does in one cycle."""
    with _function() as builder:
        data = _buffer("data", "int32", READ_ROUNDS * READ_ACCUMULATORS, lanes)
        state = _buffer("state", "int32", READ_ACCUMULATORS, lanes)
        tasks, steps, repeats = _sizes("tasks", "steps", "repeats")
        with T.parallel(0, tasks) as task, _registers(state, task) as sums:
            with T.serial(0, repeats), T.serial(0, steps) as step:
                for row, total in enumerate(sums * READ_ROUNDS):
                    loaded = data[task * steps + step, row, _span(total)]
                    value = T.bitwise_or(total[_span(total)], loaded)
                    T.buffer_store(total, value, [_span(total)])
    return builder.get()


def _fill(lanes: int) -> tvm.tirx.PrimFunc:
    with _function() as builder:
        data = _buffer("data", "int32", READ_ROUNDS * READ_ACCUMULATORS, lanes)
        (steps,) = _sizes("steps")
        with T.serial(0, steps) as step:
            for row in range(READ_ROUNDS * READ_ACCUMULATORS):
                one = T.broadcast(T.int32(1), lanes)
                T.buffer_store(data, one, [step, row, T.ramp(0, 1, lanes)])
    return builder.get()


@contextmanager
def _function() -> Iterator[IRBuilder]:
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr(dict(NO_ALIAS))
            yield builder


def _buffer(name: str, dtype: str, *inner: int) -> Any:
    """Declare an argument of shape (any, *inner)."""
    return T.match_buffer(T.arg(name, T.handle()), (T.int32(), *inner), dtype)


def _sizes(*names: str) -> list[Any]:
    return [T.arg(name, T.int32()) for name in names]


@contextmanager
def _registers(state: Any, task: Any) -> Iterator[list[Any]]:
    """Give one row of `state` in registers, and write it back at the end."""
    rows = range(int(state.shape[1]))
    registers = [_register(state, task, row) for row in rows]
    yield registers
    for row, register in zip(rows, registers, strict=True):
        span = _span(register)
        T.buffer_store(state, register[span], [task, row, span])


def _register(state: Any, task: Any, row: int) -> Any:
    lanes = int(state.shape[2])
    # A buffer of its own, small and of default scope: that becomes a vector register.
    register = T.alloc_buffer((lanes,), str(state.dtype))
    span = _span(register)
    T.buffer_store(register, state[task, row, span], [span])
    return register


def _span(register: Any) -> Any:
    """Return the index of all elements."""
    return T.ramp(0, 1, int(register.shape[0]))
