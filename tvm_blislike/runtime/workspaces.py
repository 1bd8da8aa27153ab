"""Where the temporary memory of kernels lies.

TVM keeps a pool of it for each thread. Its C interface lists no pool's contents, but whoever asks
for memory gets the smallest piece that is large enough. So asking until TVM has to make a new one
gives all pieces, smallest first; then all go back.
"""

from __future__ import annotations

import ctypes
import mmap
import threading

# Pages of the least piece that is worth a search.
_LEAST_PAGES = 32
# Nobody has as many. Another allocator may round sizes up: then nothing looks new.
_MOST = 64
_CPU, _UINT8 = (1, 0), (1, 8)
_searches = threading.local()


def of_this_thread() -> list[tuple[int, int]]:
    """Return address and bytes of each piece in the calling thread's pool, of 128 KiB and more.

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
