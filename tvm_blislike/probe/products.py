"""The peak of products of other types than fp32: those of the core's micro-kernels, in registers.

As many chains of sums as hide the latency of the instruction, in every thread. Of products of
several instructions only the addition to the sums is not the same in every step: different groups
of A stay in registers then, and rows of B pass by from the first-level cache; so many chains fewer
as these need registers (with 12 of 16 taken by sums, `vpmaddubsw` of masks spilled, and ran at half
the rate of kernels). Tile registers are loaded from there, too: a unit of tiles multiplies while it
loads.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.microkernels.tile_loops import GROUPS, TileBlock, tile_rows
from tvm_blislike.microkernels.tile_unit import RELEASE, configure_symbol
from tvm_blislike.model.types import value_range
from tvm_blislike.probe.steps import Step
from tvm_blislike.schedules.lowering.llvm_functions import with_sources
from tvm_blislike.schedules.lowering.words import of_bfloat16
from tvm_blislike.tvm_seams.attributes import NO_ALIAS

if TYPE_CHECKING:
    from tvm_blislike.hardware import Core
    from tvm_blislike.model.types import Types

# Products in flight; of several instructions, of so many groups of A, and rows of B in L1.
CHAINS, HELD, ROWS = 12, 2, 32
# Registers for what passes from one instruction of a product to the next, and for a constant.
_PASSING = 2
_STEPS = 4096
_Shapes = tuple[tuple[tuple[int, ...], str], ...]


class ProductBench:
    """Where a function of products runs, on arguments that are made once."""

    def __init__(self, function: Any, arguments: Sequence[Any]) -> None:
        self._function, self._arguments = function, arguments

    def seconds(self, step: Step, repeats: int) -> float:
        """Run the products and return how long they took."""
        started = time.perf_counter()
        self._function(*self._arguments, step.tasks, repeats)
        return time.perf_counter() - started


def product_step(core: Core, types: Types, threads: int) -> tuple[ProductBench, Step] | None:
    """Return where products of some types are measured, and the step; None without micro-kernels.

    Parameters
    ----------
    core : Core
        This machine's.
    types : Types
        Of the products.
    threads : int
        Threads, which run in TVM's pool.

    Returns
    -------
    tuple or None
        The work of the step is the products of all threads.
    """
    kernels = kernels_for(core, types)
    if not kernels:
        return None
    tiled = [kernel for kernel in kernels if kernel.tiles is not None]
    kernel = tiled[-1] if tiled else kernels[0]
    function, shapes, products = _compiled(core, kernel)
    rng = np.random.default_rng(0)
    arrays = [_values(rng, shape, dtype) for shape, dtype in shapes[:-1]]
    shape, dtype = shapes[-1]
    arrays.append(np.zeros((threads, *shape[1:]), dtype))
    arguments = [tvm.runtime.tensor(array) for array in arrays]
    return ProductBench(function, arguments), Step("products", products * threads, threads)


def _values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if np.dtype(dtype).kind in "iu":
        low, high = value_range(dtype)
        return rng.integers(low, high, shape, dtype)
    return np.ones(shape, dtype)


@functools.cache
@compiler_lock()
def _compiled(core: Core, kernel: Microkernel) -> tuple[Callable[..., None], _Shapes, int]:
    """Return (factors, sums, threads, repeats), their shapes, and the products of a repeat."""
    func, shapes, products = product_function(kernel)
    target = tvm.target.Target(core.target_config())
    with tvm.transform.PassContext():
        return tvm.compile(tvm.IRModule({"main": func}), target)["main"], shapes, products


def product_function(kernel: Microkernel) -> tuple[tirx.PrimFunc, _Shapes, int]:
    """Return what `_compiled` returns, before it is compiled."""
    func, shapes, products = (_of_tiles if kernel.tiles else _of_vectors)(kernel)
    return with_sources(of_bfloat16(func)).with_attr("global_symbol", "main"), shapes, products


@contextmanager
def _function(shapes: _Shapes) -> Iterator[tuple[IRBuilder, list[Any], Any, Any]]:
    """Begin the function; it gives the buffers, the thread's number and the repeats."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr(dict(NO_ALIAS))
        *factors, (sums, dtype) = shapes
        buffers = [
            T.match_buffer(T.arg(f"p{number}", T.handle()), *shape)
            for number, shape in enumerate(factors)
        ]
        whole = (T.int32(), *sums[1:])
        buffers.append(T.match_buffer(T.arg("c", T.handle()), whole, dtype))
        threads, repeats = (T.arg(name, T.int32()) for name in ("threads", "repeats"))
        with T.parallel(0, threads) as task:
            yield builder, buffers, task, repeats


