"""How many threads TVM's runtime uses, and on which CPUs.

TVM keeps one pool per calling thread. Its number of workers is fixed when the pool starts; later
calls can only use fewer. So the pool is started here with a worker for every CPU this process may
use, and each run then takes as many of them as it wants.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator

import psutil

# tvm's AffinityMode "one core per thread": worker i runs on the i-th CPU of the list only.
_ONE_CPU_PER_WORKER = -2
_state = threading.local()


def available_cpus() -> list[int]:
    """Return the CPUs the calling thread may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def default_threads() -> int:
    """Return the threads used when none are asked for.

    `TVM_NUM_THREADS` when set, else one per physical core that this process may use: a second
    hardware thread on a core adds no FMA unit.
    """
    wanted = os.environ.get("TVM_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    usable = len(available_cpus())
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def use_threads(threads: int) -> int:
    """Let TVM calls of the calling Python thread use `threads` threads from now on.

    Parameters
    ----------
    threads : int
        At least 1.

    Returns
    -------
    int
        The threads that will be used: fewer than asked for, with a warning, when there are fewer
        CPUs or when TVM's pool was started smaller before. Waiting workers spin, so sharing a CPU
        would cost more than it gains.

    Raises
    ------
    ValueError
        When `threads` is less than 1.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    if getattr(_state, "asked", None) != threads:
        _state.used = _start_or_resize_pool(threads)
        _state.asked = threads
    return _state.used


def _start_or_resize_pool(threads: int) -> int:
    """Return the number of workers that TVM's pool uses after asking it for `threads`."""
    if not hasattr(_state, "cpus"):
        _state.cpus = available_cpus()
        _configure(len(_state.cpus))
    used = _configure(min(threads, len(_state.cpus)))
    if used < threads:
        warnings.warn(
            f"{used} instead of {threads} threads: {len(_state.cpus)} CPUs are usable and TVM's "
            f"thread pool has {used} workers",
            RuntimeWarning,
            stacklevel=4,
        )
    return used


def _configure(threads: int) -> int:
    """Configure the pool (starting it at need) and return the workers it now uses."""
    import tvm

    configure = tvm.get_global_func("runtime.config_threadpool")
    with _same_affinity():
        # The list has a CPU for every worker: with a shorter one TVM would let the workers roam.
        configure(_ONE_CPU_PER_WORKER, threads, [str(cpu) for cpu in _state.cpus])
    return int(tvm.get_global_func("runtime.NumThreads")())


@contextlib.contextmanager
def _same_affinity() -> Iterator[None]:
    """Put back the CPUs of the calling thread, which TVM sets to those of the pool."""
    cpus = available_cpus()
    yield
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
