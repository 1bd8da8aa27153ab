"""Every configuration of a product by seven of half the size."""

from __future__ import annotations

from tvm_blislike.cost_models.gemm_strassen.candidates import kernels
from tvm_blislike.cost_models.gemm_strassen.config import LOOP_ORDERS, StrassenConfig
from tvm_blislike.cost_models.gemm_strassen.geometry import StrassenGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel
from tvm_blislike.model.space import Axis, Space, even_parts, single, unrolls
from tvm_blislike.model.workload import GemmWorkload


def space(workload: GemmWorkload, core: Core, threads: int) -> Space:
    """Return the choices of `gemm_strassen`: block of registers, order, blocks, prefetching."""
    w = workload

    def blocks(c: StrassenConfig) -> list[int]:
        return [tiles * c.mr for tiles in even_parts(StrassenGeometry(w, c).tiles_m)]

    def parts(c: StrassenConfig) -> list[int]:
        panels = StrassenGeometry(w, c).tiles_n
        return [0, *(panels // n * c.nr for n in range(2, threads + 1) if panels % n == 0)]

    return Space(
        StrassenConfig(),
        (
            Axis("block", ("mr", "nr", "ks"), lambda _: [_block(k) for k in kernels(w, core)]),
            single("loop_order", lambda _: LOOP_ORDERS),
            single("mc", blocks),
            single("nc", parts),
            single("unroll", lambda _: unrolls(w.k // 2)),
            single("prefetch", lambda _: (0, 1)),
        ),
    )


def _block(kernel: Microkernel) -> tuple[int, int, int]:
    return kernel.mr, kernel.nr, kernel.ks