def _chains(kernel: Microkernel) -> int:
    """Return the sums that fit beside groups of A, a row of B and what passes."""
    others = HELD + kernel.product.b_vectors + _PASSING
    return min(CHAINS, (kernel.isa.vector_registers - others) // HELD * HELD)


def _of_vectors(kernel: Microkernel) -> tuple[tirx.PrimFunc, _Shapes, int]:
    product, lanes, types = kernel.product, kernel.lanes, kernel.types
    ks, width = product.ks, lanes * product.ks
    several = product.instructions > 1
    held, rows, chains = (HELD, ROWS, _chains(kernel)) if several else (1, 1, CHAINS)
    vectors = chains // held if several else 1
    shapes = (
        ((held * ks,), types.a),
        ((rows, vectors * width), types.b),
        ((1, chains, lanes), types.acc),
    )
    with _function(shapes) as (builder, (a, b, c), task, repeats):
        every = T.ramp(0, 1, lanes)
        sums = [T.alloc_buffer((lanes,), types.acc) for _ in range(chains)]
        for chain in sums:
            T.buffer_store(chain, T.broadcast(tirx.const(0, types.acc), lanes), [every])
        places = [T.ramp(i * ks, 1, ks) if ks > 1 else i for i in range(held)]
        of_a = [product.load(a[place], 1) for place in places]
        with T.serial(0, repeats), T.serial(0, _STEPS // ROWS), T.serial(0, ROWS) as step:
            row = step if rows > 1 else 0
            for number, chain in enumerate(sums):
                vector = b[row, T.ramp(number // held % vectors * width, 1, width)]
                groups = product.load(vector, lanes)
                new = product.multiply_add(chain[every], of_a[number % held], groups, lanes)
                T.buffer_store(chain, new, [every])
        for number, chain in enumerate(sums):
            T.buffer_store(c, chain[every], [task, number, every])
    return builder.get(), shapes, chains * _STEPS * width


def _of_tiles(kernel: Microkernel) -> tuple[tirx.PrimFunc, _Shapes, int]:
    block = TileBlock(1, kernel.mr, kernel.nr, tile_rows(kernel.mr), kernel.nr, GROUPS)
    zero, multiply, store = (
        kernel.tiles.symbol(what, block) for what in ("zero", "multiply", "store")
    )
    types, depth = kernel.types, GROUPS * kernel.ks
    shapes = (
        ((kernel.mr, depth), types.a),
        ((GROUPS, kernel.nr * kernel.ks), types.b),
        ((1, kernel.mr, kernel.nr), types.acc),
    )
    with _function(shapes) as (builder, (a, b, c), task, repeats):
        strides = T.int64(0), T.int64(depth * types.a_bytes)
        T.evaluate(T.call_extern("void", configure_symbol(block)))
        T.evaluate(T.call_extern("void", zero))
        with T.serial(0, repeats), T.serial(0, _STEPS):
            operands = a.access_ptr("r"), *strides, b.access_ptr("r")
            T.evaluate(T.call_extern("void", multiply, *operands))
        row_bytes = T.int64(kernel.nr * types.acc_bytes)
        own = c.access_ptr("w", offset=task * (kernel.mr * kernel.nr))
        T.evaluate(T.call_extern("void", store, own, row_bytes))
        T.evaluate(T.call_extern("void", RELEASE))
    return builder.get(), shapes, _STEPS * kernel.mr * kernel.nr * depth
