"""Where the open sizes stand in a tensor on a canvas."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tvm_blislike.passes.canvas.extents import Clash

# The axes of width and height, by the number of axes: NCHWc, NCHW or NHWC.
_IMAGES = {5: ((3, 2),), 4: ((3, 2), (2, 1))}


def open_axes(
    shape: Sequence[int],
    numbers: Sequence[set[int]],
    kinds: Sequence[int],
    pairs: Collection[tuple[int, ...]],
) -> dict[int, tuple[int, int]]:
    """Return the open axes of a tensor, each with the size that it follows from and its number.

    Parameters
    ----------
    numbers : sequence of set
        For each open size, what follows from it on the canvas.
    kinds : sequence of int
        How many axes of an image are behind it: 1 for a height, 0 for a width.
    pairs : collection of tuple of int
        Heights and widths of tensors that have open sizes: 72 channels of a mean, (1, 1, 1, 72),
        are no width of 72.

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
        across, along = places
        if len(found) < 2 and (shape[along], shape[across]) not in pairs:
            if found and min(shape[along], shape[across]) > 1 and len(kinds) == 1:
                raise Clash(f"a tensor of {'x'.join(map(str, shape))} may have an open size")
            found = {}
        ways.append(found)
    most = max(map(len, ways), default=0)
    best = [way for way in ways if len(way) == most]
    if most and len(best) > 1:
        raise Clash(f"a tensor of {'x'.join(map(str, shape))} may have its image on other axes")
    if not most and _may_have_others(shape, numbers, kinds):
        raise Clash(f"a tensor of {'x'.join(map(str, shape))} may have an open size")
    return best[0] if most else {}


def _may_have_others(
    shape: Sequence[int], numbers: Sequence[set[int]], kinds: Sequence[int]
) -> bool:
    """Whether a tensor that has no image on the usual axes may have one elsewhere.

    The last axes, such as those of groups of channels, or any one where there are fewer axes.
    """
    if len(shape) in _IMAGES:
        behind = [shape[-1 - kind] in numbers[size] for size, kind in enumerate(kinds)]
        return len(shape) != len("NCHW") and all(behind)
    return any(size in found for size in shape for found in numbers)
