"""Measure the present machine: FMA peak, clock, and read bandwidth of each level.

Every figure is the fastest of several short runs: whatever else the machine does only slows them.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from tvm_blislike.inspect.probe_kernels import (
    CHAIN_PAIRS,
    FMA_ROUNDS,
    READ_ACCUMULATORS,
    Kernels,
    kernels,
)
from tvm_blislike.runtime.runnable import require_runnable
from tvm_blislike.runtime.threads import default_threads, use_threads

if TYPE_CHECKING:
    from tvm_blislike.hardware import Core

_RUNS = 5
_FMA_SECONDS = 1.5e-3
_CHAIN_SECONDS = 0.5e-3
_READ_SECONDS = 20e-3
# A level is read over half its size, but over no more than this many times the level before,
# which is all that is needed to miss that one: less to share with other guests of a machine.
_TIMES_LEVEL_BEFORE = 8
_MEMORY_BYTES = 256 << 20
_MEMORY_BYTES_AT_MOST = 1 << 30
# Assumptions of `native_core()` that a measurement replaces, as its notes begin or read.
_SETTLED = ("clock unknown", "FMA per cycle assumed", "memory bandwidth assumed")


@dataclass(frozen=True)
class ProbeResult:
    """What was measured.

    Parameters
    ----------
    core : Core
        The core as described before measuring.
    threads : int
        Threads of the `_all` figures: one per usable physical core.
    peak_gflops, peak_gflops_all : float
        fp32 FMA peak of one thread and of all, 1e9 operations (two per lane and FMA) per second.
    bandwidth_gb_per_s : mapping of str to float
        Read bandwidth of one core by level ("L1", "L2", "L3", "memory"), 1e9 bytes per second.
    memory_gb_per_s_all : float
        Read bandwidth of memory with all threads.
    ghz : float
        Clock, from dependent integer operations of one cycle each, by turns with FMAs.
    fma_per_cycle : float
        Full-width FMAs per cycle of that clock, to the nearest half.
    notes : tuple of str
        Under which conditions.
    """

    core: Core
    threads: int
    peak_gflops: float
    peak_gflops_all: float
    bandwidth_gb_per_s: Mapping[str, float]
    memory_gb_per_s_all: float
    ghz: float
    fma_per_cycle: float
    notes: tuple[str, ...] = ()

    def to_core(self) -> Core:
        """Return the core with what was measured; its clock is the one of the FMA peak.

        `Core.peak_gflops` then is the measured peak of one thread.
        """
        kept = [n for n in self.core.notes if not any(phrase in n for phrase in _SETTLED)]
        per_ghz = 2 * self.core.lanes("float32") * self.fma_per_cycle
        return dataclasses.replace(
            self.core,
            name=self.core.name.replace("native-", "probed-"),
            source=(*self.core.source, "tvm-blislike probe"),
            fma_per_cycle=self.fma_per_cycle,
            ghz=round(self.peak_gflops / per_ghz, 3),
            memory_gb_per_s=round(self.memory_gb_per_s_all, 1),
            notes=(*kept, *self.notes, *self._measured()),
        )

    def _measured(self) -> tuple[str, ...]:
        speeds = ", ".join(
            f"{level} {speed:.4g}" for level, speed in self.bandwidth_gb_per_s.items()
        )
        return (
            f"measured FMA peak: {self.peak_gflops:.4g} GFLOPS with 1 thread, "
            f"{self.peak_gflops_all:.4g} with {self.threads}",
            f"measured clock of integer operations: {self.ghz:.3g} GHz",
            f"measured read bandwidth of one core, GB/s: {speeds}",
            f"memory bandwidth measured by reading with {self.threads} threads",
        )


def measure_peak_gflops(core: Core, threads: int = 1) -> float:
    """Return the fp32 FMA peak of `threads` threads together, in about 10 ms.

    The kernel is compiled at the first call for a core.

    Parameters
    ----------
    core : Core
        Gives vector width, registers and LLVM target.
    threads : int
        Threads, which run in TVM's pool.

    Returns
    -------
    float
        1e9 operations per second, two per lane and FMA.

    Raises
    ------
    TargetError
        When this machine cannot run the core's instructions.
    """
    require_runnable(core.target_config())
    return _fma_gflops(core, use_threads(threads))


def read_bandwidth(core: Core, size_bytes: int) -> Callable[[int], float]:
    """Return a function that measures how fast a number of threads reads a block of memory.

    Parameters
    ----------
    core : Core
        Gives vector width and LLVM target.
    size_bytes : int
        The same bytes are read again and again: choose what you compare with.

    Returns
    -------
    callable
        Threads to 1e9 bytes per second, all threads together.

    Raises
    ------
    TargetError
        When this machine cannot run the core's instructions.
    """
    require_runnable(core.target_config())
    data = _data(core, size_bytes)
    return lambda threads: _read_gb_per_s(core, data, size_bytes, threads)


def probe(core: Core, progress: Callable[[str], None] = lambda text: None) -> ProbeResult:
    """Measure the machine this runs on.

    Parameters
    ----------
    core : Core
        Its description, usually `native_core()`.
    progress : callable
        Called before each measurement with what comes next.

    Raises
    ------
    TargetError
        When this machine cannot run the core's instructions.
    """
    progress("FMA peak")
    threads = min(core.cores, default_threads())
    peak_all = measure_peak_gflops(core, threads)
    peak = measure_peak_gflops(core)
    progress("clock")
    ghz, fma_per_cycle = _clock(core)
    sizes = _working_sets(core)
    data = _data(core, sizes["memory"])
    bandwidth = {}
    for level, size in sizes.items():
        progress(f"bandwidth of {level}")
        bandwidth[level] = _read_gb_per_s(core, data, size, 1)
    progress("bandwidth of memory, all threads")
    memory_all = _read_gb_per_s(core, data, sizes["memory"], threads)
    return ProbeResult(
        core,
        threads,
        peak,
        peak_all,
        bandwidth,
        memory_all,
        ghz,
        max(round(fma_per_cycle * 2), 1) / 2,
        _memory_notes(core, sizes["memory"]),
    )


def _fma_gflops(core: Core, tasks: int, runs: int = _RUNS) -> float:
    k = kernels(core)
    state = _state("float32", tasks, k.accumulators, k.lanes)
    # The described clock is near enough for the length of a run.
    fmas = _FMA_SECONDS * (core.ghz or 2.0) * 1e9 * core.fma_per_cycle
    steps = math.ceil(fmas / (FMA_ROUNDS * k.accumulators))
    seconds = _fastest(lambda: k.fma(state, tasks, steps), runs)
    return 2e-9 * k.lanes * k.accumulators * FMA_ROUNDS * steps * tasks / seconds


def _clock(core: Core, rounds: int = 10) -> tuple[float, float]:
    """Return the clock in GHz and FMAs per cycle, by turns: wide vectors may lower the clock."""
    k = kernels(core)
    state = _state("int32", 1, 1, 3)
    steps = math.ceil(_CHAIN_SECONDS * (core.ghz or 2.0) * 1e9 / (2 * CHAIN_PAIRS))
    use_threads(1)
    gflops, seconds = [], []
    for _ in range(rounds):
        gflops.append(_fma_gflops(core, 1, runs=1))
        seconds.append(_fastest(lambda: k.chain(state, 1, steps), runs=1))
    ghz = 2e-9 * CHAIN_PAIRS * steps / min(seconds)
    return ghz, max(gflops) / (2 * k.lanes * ghz)


def _working_sets(core: Core) -> dict[str, int]:
    """Return the bytes to read for each cache level and for memory."""
    sizes: dict[str, int] = {}
    before = None
    for cache in core.caches:
        at_most = _TIMES_LEVEL_BEFORE * before if before else cache.bytes
        sizes[f"L{cache.level}"] = min(cache.bytes // 2, at_most)
        before = cache.bytes
    wanted = max(_MEMORY_BYTES, 4 * (before or 0))
    sizes["memory"] = min(wanted, _MEMORY_BYTES_AT_MOST, psutil.virtual_memory().available // 4)
    return sizes


def _memory_notes(core: Core, size: int) -> tuple[str, ...]:
    last = core.caches[-1] if core.caches else None
    if last is None or size >= 4 * last.bytes:
        return ()
    return (
        f"memory was read over {size >> 20} MiB, of which the level-{last.level} cache may hold"
        " a part",
    )


def _data(core: Core, size: int) -> Any:
    """Return `size` bytes of memory in blocks of the read kernel, every page touched."""
    import tvm

    k = kernels(core)
    steps = _blocks(k, size)
    rows = k.block_bytes // (4 * k.lanes)
    data = tvm.runtime.empty((steps, rows, k.lanes), "int32")
    k.fill(data, steps)
    return data


def _read_gb_per_s(core: Core, data: Any, size: int, threads: int) -> float:
    """Return the bandwidth of reading the first `size` bytes, a piece for each thread."""
    k = kernels(core)
    tasks = use_threads(threads)
    steps = max(_blocks(k, size) // tasks, 1)
    state = _state("int32", tasks, READ_ACCUMULATORS, k.lanes)
    once = _fastest(lambda: k.read(data, state, tasks, steps, 1), runs=1)
    repeats = max(1, int(_READ_SECONDS / once))
    seconds = _fastest(lambda: k.read(data, state, tasks, steps, repeats), _RUNS)
    return 1e-9 * k.block_bytes * steps * tasks * repeats / seconds


def _blocks(k: Kernels, size: int) -> int:
    return max(size // k.block_bytes, 1)


def _state(dtype: str, *shape: int) -> Any:
    """Return what a kernel works on; small numbers, none of them subnormal."""
    import tvm

    return tvm.runtime.tensor(np.full(shape, 0.5 if dtype == "float32" else 3, dtype))


def _fastest(run: Callable[[], None], runs: int) -> float:
    """Return the least seconds of `runs` runs, after one that wakes pool, clock and caches."""
    run()
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
