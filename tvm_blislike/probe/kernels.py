"""The probe's kernels of a core, compiled once: all sizes of the work are their arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import tvm

from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.microkernels.products import Product
from tvm_blislike.model.types import BFLOAT_DOT
from tvm_blislike.probe import compute_kernels, memory_kernels
from tvm_blislike.probe.builders import BLOCK_VECTORS
from tvm_blislike.schedules.lowering.llvm_functions import with_sources

if TYPE_CHECKING:
    from tvm_blislike.hardware import Core


@functools.cache
def kernels(core: Core) -> dict[str, Callable[..., None]]:
    """Return the kernels for a core that this machine runs, compiled once per process."""
    library = compiled(core)
    return {name: library[name] for name in functions(core)}


@compiler_lock()
def compiled(core: Core) -> tvm.runtime.Executable:
    """Return the kernels for any core, compiled."""
    # A compilation under way, with passes of its own, may be what asks for a measured core.
    with tvm.transform.PassContext():
        return tvm.compile(module(core), tvm.target.Target(core.target_config()))


def module(core: Core) -> tvm.IRModule:
    """Return the kernels for any core."""
    named = functions(core).items()
    return tvm.IRModule({n: with_sources(f).with_attr("global_symbol", n) for n, f in named})


def functions(core: Core) -> dict[str, tvm.tirx.PrimFunc]:
    """Return the kernels for any core as PrimFuncs by name."""
    size, line = (accumulators(core), core.lanes("float32")), core.line_bytes
    words = word_product(core)
    return {
        "fma": compute_kernels.fma(*size),
        **({"bf16": compute_kernels.products(*size, words)} if words else {}),
        "fma_elements": compute_kernels.fma_beside_loads(*size, element=True),
        "fma_vectors": compute_kernels.fma_beside_loads(*size, element=False),
        "chain": compute_kernels.chain(*size),
        "fork": compute_kernels.fork(*size),
        "read": memory_kernels.read(*size),
        "stream": memory_kernels.stream(*size),
        "write": memory_kernels.write(*size),
        "passed": memory_kernels.written_and_read(*size, passed=True),
        "kept": memory_kernels.written_and_read(*size, passed=False),
        "walk": memory_kernels.scattered(*size, line, waits=True),
        "walks": memory_kernels.scattered(*size, line, waits=False),
    }


def word_product(core: Core) -> Product | None:
    """Return the vector product of pairs of bfloat16 that a core has."""
    found = kernels_for(core, BFLOAT_DOT, superseded=True)
    return next((kernel.product for kernel in found if kernel.tiles is None), None)


def accumulators(core: Core) -> int:
    """Return the independent sums of the kernels: three quarters of the registers, 12 or 24.

    That hides a latency of 6 cycles at two FMAs a cycle with 16 registers, and at four with 32.
    """
    return core.vector_registers * 3 // 4


def block_bytes(core: Core) -> int:
    """Return the bytes that `read`, `stream` and `write` treat per step."""
    return BLOCK_VECTORS * core.vector_bits // 8
