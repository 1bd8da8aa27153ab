"""How many threads TVM's runtime uses, and on which CPUs.

TVM keeps one pool per calling thread. Its number of workers is fixed when the pool starts; later
calls can only use fewer. So the pool is started here with a worker for every CPU this process may
use, and each run then takes as many of them as it wants.

Each worker has a CPU of its own, the calling thread may run on all. Where it happens to be on that
of a worker both stay there, taking turns, whatever else is idle: Linux moves no thread that is
running, and only the worker, which it must not move, is seen to wait. ResNet-50 with two threads
took as long as with one, a hundred runs long. So a run begins on a CPU of no worker.

A forked process has none of the workers. TVM would wait for them in the next run, and, if they were
asleep, when the process ends. So they are awake when the calling thread forks, and it gets new ones
in the new process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import psutil

from tvm_blislike.hardware.cpus import Cpu, read_cpus, usable_cpus
from tvm_blislike.hardware.recognition import cores_of, in_order_of_use, threads_cpus

# Spins of an idle worker before it sleeps: TVM's default lasts for 0.1 s.
_SPINS, _FEW_SPINS = "TVM_THREAD_POOL_SPIN_COUNT", 100_000
_state = threading.local()


def cpus_by_use() -> list[int]:
    """Return the CPUs the calling thread may run on, in the order in which threads take them.

    One of each core first, and of unlike cores those that `hardware.native_core` describes.
    """
    return [cpu.number for cpu in in_order_of_use(_cpus(usable_cpus()))]


def default_threads() -> int:
    """Return the threads used when none are asked for.

    `TVM_NUM_THREADS` when set, else one per physical core that this process may use: a second
    hardware thread on a core adds no FMA unit. Where there are several kinds of core, it is one per
    core of the kind that does most together, and of faster ones: work is divided equally.
    """
    wanted = os.environ.get("TVM_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    cores = cores_of(threads_cpus(_cpus(usable_cpus())))
    # Systems other than Linux do not tell which CPUs are threads of one core.
    return max(1, min(cores, psutil.cpu_count(logical=False) or cores))


@functools.cache
def _cpus(usable: tuple[int, ...]) -> tuple[Cpu, ...]:
    return read_cpus(usable, with_caches=False)


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
        CPUs, when TVM's pool was started smaller before, or in a forked process whose workers could
        not be replaced. Waiting workers spin, so sharing a CPU would cost more than it gains.

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
    if _state.used > 1:
        _leave(_state.cpus[1 : _state.used])
    return _state.used


def _leave(workers: list[int]) -> None:
    """Move the calling thread away from the CPUs of workers, unless it may run on no others."""
    if _current_cpu() not in workers:
        return
    others = set(usable_cpus()) - set(workers)
    if others:
        with _same_affinity():
            os.sched_setaffinity(0, others)


def _current_cpu() -> int:
    """Return the CPU that the calling thread runs on, -1 where the system does not tell."""
    return _get_cpu()() if sys.platform == "linux" else -1


@functools.cache
def _get_cpu() -> Callable[[], int]:
    return ctypes.CDLL(None).sched_getcpu


def _start_or_resize_pool(threads: int) -> int:
    """Return the number of workers that TVM's pool uses after asking it for `threads`."""
    if getattr(_state, "is_alone", False):
        return _alone(threads)
    if not hasattr(_state, "cpus"):
        _state.cpus = cpus_by_use()
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


def _alone(threads: int) -> int:
    if threads > 1:
        warnings.warn(
            f"1 instead of {threads} threads: this process was forked from one that had run a "
            "model; start processes with the method 'spawn'",
            RuntimeWarning,
            stacklevel=5,
        )
    return 1


def _configure(threads: int) -> int:
    """Configure the pool (starting it at need) and return the workers it now uses."""
    from tvm_blislike.tvm_seams import runtime

    with _same_affinity():
        return runtime.configure_pool(threads, _state.cpus)


@contextlib.contextmanager
def _same_affinity() -> Iterator[None]:
    """Put back the CPUs of the calling thread when something has set them."""
    cpus = usable_cpus()
    try:
        yield
    finally:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cpus)


def _before_fork() -> None:
    """Wake the calling thread's workers: none then waits for what only TVM's destructors end."""
    _state.replaces = False
    if hasattr(_state, "cpus") and _can_replace_workers():
        from tvm_blislike.tvm_seams import runtime

        _configure(len(_state.cpus))
        runtime.use_workers()
        _state.replaces = True


def _after_fork_in_parent() -> None:
    if _state.replaces:
        _configure(getattr(_state, "used", len(_state.cpus)))


def _after_fork_in_child() -> None:
    """Replace the workers at once: a thread started before may lie where one of them lay."""
    if not hasattr(_state, "cpus"):
        return
    if _state.replaces:
        from tvm_blislike.tvm_seams import runtime

        with _same_affinity():
            runtime.replace_workers()
    else:
        _state.is_alone = True
        _configure(1)
    # The new process may get other CPUs.
    del _state.cpus
    _state.asked = None


def _can_replace_workers() -> bool:
    """Whether lost workers count as ended, as for glibc, and those woken up stay awake a while."""
    spins = os.environ.get(_SPINS, "")
    return sys.platform == "linux" and (not spins.isdigit() or int(spins) >= _FEW_SPINS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
