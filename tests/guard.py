"""Arrays that end, or begin, at a page that may not be touched."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_PAGE = mmap.PAGESIZE
_NO_ACCESS = 0
_libc = ctypes.CDLL(None, use_errno=True)


class GuardedArrays:
    """Makes arrays whose neighbouring pages raise SIGSEGV on any access.

    TVM wants data pointers aligned to 64 bytes, so an array at the end of its pages may leave up
    to 63 bytes behind it: these hold a pattern that `check` looks at.
    """

    _PATTERN = 0x5A

    def __init__(self) -> None:
        self._maps: list[tuple[mmap.mmap, np.ndarray]] = []

    def at_end(self, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """Return an array whose last byte is as close to the forbidden page as alignment allows."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        pages = -(-size // _PAGE)
        memory, base = self._map(pages)
        offset = (pages * _PAGE - size) // 64 * 64
        whole = np.frombuffer(memory, np.uint8, pages * _PAGE, _PAGE)
        whole[:] = self._PATTERN
        self._maps.append((memory, whole[offset + size :]))
        del base
        return whole[offset : offset + size].view(dtype).reshape(shape)

    def at_start(self, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """Return an array that begins right behind a forbidden page."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        pages = -(-size // _PAGE)
        memory, _ = self._map(pages)
        whole = np.frombuffer(memory, np.uint8, pages * _PAGE, _PAGE)
        whole[:] = self._PATTERN
        self._maps.append((memory, whole[size:]))
        return whole[:size].view(dtype).reshape(shape)

    def check(self) -> None:
        """Raise AssertionError when the bytes around an array were written to."""
        for _, rest in self._maps:
            assert (rest == self._PATTERN).all(), "written beyond the end of an array"

    def _map(self, pages: int) -> tuple[mmap.mmap, int]:
        memory = mmap.mmap(-1, (pages + 2) * _PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for page in (base, base + (pages + 1) * _PAGE):
            if _libc.mprotect(ctypes.c_void_p(page), _PAGE, _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect failed")
        return memory, base
