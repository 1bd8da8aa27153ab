"""Where the open sizes stand in a tensor on a canvas."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_blislike.passes.canvas.extents import Clash

# The axes of height and width, by the number of axes: NCHWc, NCHW or NHWC.
_IMAGES = {5: ((2, 3),), 4: ((2, 3), (1, 2))}
HEIGHT, WIDTH = range(2)


def open_axes(
    shape: Sequence[int], numbers: Sequence[set[int]], kinds: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Return the open axes of a tensor, each with the size that it follows from and its number.

    Parameters
    ----------
    numbers : sequence of set
        For each open size, what follows from it on the canvas.
    kinds : sequence of int
        Whether it is a `HEIGHT` or a `WIDTH`.

    Raises
    ------
    Clash
        Where another layout would have open axes as well, or the layout is not that of images.
    """
    ways = []
    for places in _IMAGES.get(len(shape), ()):
        found = {
            places[kind]: (size, shape[places[kind]])
            for size, kind in enumerate(kinds)
            if shape[places[kind]] in numbers[size]
        }
        ways.append(found)
    most = max(map(len, ways), default=0)
    best = [way for way in ways if len(way) == most]
    if most and len(best) > 1:
        raise Clash(f"a tensor of {'x'.join(map(str, shape))} may have its image on other axes")
    if not ways and any(size in found for size in shape for found in numbers):
        raise Clash(f"a tensor of {'x'.join(map(str, shape))} may have an open size")
    return best[0] if most else {}
