"""`AffineGrid` as a product of its matrices with a constant grid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site


def affine_grid(site: Site) -> Sequence[str]:
    """Write `AffineGrid`; TVM's has no grids of one row or column, and none of volumes."""
    batch, _, *sizes = (int(size) for size in site.value(1))
    corners = bool(site.attribute("align_corners", 0))
    axes = [_coordinates(size, corners) for size in sizes]
    # The last axis of an image is x, the first of its coordinates; a 1 moves them.
    places = [p.reshape(-1) for p in np.meshgrid(*axes, indexing="ij")][::-1]
    grid = np.stack([*places, np.ones_like(places[0])], axis=1).astype(site.dtype())
    matrices = site.add("Transpose", site.node.input[0], perm=[0, 2, 1])
    moved = site.add("MatMul", site.constant(grid[None]), matrices)
    return [site.reshaped(moved, (batch, *sizes, len(sizes)))]


def _coordinates(size: int, corners: bool) -> np.ndarray:
    """Return where the elements of an axis lie between -1 and 1; a single one is at -1 or 0."""
    if corners:
        return np.linspace(-1, 1, size)
    return (2 * np.arange(size) + 1) / size - 1
