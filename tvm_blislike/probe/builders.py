"""What the probe's kernels are written with: one signature, and values kept in registers.

Every kernel takes `(data, state, tasks, steps, repeats)`. `tasks` equal pieces of work run in TVM's
thread pool, piece t on row t of `state`, which only keeps LLVM from dropping the work. `data` is
the memory that the kernels of caches read, `steps` blocks of it per task. All is 32 bits wide:
kernels that multiply take the bits for floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.tvm_seams.attributes import NO_ALIAS

# Vectors of a block of memory: a multiple of the sums of any register file.
BLOCK_VECTORS = 48
# Bits of 0.5 and of 1.0: no subnormal number, and any chain of integers can start with them.
HALF_BITS, ONE_BITS = 0x3F000000, 0x3F800000


@dataclass(frozen=True)
class Arguments:
    """The arguments of a kernel, as TIR."""

    data: Any
    state: Any
    tasks: Any
    steps: Any
    repeats: Any
    lanes: int

    def load(self, task: Any, step: Any, row: int) -> Any:
        """Return vector `row` of a task's block `step`, as integers."""
        return self.data[T.ramp(self.element(task, step, row), 1, self.lanes)]

    def element(self, task: Any, step: Any, row: int) -> Any:
        """Return the index in `data` at which that vector begins."""
        return ((task * self.steps + step) * BLOCK_VECTORS + row) * self.lanes


@contextmanager
def kernel(sums: int, lanes: int) -> Iterator[tuple[IRBuilder, Arguments]]:
    """Begin a PrimFunc whose state has `sums` vectors per task; the builder's `get` returns it."""
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr(dict(NO_ALIAS))
            data = T.match_buffer(T.arg("data", T.handle()), (T.int32(),), "int32")
            shape = (T.int32(), sums, lanes)
            state = T.match_buffer(T.arg("state", T.handle()), shape, "int32")
            sizes = [T.arg(name, T.int32()) for name in ("tasks", "steps", "repeats")]
            yield builder, Arguments(data, state, *sizes, lanes)


@contextmanager
def registers(state: Any, task: Any, dtype: str, rows: int | None = None) -> Iterator[list[Any]]:
    """Give a task's state, or its first `rows` vectors, in registers, and write them back."""
    held = [_register(state, task, row, dtype) for row in range(rows or int(state.shape[1]))]
    yield held
    for row, register in enumerate(held):
        bits = value(register)
        if dtype != "int32":
            bits = T.reinterpret(f"int32x{int(register.shape[0])}", bits)
        T.buffer_store(state, bits, [task, row, span(register)])


def _register(state: Any, task: Any, row: int, dtype: str) -> Any:
    # A buffer of its own, small and of default scope: that becomes a vector register.
    register = T.alloc_buffer((int(state.shape[2]),), dtype)
    bits = state[task, row, span(register)]
    if dtype != "int32":
        bits = T.reinterpret(f"{dtype}x{int(register.shape[0])}", bits)
    put(register, bits)
    return register


def copied(register: Any) -> Any:
    """Return another register with the same elements."""
    copy = T.alloc_buffer(register.shape, register.dtype)
    put(copy, value(register))
    return copy


def value(register: Any) -> Any:
    """Return all elements of a register."""
    return register[span(register)]


def put(register: Any, vector: Any) -> None:
    """Set all elements of a register."""
    T.buffer_store(register, vector, [span(register)])


def span(register: Any) -> Any:
    """Return the index of all elements of a register."""
    return T.ramp(0, 1, int(register.shape[0]))


def add_product(total: Any, x: Any, y: Any) -> None:
    """Add x * y to a register; the intrinsic keeps LLVM from computing products before a loop."""
    vector = f"float32x{int(total.shape[0])}"
    put(total, T.call_llvm_pure_intrin(vector, "llvm.fma", x, y, value(total)))
