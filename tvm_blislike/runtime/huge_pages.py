"""A model's memory on huge pages (Linux).

Weights, images and workspaces lie on pages of 4 KiB. A core's second-level TLB maps 8 MiB of them,
and in which sets of the second-level cache they fall is luck. On pages of 2 MiB neither is a limit:
ResNet-18 gains 4 to 9 % on Sapphire Rapids in a virtual machine, ResNet-50 and MobileNet-v2 3 to
5 %, and as much as a process whose whole heap is on huge pages. Where the kernel gives huge pages
only to those who ask ("madvise", the usual setting), nobody asks for memory of TVM's allocator. So
after the first run of a model the blocks of 2 MiB that hold its tensors and the workspaces of the
calling thread, and those that filled during this run, are moved onto huge pages, once.

Left on small pages: workspaces of TVM's worker threads whose heaps are smaller than 2 MiB.

`TVM_BLISLIKE_HUGE_PAGES=0` in the environment turns it off.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tvm_blislike.hardware.switches import is_on
from tvm_blislike.runtime.instruments import Instrument, attached

_SIZE_FILE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
# 32 MiB and more where pages are larger than 4 KiB.
HUGE_BYTES = int(_SIZE_FILE.read_text()) if _SIZE_FILE.exists() else 2 << 20
_PAGES = HUGE_BYTES // mmap.PAGESIZE
# madvise's request to move a range onto huge pages now (Linux 6.1); Python's mmap has no name for
# it yet.
_MADV_COLLAPSE = 25
# Blocks with fewer pages in use stay: a huge page would waste memory.
_LEAST_FILLED = 0.5


@contextlib.contextmanager
def moved(machine: Any, instrument: Instrument | None = None) -> Iterator[None]:
    """Move what a run of a virtual machine inside this context uses onto huge pages.

    Parameters
    ----------
    machine : tvm.relax.VirtualMachine
        Without an instrument: the context uses one.
    instrument : callable, optional
        Watches the machine, too.
    """
    if not is_wanted():
        with attached(machine, instrument) if instrument else contextlib.nullcontext():
            yield
        return
    from tvm_blislike.tvm_seams import runtime

    before, tensors = filled_blocks(), _TensorBlocks(runtime.is_kernel)
    with attached(machine, *filter(None, (tensors, instrument))):
        yield
    after = filled_blocks()
    used = tensors.blocks.union(*(_blocks_of(*piece) for piece in runtime.workspaces()))
    collapse(block for block in after if block in used or block not in before)


def is_wanted() -> bool:
    """Return whether this system can move memory and the user did not turn it off."""
    return _SIZE_FILE.exists() and is_on("TVM_BLISLIKE_HUGE_PAGES")


def collapse(blocks: Iterable[int]) -> None:
    """Move blocks of this process's memory onto huge pages, as far as the system can.

    Parameters
    ----------
    blocks : iterable of int
        Addresses divided by `HUGE_BYTES`.
    """
    madvise = _libc().madvise
    for start, end in _runs(blocks):
        address = ctypes.c_void_p(start * HUGE_BYTES)
        length = ctypes.c_size_t((end - start) * HUGE_BYTES)
        # Mappings that differ in nothing but this advice become one, and blocks may lie across
        # their border: numpy gives it for large arrays, wherever in the heap they begin and end.
        madvise(address, length, mmap.MADV_HUGEPAGE)
        if madvise(address, length, _MADV_COLLAPSE):
            # One block that cannot be moved shall not keep the others.
            for block in range(start, end):
                address = ctypes.c_void_p(block * HUGE_BYTES)
                madvise(address, ctypes.c_size_t(HUGE_BYTES), _MADV_COLLAPSE)


def on_huge_pages(tensor: Any) -> None:
    """Let the memory of a large tensor that nobody wrote yet come from huge pages, if wanted."""
    if is_wanted():
        start = tensor.data_ptr()
        whole = _whole_blocks(start, start + bytes_of(tensor))
        address = ctypes.c_void_p(whole.start * HUGE_BYTES)
        length = ctypes.c_size_t(len(whole) * HUGE_BYTES)
        _libc().madvise(address, length, mmap.MADV_HUGEPAGE)


def _runs(blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield first block and end of each run of blocks that follow one another."""
    numbers = np.array(sorted(blocks), np.int64)
    for run in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1):
        if run.size:
            yield int(run[0]), int(run[-1]) + 1


class _TensorBlocks:
    """Instrument of TVM's virtual machine that collects the blocks of its kernels' arguments."""

    def __init__(self, is_kernel: Callable[[str], bool]) -> None:
        self.blocks: set[int] = set()
        self._is_kernel = is_kernel

    def __call__(self, func: Any, name: str, before: bool, result: Any, *args: Any) -> int:
        if before and self._is_kernel(name):
            for arg in args:
                if hasattr(arg, "data_ptr"):
                    self.blocks.update(_blocks_of(arg.data_ptr(), bytes_of(arg)))
        return 0


def bytes_of(tensor: Any) -> int:
    """Return the bytes of a tensor of TVM."""
    return int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(str(tensor.dtype)).itemsize


def _blocks_of(address: int, size: int) -> range:
    """Return the blocks that hold a part of some memory."""
    return range(address // HUGE_BYTES, -(-(address + size) // HUGE_BYTES))


def _whole_blocks(start: int, end: int) -> range:
    """Return the blocks that lie between two addresses."""
    return range(-(-start // HUGE_BYTES), end // HUGE_BYTES)


def filled_blocks() -> set[int]:
    """Return the blocks of private anonymous memory whose pages are in use, most of them."""
    return {block for whole in _anonymous() for block in _filled(whole.start, whole.stop)}


def _anonymous() -> Iterator[range]:
    """Yield ranges of whole blocks in memory that is writable and of no file.

    Mappings that follow one another count as one.
    """
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
        lines = [line.split() for line in file]
    start = end = 0
    for addresses, access, _, _, inode, *_ in lines:
        if access == "rw-p" and inode == "0":
            first, behind = (int(text, 16) for text in addresses.split("-"))
            if first != end:
                yield _whole_blocks(start, end)
                start = first
            end = behind
    yield _whole_blocks(start, end)


def _filled(start: int, end: int) -> Iterator[int]:
    """Yield the blocks of a range in which enough pages are in memory."""
    if end <= start:
        return
    pages = np.zeros((end - start) * _PAGES, np.uint8)
    address = ctypes.c_void_p(start * HUGE_BYTES)
    length = ctypes.c_size_t((end - start) * HUGE_BYTES)
    if _libc().mincore(address, length, pages.ctypes.data_as(ctypes.c_void_p)):
        return
    share = (pages & 1).reshape(-1, _PAGES).mean(axis=1)
    yield from (start + int(i) for i in np.flatnonzero(share >= _LEAST_FILLED))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
