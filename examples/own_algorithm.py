"""Add an algorithm to the library's: products of a single step of k, with nothing to sum or pack.

python examples/own_algorithm.py      (the contract is in tvm_blislike/model/registry.py)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import s_tir, te

from tvm_blislike import Config, Core, GemmWorkload, native_core, register_implementation
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models import moving, roofline
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.registry import Template
from tvm_blislike.schedules.common import fuse_epilogue


@dataclass(frozen=True, kw_only=True)
class OuterConfig(Config):
    """Blocks of mr rows by nr columns; `outside` is the outer loop, "rows" or "columns"."""

    implementation: str = "gemm_outer"
    outside: str = "rows"


def applies(w: GemmWorkload, core: Core) -> str:
    """Return "" for what it can compute, else why not."""
    is_outer = w.k == w.batch == 1 and w.types.is_uniform and w.n % core.lanes(w.types.acc) == 0
    return "" if is_outer else "not one product of one step, in whole vectors"


def configs(w: GemmWorkload, core: Core, _threads: int) -> Iterator[OuterConfig]:
    """Yield all there is."""
    for mr in (mr for mr in (1, 2, 4) if w.m % mr == 0):
        for outside in ("rows", "columns"):
            yield OuterConfig(mr=mr, nr=core.lanes(w.types.acc), outside=outside)


def estimate(w: GemmWorkload, config: OuterConfig, core: Core, threads: int) -> Estimate:
    """Predict that C is written at the speed of the level that holds it, B read once per block."""
    size = w.types.out_bytes * w.m * w.n
    time = size / moving.bytes_per_cycle(core, moving.level_holding(core, size, threads)) / threads
    return roofline.finish(core, threads, w, {"stores": time, "loads": time / config.mr / 2})


def schedule(
    sch: s_tir.Schedule, _w: GemmWorkload, config: OuterConfig, _core: Core, threads: int
) -> None:
    """Cut C, and what is fused behind it, into blocks."""
    i, j = sch.get_loops(fuse_epilogue(sch))
    (io, ii), (jo, lane) = sch.split(i, [None, config.mr]), sch.split(j, [None, config.nr])
    outer = [io, jo] if config.outside == "rows" else [jo, io]
    sch.reorder(*outer, ii, lane)
    sch.vectorize(lane)
    if threads > 1:
        sch.parallel(outer[0])


OUTER = Template(
    name="gemm_outer",
    kind="gemm",
    config_type=OuterConfig,
    applies=applies,
    configs=configs,
    estimate=estimate,
    workspace_bytes=lambda *_: 0,
    pack=lambda _w, _config, b: b,
    pack_te=lambda _w, _config, b: te.compute(b.shape, lambda *at: b(*at), name="packed"),
    compute=lambda w, _config, a, b: te.compute((w.m, w.n), lambda i, j: a[i, 0] * b[0, j]),
    schedule=schedule,
)

if __name__ == "__main__":
    register_implementation(OUTER)
    choice = Strategy(native_core(), threads=1).choose(GemmWorkload(256, 512, 1))
    print(f"{choice.config}: {1e3 * choice.seconds:.4f} ms, {choice.reason}")
