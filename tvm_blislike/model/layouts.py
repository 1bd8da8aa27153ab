"""Image layouts: NCHW, NHWC and the blocked NCHWc, written as TVM writes them (`NCHW16c`).

Between layers only two are used: `NCHW{lanes}c` where the channels fill whole vectors, and `NHWC`
for any other number of channels (24, 57): one block of all channels, no padding in memory.
NCHW is what ONNX models take and return, and what first layers of few channels read directly.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_BLOCKED = re.compile(r"NCHW(\d+)c")


class Layout(str):
    """A layout by its name, which permutes shapes, arrays and indices of image batches.

    Indices may be integers or expressions of TVM. Where channels lie in blocks, an index or a shape
    has a fifth element, that within the block.
    """

    @classmethod
    def blocked(cls, lanes: int) -> Layout:
        """Return the layout with blocks of `lanes` channels."""
        return cls(f"NCHW{lanes}c")

    @classmethod
    def preferred(cls, channels: int, groups: int, lanes: int) -> Layout:
        """Return the layout of a tensor whose channels are cut into `groups` equal parts."""
        return cls.blocked(lanes) if channels // groups % lanes == 0 else cls("NHWC")

    @property
    def block(self) -> int:
        """Channels per block of a blocked layout, 0 for NCHW and NHWC.

        Raises
        ------
        ValueError
            When the layout is none of the three kinds.
        """
        return _block_of(str(self))

    @property
    def rank(self) -> int:
        """Number of axes in memory."""
        return 5 if self.block else 4

    @property
    def height_axis(self) -> int:
        """Position of the height; the width follows it."""
        return 1 if self == "NHWC" else 2

    @property
    def channel_axis(self) -> int:
        """Position of the channels, or of their blocks."""
        return 3 if self == "NHWC" else 1

    def ordered(self, n: Any, c: Any, y: Any, x: Any, *lane: Any) -> tuple[Any, ...]:
        """Return indices as they follow each other in memory; `c` counts blocks if it has any."""
        return (n, y, x, c) if self == "NHWC" else (n, c, y, x, *lane)

    def in_nchw(self, *index: Any) -> tuple[Any, ...]:
        """Return what `ordered` was given."""
        if self == "NHWC":
            n, y, x, c = index
            return n, c, y, x
        return index

    def index(self, n: Any, c: Any, y: Any, x: Any) -> tuple[Any, ...]:
        """Return where an element lies, `c` counting single channels."""
        if self.block:
            return self.ordered(n, c // self.block, y, x, c % self.block)
        return self.ordered(n, c, y, x)

    def element(self, *index: Any) -> tuple[Any, Any, Any, Any]:
        """Return (n, c, y, x) of what lies at an index."""
        n, c, y, x, *lane = self.in_nchw(*index)
        return n, c * self.block + lane[0] if lane else c, y, x

    def shape(self, n: int, c: int, h: int, w: int) -> tuple[int, ...]:
        """Return the shape of an image batch in this layout."""
        if self.block:
            return self.ordered(n, c // self.block, h, w, self.block)
        return self.ordered(n, c, h, w)

    def sizes(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """Return (n, c, h, w) of an image batch whose shape is given in this layout."""
        n, c, h, w, *block = self.in_nchw(*shape)
        return n, c * block[0] if block else c, h, w

    def packed(self, array: np.ndarray) -> np.ndarray:
        """Return an NCHW array in this layout, as a view where there is one."""
        n, c, h, w = array.shape
        if self.block:
            blocks = array.reshape(n, c // self.block, self.block, h, w)
            return blocks.transpose(0, 1, 3, 4, 2)
        return array.transpose(self.ordered(0, 1, 2, 3))

    def unpacked(self, array: np.ndarray) -> np.ndarray:
        """Return an array of this layout in NCHW, as a view where there is one."""
        if self.block:
            return array.transpose(0, 1, 4, 2, 3).reshape(self.sizes(array.shape))
        return array.transpose(self.in_nchw(0, 1, 2, 3))


@functools.cache
def _block_of(name: str) -> int:
    if name in ("NCHW", "NHWC"):
        return 0
    match = _BLOCKED.fullmatch(name)
    if match is None:
        raise ValueError(f"unknown image layout {name!r}; use NCHW, NHWC or NCHW<n>c")
    return int(match.group(1))


NCHW = Layout("NCHW")
NHWC = Layout("NHWC")


def with_rank(array: np.ndarray, rank: int) -> np.ndarray:
    """Return an array with axes of size 1 in front, so that it has `rank` axes."""
    return array.reshape((1,) * (rank - array.ndim) + array.shape)
