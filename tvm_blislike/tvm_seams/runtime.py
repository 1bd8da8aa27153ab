"""Threads, workspaces and caches of TVM's C runtime."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tvm_blislike.tvm_seams.loaded import function

# TVM's AffinityMode "one core per thread": worker i runs on the i-th CPU of the list only; and the
# one that takes the fastest cores first.
_ONE_CPU_PER_WORKER, _BIG_CORES = -2, 1
_CONFIGURE = "runtime.config_threadpool"
# Pages of the least piece of a workspace that is worth a search.
_LEAST_PAGES = 32
# Nobody has as many. Another allocator may round sizes up: then nothing looks new.
_MOST = 64
_CPU, _UINT8 = (1, 0), (1, 8)
_searches = threading.local()


def configure_pool(threads: int, cpus: Sequence[int]) -> int:
    """Configure the pool of the calling thread, starting it at need.

    Parameters
    ----------
    threads : int
        Workers to use, the calling thread included.
    cpus : sequence of int
        One for every worker there is: with a shorter list TVM would let the workers roam.

    Returns
    -------
    int
        The workers it now uses.
    """
    function(_CONFIGURE)(_ONE_CPU_PER_WORKER, threads, [str(cpu) for cpu in cpus])
    return int(function("runtime.NumThreads")())


def pool_of(session: Any) -> Callable[..., None]:
    """Return what configures the pool of a board; fails when its session is gone."""
    return session.get_function(_CONFIGURE)


def use_fastest_cores(session: Any, threads: int) -> None:
    """Let a board's process use its fastest cores, `threads` of them."""
    pool_of(session)(_BIG_CORES, threads)


def use_workers() -> None:
    """Have every worker that the calling thread uses do something, which is nothing."""
    program = ctypes.CDLL(None)
    # Any function that returns 0 and reads none of its arguments.
    program.TVMBackendParallelLaunch(program.sched_yield, None, 0)


def replace_workers() -> None:
    """End the workers of the calling thread's pool and start others: TVM's `ResetThreadPool`."""
    ctypes.CDLL(None)._ZN3tvm7runtime9threading15ResetThreadPoolEv()


def workspaces() -> list[tuple[int, int]]:
    """Return address and bytes of each piece in the calling thread's pool, of 128 KiB and more.

    The temporary memory of kernels comes from a pool of each thread. Its C interface lists no
    pool's contents, but whoever asks for memory gets the smallest piece that is large enough. So
    asking until TVM has to make a new one gives all pieces, smallest first; then all go back.

    A piece of just the size of the new one would end the search early. The new one stays in the
    pool; each search asks for two pages more than the one before, and TVM exchanges it. Empty where
    the C library does not tell the sizes of what it allocated.
    """
    program = ctypes.CDLL(None)
    try:
        allocate, free = program.TVMBackendAllocWorkspace, program.TVMBackendFreeWorkspace
        size_of = program.malloc_usable_size
    except AttributeError:
        return []
    allocate.restype = ctypes.c_void_p
    size_of.restype = ctypes.c_size_t
    # Kernels' pieces are rarely an odd number of pages.
    _searches.pages = pages = getattr(_searches, "pages", _LEAST_PAGES - 1) + 2
    size, new = ctypes.c_uint64(pages * mmap.PAGESIZE), (pages + 1) * mmap.PAGESIZE
    found: list[tuple[int, int]] = []
    while len(found) < _MOST and not (found and found[-1][1] < new):
        address = allocate(*_CPU, size, *_UINT8)
        found.append((address, size_of(ctypes.c_void_p(address))))
    for address, _ in reversed(found):
        free(*_CPU, ctypes.c_void_p(address))
    return found


def evictor() -> Callable[[Any], None]:
    """Return TVM's function that moves a tensor out of all caches."""
    every_but_first = function("cache_flush_cpu_non_first_arg")
    return lambda tensor: every_but_first(None, tensor)


def is_kernel(name: str) -> bool:
    """Return whether an instrument sees a call of a kernel, not of the virtual machine's own."""
    return not name.startswith("vm.builtin")
