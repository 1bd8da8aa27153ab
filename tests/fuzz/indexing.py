"""Random nodes that read or write at indices."""

from __future__ import annotations

import math

import numpy as np
from graphs import Graph, RejectedError, Tensor


def gather(g: Graph) -> None:
    """Gather along an axis, also from behind."""
    x = g.tensor(rank=(1, 2, 3, 4), fits=lambda v: v.size > 0)
    axis = g.integer(-x.rank, x.rank - 1)
    shape = tuple(g.integer(1, 5) for _ in range(g.integer(0, 2)))
    indices = _indices(g, shape, x.shape[axis])
    g.node("Gather", [x, indices], **g.maybe(0.8, axis=axis) if g.chance(0.5) else {"axis": axis})


def gather_elements(g: Graph) -> None:
    """GatherElements along an axis."""
    if g.opset < 11:
        raise RejectedError("too early")
    x = g.tensor(rank=(1, 2, 3), fits=lambda v: v.size > 0)
    axis = g.integer(-x.rank, x.rank - 1)
    shape = [g.integer(1, size) for size in x.shape]
    shape[axis] = g.integer(1, 6)
    g.node("GatherElements", [x, _indices(g, shape, x.shape[axis])], axis=axis)


def gather_nd(g: Graph) -> None:
    """GatherND, with batches from opset 12 on."""
    if g.opset < 11:
        raise RejectedError("too early")
    x = g.tensor(rank=(2, 3, 4), fits=lambda v: v.size > 0)
    batch = g.integer(0, x.rank - 1) if g.opset >= 12 and g.chance(0.3) else 0
    depth = g.integer(1, x.rank - batch)
    shape = (*x.shape[:batch], g.integer(1, 5))
    columns = [g.rng.integers(0, x.shape[batch + i], shape) for i in range(depth)]
    indices = g.constant(np.stack(columns, axis=-1).astype("int64"))
    g.node("GatherND", [x, indices], **({"batch_dims": batch} if batch else {}))


def scatter(g: Graph) -> None:
    """ScatterElements, ScatterND and the old Scatter, at indices that differ."""
    x = g.tensor(rank=(1, 2, 3), fits=lambda v: v.size > 0)
    if g.opset >= 11 and g.chance(0.5):
        _scatter_nd(g, x)
        return
    axis = g.integer(-x.rank, x.rank - 1)
    shape = [g.integer(1, size) for size in x.shape]
    places = [np.arange(x.shape[axis]) for _ in range(math.prod(shape) // shape[axis])]
    chosen = np.stack([g.rng.permutation(p)[: shape[axis]] for p in places], axis=-1)
    rest = [size for i, size in enumerate(shape) if i != axis % x.rank]
    indices = np.moveaxis(chosen.reshape(shape[axis], *rest), 0, axis)
    updates = g.constant(g.values(shape, x.dtype))
    attributes = {"axis": axis}
    if g.opset >= 16:
        kinds = ["none", "add", "mul"] + (["max", "min"] if g.opset >= 18 else [])
        attributes |= g.maybe(0.5, reduction=g.pick(kinds))
    operator = "ScatterElements" if g.opset >= 11 else "Scatter"
    g.node(operator, [x, g.constant(indices.astype("int64")), updates], **attributes)


def _scatter_nd(g: Graph, x: Tensor) -> None:
    depth = g.integer(1, x.rank)
    cells = math.prod(x.shape[:depth])
    count = g.integer(1, min(cells, 6))
    flat = g.rng.choice(cells, count, replace=False)
    indices = np.stack(np.unravel_index(flat, x.shape[:depth]), axis=-1).astype("int64")
    updates = g.constant(g.values((count, *x.shape[depth:]), x.dtype))
    kinds = ["none", "add", "mul"] + (["max", "min"] if g.opset >= 18 else [])
    attributes = g.maybe(0.5, reduction=g.pick(kinds)) if g.opset >= 16 else {}
    g.node("ScatterND", [x, g.constant(indices), updates], **attributes)


def one_hot(g: Graph) -> None:
    """OneHot along a new axis."""
    if g.opset < 9:
        raise RejectedError("too early")
    depth = g.integer(1, 7)
    shape = tuple(g.integer(1, 5) for _ in range(g.integer(1, 3)))
    low = -depth if g.chance(0.3) and g.opset >= 11 else 0
    indices = g.input(g.rng.integers(low, depth + (1 if g.chance(0.1) else 0), shape))
    values = g.constant([0.25, 2.0] if g.chance(0.5) else [0, 1], "float32")
    axis = g.integer(-1 - len(shape), len(shape))
    g.node("OneHot", [indices, g.constant(depth, "int64"), values], **g.maybe(0.7, axis=axis))


def compress(g: Graph) -> None:
    """Compress along an axis or of the flat tensor, by a constant condition."""
    if g.opset < 9:
        raise RejectedError("too early")
    x = g.tensor(rank=(1, 2, 3), fits=lambda v: v.size > 0)
    axis = g.integer(-x.rank, x.rank - 1) if g.chance(0.7) else None
    size = x.value.size if axis is None else x.shape[axis]
    condition = g.constant(g.rng.random(size) < 0.6)
    g.node("Compress", [x, condition], **({} if axis is None else {"axis": axis}))


def suppression(g: Graph) -> None:
    """NonMaxSuppression of random boxes."""
    if g.opset < 11:
        raise RejectedError("too early")
    count = g.integer(2, 8)
    corners = np.sort(g.rng.random((1, count, 2, 2)), axis=2).reshape(1, count, 4)
    scores = g.rng.random((1, g.integer(1, 3), count))
    operands = [g.input(v.astype("float32")) for v in (corners, scores)]
    operands.append(g.constant([g.integer(1, 4)], "int64"))
    operands += (
        [g.constant([0.4], "float32"), g.constant([0.2], "float32")] if g.chance(0.7) else []
    )
    g.node("NonMaxSuppression", operands, **g.maybe(0.3, center_point_box=g.integer(0, 1)))


def _indices(g: Graph, shape: tuple[int, ...] | list[int], size: int) -> Tensor:
    low = -size if g.chance(0.3) and g.opset >= 11 else 0
    values = g.rng.integers(low, size, shape).astype(g.pick(["int64", "int64", "int32"]))
    return g.input(values) if g.chance(0.3) else g.constant(values)


NODES = {
    gather: 4, gather_elements: 2, gather_nd: 2, scatter: 3, one_hot: 1, compress: 1,
    suppression: 1,
}  # fmt: skip
