"""Register blocks inside the loops of a matrix product, for what LLVM makes of them."""

from __future__ import annotations

from collections.abc import Iterator

from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.cost_models.gemm.geometry import B_OUTSIDE, asks_ahead, packings
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.microkernels.spills import block_name, in_doubt
from tvm_blislike.model.nest import Nest
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import GemmWorkload

NEST = "gemm"
_DEPTH = 256


def nests(core: Core, types: Types) -> Iterator[Nest]:
    """Yield the blocks in doubt, with A read in place and packed."""
    for kernel in in_doubt(kernels_for(core, types)):
        workload = GemmWorkload(4 * kernel.mr, 4 * kernel.nr, _DEPTH, types=types)
        config = GemmConfig(
            mr=kernel.mr,
            nr=kernel.nr,
            ks=kernel.ks,
            mc=2 * kernel.mr,
            nc=2 * kernel.nr,
            kc=_DEPTH,
            loop_order=B_OUTSIDE,
            prefetch=int(asks_ahead(kernel)),
        )
        for packing in packings(workload, kernel.mr, _DEPTH, kernel.ks):
            read = config.with_fields(packing=packing)
            yield Nest(NEST, block_name(kernel), workload, read, kernel.mr * kernel.vectors)
