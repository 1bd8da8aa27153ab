"""Every configuration of the matrix product (`gemm`)."""

from __future__ import annotations

import math

from tvm_blislike.cost_models.data_types import most_steps
from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.cost_models.gemm.geometry import LOOP_ORDERS, GemmGeometry, packings
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernel_of, kernels_for
from tvm_blislike.model.space import Axis, Space, Value, even_parts, single, unrolls
from tvm_blislike.model.workload import GemmWorkload

# Steps of k that blocks have at least, unless there are fewer: half of the least that the model of
# blocking wants on a described core (33, for blocks of one row).
_LEAST_KC = 16
# How far ahead panels that pass by are asked for; 0: as usual.
_DISTANCES = (0, 512, 1024, 2048, 4096, 16384, 32768)


def space(workload: GemmWorkload, core: Core, threads: int) -> Space:
    """Return the choices of block, blocking, loop order, packing, prefetching and threads."""
    w = workload

    def kernels(_: GemmConfig) -> list[Value]:
        offered = kernels_for(core, w.types)
        return [(k.mr, k.nr, k.ks) for k in offered if k.mr <= w.m and k.nr < w.n + k.lanes]

    def depths(_: GemmConfig) -> list[int]:
        fewest = math.ceil(w.k / most_steps(w.types))
        blocks = range(fewest, math.ceil(w.k / _LEAST_KC) + 1)
        return sorted({math.ceil(w.k / count) for count in blocks})

    def parts(size: int, tile: int) -> list[int]:
        return [tiles * tile for tiles in even_parts(math.ceil(size / tile))]

    def distances(c: GemmConfig) -> tuple[int, ...]:
        if not c.prefetch or _kernel(c, w, core).isa.lane_operand:
            return (0,)
        # At least a step: shorter distances make the same code.
        return tuple(d for d in _DISTANCES if d == 0 or d >= c.nr * w.types.b_bytes)

    return Space(
        GemmConfig(),
        (
            Axis("block", ("mr", "nr", "ks"), kernels),
            single("loop_order", lambda _: LOOP_ORDERS),
            single("kc", depths),
            single("mc", lambda c: parts(w.m, c.mr)),
            single("nc", lambda c: parts(w.n, c.nr)),
            single("packing", lambda c: packings(w, c.mr, c.kc, c.ks), "packing of A"),
            single("unroll", lambda c: unrolls(c.kc) if _unrolls(c, w, core) else (4,)),
            single("prefetch", lambda _: (0, 1)),
            single("prefetch_bytes", distances),
            single("parallel", lambda c: GemmGeometry(w, c).parallel_loops(threads)),
        ),
    )


def _kernel(config: GemmConfig, workload: GemmWorkload, core: Core) -> Microkernel:
    return kernel_of(core, config.mr, config.nr, workload.types, config.ks)


def _unrolls(config: GemmConfig, workload: GemmWorkload, core: Core) -> bool:
    """Whether the k loop follows `unroll`."""
    kernel = _kernel(config, workload, core)
    return kernel.loads_a_vectors or not kernel.isa.lane_operand
