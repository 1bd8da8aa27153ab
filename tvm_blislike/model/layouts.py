"""Image layouts: NCHW, NHWC and the blocked NCHWc, written as TVM writes them (`NCHW16c`).

Between layers only two are used: `NCHW{lanes}c` where the channels fill whole vectors, and `NHWC`
for any other number of channels (24, 57): one block of all channels, no padding in memory.
NCHW is what ONNX models take and return, and what first layers of few channels read directly.
"""

from __future__ import annotations

import re

_BLOCKED = re.compile(r"NCHW(\d+)c")


def blocked(lanes: int) -> str:
    """Return the name of the layout with blocks of `lanes` channels."""
    return f"NCHW{lanes}c"


def block_of(layout: str) -> int:
    """Return the channels per block of a blocked layout, 0 for NCHW and NHWC.

    Raises
    ------
    ValueError
        When the layout is none of the three kinds.
    """
    if layout in ("NCHW", "NHWC"):
        return 0
    match = _BLOCKED.fullmatch(layout)
    if match is None:
        raise ValueError(f"unknown image layout {layout!r}; use NCHW, NHWC or NCHW<n>c")
    return int(match.group(1))


def preferred(channels: int, groups: int, lanes: int) -> str:
    """Return the layout of a tensor whose channels are cut into `groups` equal parts."""
    return blocked(lanes) if channels // groups % lanes == 0 else "NHWC"


def shape_in(layout: str, n: int, c: int, h: int, w: int) -> tuple[int, ...]:
    """Return the shape of an image batch in `layout`."""
    block = block_of(layout)
    if block:
        return (n, c // block, h, w, block)
    return (n, h, w, c) if layout == "NHWC" else (n, c, h, w)


def spatial_axis(layout: str) -> int:
    """Return the position of the height axis; the width follows it."""
    return 1 if layout == "NHWC" else 2


def nchw_sizes(layout: str, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return (n, c, h, w) of an image batch whose shape is given in `layout`."""
    if block_of(layout):
        n, blocks, h, w, block = shape
        return n, blocks * block, h, w
    if layout == "NHWC":
        n, h, w, c = shape
        return n, c, h, w
    n, c, h, w = shape
    return n, c, h, w
