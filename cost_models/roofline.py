"""Predicted time of a (workload, config, core): issue, cache traffic, edges, packing added up.

A layer's time is what its micro-kernel calls take when the vector units limit (`issue`), stretched
where a cache level cannot deliver the operands in time (`moving`), plus what lies outside the k
loop. All terms are in cycles of one core until the end; `Estimate.seconds` divides by the clock.
"""

from __future__ import annotations

from tvm_blislike.cost_models.issue import macs_per_lane
from tvm_blislike.hardware import Core
from tvm_blislike.model.estimate import NEIGHBOURS, Estimate, Placed
from tvm_blislike.model.workload import Workload

# Of a breakdown: what threads wait for each other where several run on a core.
SHARED_CORES = "shared cores"
# What sums in another order may differ by.
ROUNDED_DOWN = 1 - 1e-12


def clock_hz(core: Core) -> float:
    """Return the clock to assume, in Hz."""
    return core.ghz * 1e9


def kernel_seconds(estimate: Estimate, core: Core) -> float:
    """Return the predicted time of the kernel by itself, in seconds."""
    return estimate.seconds - estimate.cycles.get(NEIGHBOURS, 0.0) / clock_hz(core)


def fork_cycles(core: Core) -> float:
    """Return the cycles to hand work to the other threads and wait for them."""
    return core.fork_join_us * 1e-6 * clock_hz(core)


def finish(
    core: Core,
    threads: int,
    workload: Workload,
    cycles: dict[str, float],
    footprint: tuple[Placed, ...] = (),
) -> Estimate:
    """Add up a breakdown (cycles of one thread with a core of its own) into an estimate.

    Threads beyond the cores share the units of a core: each takes as much longer.
    """
    cores = min(threads, core.cores)
    if threads > cores:
        cycles = {**cycles, SHARED_CORES: sum(cycles.values()) * (threads / cores - 1)}
    seconds = sum(cycles.values()) / clock_hz(core)
    peak_fraction = peak_seconds(workload, core, threads) / seconds
    return Estimate(seconds, peak_fraction, cycles, footprint)


def peak_seconds(workload: Workload, core: Core, threads: int) -> float:
    """Return the time of nothing but the FMAs of a workload, each core starting all it can."""
    cores = min(threads, core.cores)
    starts = core.lanes(workload.types.acc) * core.fma_per_cycle * clock_hz(core) * cores
    return workload.macs / (starts * macs_per_lane(core, workload.types))
