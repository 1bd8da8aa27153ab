"""What holds for every estimate, whatever the algorithm."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import pytest
from effort import in_turn
from hypothesis import strategies as st

from tvm_blislike.cost_models.issue import LATENCY_SHARPNESS
from tvm_blislike.cost_models.roofline import clock_hz, fork_cycles
from tvm_blislike.hardware import Core, names
from tvm_blislike.microkernels import kernel_of
from tvm_blislike.model.config import Config
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.workload import Workload

CORES = [Core.named(name) for name in names()]


def _kind(core: Core) -> tuple:
    """Return what models tell cores apart by, but for sizes and rates."""
    pipeline = (core.in_order, core.fma_per_cycle, core.fma_latency, core.loads_per_cycle)
    policies = tuple(cache.policy for cache in core.caches)
    return core.isa.name, core.computes("float16"), *pipeline, policies


# One core of each kind: for tests that take a second for each.
KINDS = list({_kind(core): core for core in CORES}.values())
AVX512 = Core.named("sapphirerapids")


def on_every(cores: Sequence[Core]) -> pytest.MarkDecorator:
    """Give a test each of some cores, with one number of threads after the other."""
    cases = in_turn(cores, [1, 2, 4])
    ids = [f"{core.name}-{threads}" for core, threads in cases]
    return pytest.mark.parametrize("core, threads", cases, ids=ids)


def late(busy: float, latency: float) -> float:
    """Return the cycles of a step out of order, which FMAs and their latency both limit."""
    return (busy**LATENCY_SHARPNESS + latency**LATENCY_SHARPNESS) ** (1 / LATENCY_SHARPNESS)


def loads(rows: int, vectors: int) -> float:
    """Return the cycles that the loads of a step take from FMAs on `AVX512`."""
    return rows * AVX512.element_load_cycles + vectors * AVX512.vector_load_cycles


@st.composite
def cores(draw: st.DrawFn) -> Core:
    """Any described core; a third of the time with fewer caches than it has."""
    core = draw(st.sampled_from(CORES))
    levels = draw(st.sampled_from([len(core.caches)] * 4 + [1, 0]))
    return dataclasses.replace(core, caches=core.caches[:levels])


def check(estimate: Estimate, workload: Workload, core: Core, threads: int) -> None:
    """Raise AssertionError when an estimate contradicts itself or physics."""
    # A difference of two equal numbers may be rounded below zero.
    assert all(math.isfinite(c) and c >= -1e-3 for c in estimate.cycles.values()), estimate
    assert estimate.seconds == pytest.approx(sum(estimate.cycles.values()) / clock_hz(core))
    # Threads beyond the cores add no FMA units.
    cores = min(threads, core.cores)
    peak = core.lanes() * core.fma_per_cycle * clock_hz(core) * cores
    assert estimate.peak_fraction == pytest.approx(workload.macs / estimate.seconds / peak)
    assert 0 < estimate.peak_fraction <= 1
    for _, level, size, fraction in estimate.footprint:
        cache = core.cache(level)
        assert size > 0
        # Level 0 is memory; any other is one that the core has.
        assert (cache is None) == (level == 0)
        # Threads beyond the cores share even the caches that no other core sees.
        turns = math.ceil(threads / core.cores)
        share = cache.bytes // (min(cache.shared_by, cores) * turns) if cache else math.inf
        assert fraction == pytest.approx(size / share)


def check_all(
    implementation: Implementation, workload: Workload, core: Core, threads: int
) -> list[Config]:
    """Check every configuration on offer and its estimate; return them."""
    offered = list(implementation.configs(workload, core, threads))
    assert offered, f"nothing on offer for {workload} on {core.name}"
    assert len(set(offered)) == len(offered)
    for config in offered:
        assert config.implementation == implementation.name
        check(implementation.estimate(workload, config, core, threads), workload, core, threads)
        assert implementation.workspace_bytes(workload, config, threads) >= 0
    return offered


def odd_shapes(
    implementation: Implementation, workloads: Sequence[Workload], core: Core, threads: int
) -> Iterator[tuple[Workload, Config]]:
    """Yield every configuration of every workload, checked."""
    for workload in workloads:
        assert implementation.applies(workload, core) == ""
        for config in check_all(implementation, workload, core, threads):
            yield workload, config


def check_registers(config: Config, core: Core) -> None:
    """Raise AssertionError when the micro-kernel is not listed or exceeds the registers."""
    kernel = kernel_of(core, config.mr, config.nr)
    assert kernel.registers <= core.vector_registers


def fastest(
    implementation: Implementation, workload: Workload, core: Core, threads: int
) -> Estimate:
    """Return the estimate of the best configuration."""
    offered = implementation.configs(workload, core, threads)
    estimates = (implementation.estimate(workload, c, core, threads) for c in offered)
    return min(estimates, key=lambda estimate: estimate.seconds)


def doubled(workload: Workload, *sizes: str) -> Workload:
    """Return the workload with some of its sizes doubled."""
    return dataclasses.replace(workload, **{size: 2 * getattr(workload, size) for size in sizes})


def assert_more_work_takes_longer(
    implementation: Implementation, workload: Workload, more: Workload, core: Core
) -> None:
    """Compare the best predictions of one thread; 1 % is what a better fitting block may gain."""
    times = [fastest(implementation, w, core, 1).seconds for w in (workload, more)]
    assert times[1] >= 0.99 * times[0]


def assert_threads_cost_a_fork_at_most(one: Estimate, several: Estimate, core: Core) -> None:
    """Compare predictions for one thread and for several: two nests fork twice."""
    assert several.seconds <= one.seconds + 2 * fork_cycles(core) / clock_hz(core) + 1e-12
