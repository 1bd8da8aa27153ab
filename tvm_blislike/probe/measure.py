"""Measure the present machine."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil

from tvm_blislike.hardware.cpus import usable_cpus
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.probe.board import BoardBench
from tvm_blislike.probe.disturbance import Watch
from tvm_blislike.probe.kernels import block_bytes
from tvm_blislike.probe.products import product_step
from tvm_blislike.probe.result import ProbeResult, result_of
from tvm_blislike.probe.rounds import LocalBench, best, rates
from tvm_blislike.probe.steps import fmas, memory_bytes_of, steps_of, stream
from tvm_blislike.runtime.runnable import require_runnable
from tvm_blislike.runtime.threads import use_threads

if TYPE_CHECKING:
    from tvm_blislike.hardware import Core
    from tvm_blislike.model.types import Types

# Seconds of a run and of all rounds: of the full probe and of the quick one.
FULL = (4e-3, 12.0)
_QUICK = (1e-3, 1.0)
_RUNS = 5
# What a board has to have; TVM's RPC does not tell what is free.
BOARD_MEMORY_BYTES = 1 << 30
_PEAK_SECONDS = 1.5e-3
_READ_SECONDS = 20e-3


def probe(
    core: Core, quick: bool = False, tick: Callable[[float], None] = lambda share: None
) -> ProbeResult:
    """Measure the machine this runs on.

    Parameters
    ----------
    core : Core
        Its description, usually `native_core()`.
    quick : bool
        In about a second instead of 12, with figures that vary more.
    tick : callable
        Called now and then with the share that is done.

    Raises
    ------
    TargetError
        When this machine cannot run the core's instructions.
    """
    require_runnable(core.target_config())
    watch = Watch()
    threads = _usable(core.cores)
    memory = memory_bytes_of(core, psutil.virtual_memory().available)
    bench = LocalBench(core, threads, memory)
    found = rates(bench, steps_of(core, threads, memory), *(_QUICK if quick else FULL), tick)
    result = result_of(core, threads, found, (*_memory_notes(core, memory), *watch.notes()))
    return dataclasses.replace(result, disturbance=watch.disturbance(result.spreads))


def probe_board(
    session: Any,
    core: Core,
    quick: bool = False,
    tick: Callable[[float], None] = lambda share: None,
) -> ProbeResult:
    """Measure a board that TVM's RPC reaches; its kernels are compiled and linked here.

    Parameters
    ----------
    session : tvm.rpc.RPCSession
        Of the board.
    core : Core
        The board's description, whose instructions it runs.
    quick, tick
        As of `probe`.

    Raises
    ------
    TargetError
        When the board cannot run the core's instructions.
    ToolchainError
        When there is nothing to link the kernels with for the board.
    """
    memory = memory_bytes_of(core, BOARD_MEMORY_BYTES)
    bench = BoardBench(session, core, core.cores, memory)
    steps = steps_of(core, core.cores, memory)
    found = rates(bench, steps, *(_QUICK if quick else FULL), tick)
    notes = ("measured on a board, on pages as small as its system gives",)
    return result_of(core, core.cores, found, (*notes, *_memory_notes(core, memory)))


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
    tasks = use_threads(threads)
    bench = LocalBench(core, tasks, block_bytes(core))
    return 2e-9 * core.lanes("float32") * best(bench, fmas(core, tasks), _PEAK_SECONDS, _RUNS)


def measure_peak_gops(core: Core, types: Types = FLOAT32, threads: int = 1) -> float:
    """Return the peak of products of some types of `threads` threads together, in about 10 ms.

    The kernel is compiled at the first call for a core and types.

    Parameters
    ----------
    core : Core
        Gives the micro-kernels and the LLVM target.
    types : Types
        Of the products; what no micro-kernel multiplies is judged by FMAs of fp32.
    threads : int
        Threads, which run in TVM's pool.

    Returns
    -------
    float
        1e9 operations per second, two per product.

    Raises
    ------
    TargetError
        When this machine cannot run the core's instructions.
    """
    require_runnable(core.target_config())
    tasks = use_threads(threads)
    products = None if types == FLOAT32 else product_step(core, types, tasks)
    if products is None:
        return measure_peak_gflops(core, threads)
    return 2e-9 * best(*products, _PEAK_SECONDS, _RUNS)


def read_bandwidth(core: Core, size_bytes: int) -> Callable[[int], float]:
    """Return a function that measures how fast a number of threads streams a block of memory.

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
    bench = LocalBench(core, len(usable_cpus()), max(size_bytes, block_bytes(core)))

    def measure(threads: int) -> float:
        tasks = use_threads(threads)
        return 1e-9 * best(bench, stream(core, size_bytes // tasks, tasks), _READ_SECONDS, _RUNS)

    return measure


def _usable(threads: int) -> int:
    """Return how many of some threads TVM's pool can use: it may have been started smaller."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return use_threads(threads)


def _memory_notes(core: Core, size: int) -> tuple[str, ...]:
    last = core.caches[-1] if core.caches else None
    if last is None or size >= 4 * last.bytes:
        return ()
    return (
        f"memory was read over {size >> 20} MiB, of which the level-{last.level} cache may hold"
        " a part",
    )
