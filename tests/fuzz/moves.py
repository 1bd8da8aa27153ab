"""Random nodes that move, select or join elements."""

from __future__ import annotations

import math

import numpy as np
from graphs import Graph, RejectedError, Tensor

ALL = ("float32", "float32", "float32", "float64", "int64", "int32", "bool", "uint8", "int8")


def _any(g: Graph, least_rank: int = 0, most_rank: int = 5) -> Tensor:
    types = (g.float_type,) if g.chance(0.75) else ALL
    return g.tensor(types, rank=range(least_rank, most_rank + 1))


def reshape(g: Graph) -> None:
    """Reshape to a random factorization, with 0 and -1 for some sizes."""
    x = _any(g)
    wanted = _factors(g, x.value.size)
    written = list(wanted)
    for i, size in enumerate(wanted):
        if i < x.rank and x.shape[i] == size and g.chance(0.3):
            written[i] = 0
    if g.chance(0.4) and written and 0 not in x.shape:
        written[g.integer(0, len(written) - 1)] = -1
    g.node("Reshape", [x, g.constant(written, "int64")])


def flatten(g: Graph) -> None:
    """Flatten at any axis."""
    x = _any(g)
    low = -x.rank if g.opset >= 11 else 0
    g.node("Flatten", [x], **g.maybe(0.7, axis=g.integer(low, x.rank)))


def transpose(g: Graph) -> None:
    """Transpose by any permutation."""
    x = _any(g)
    g.node("Transpose", [x], **g.maybe(0.85, perm=g.rng.permutation(x.rank).tolist()))


def squeeze(g: Graph) -> None:
    """Squeeze and Unsqueeze, axes as attribute or operand."""
    x = _any(g, most_rank=4)
    if g.chance(0.5):
        count = g.integer(1, 2)
        axes = g.rng.choice(x.rank + count, count, replace=False).tolist()
        if g.opset >= 11:
            axes = [a - x.rank - count if g.chance(0.4) else a for a in axes]
        _with_axes(g, "Unsqueeze", x, axes)
        return
    ones = [i for i, size in enumerate(x.shape) if size == 1]
    if not ones and g.chance(0.7):
        raise RejectedError("nothing to squeeze")
    axes = [i for i in ones if g.chance(0.6)]
    _with_axes(g, "Squeeze", x, axes if axes and g.chance(0.8) else None)


def _with_axes(g: Graph, operator: str, x: Tensor, axes: list[int] | None) -> None:
    if axes is None:
        g.node(operator, [x])
    elif g.opset >= 13:
        g.node(operator, [x, g.constant(axes, "int64")])
    else:
        g.node(operator, [x], axes=axes)


def expand(g: Graph) -> None:
    """Expand by a shape that broadcasts either way."""
    x = _any(g, most_rank=4)
    shape = [g.integer(1, 3) if size == 1 else g.pick([1, size]) for size in x.shape]
    shape = [g.integer(1, 2)] * g.integer(0, 1) + shape[g.integer(0, min(1, len(shape))) :]
    g.node("Expand", [x, g.constant(shape, "int64")])


def tile(g: Graph) -> None:
    """Tile each axis."""
    x = _any(g, 1, 4)
    g.node("Tile", [x, g.constant(g.ints(x.rank, 1, 3), "int64")])


def concat(g: Graph) -> None:
    """Concat of one to four tensors that differ along one axis."""
    x = _any(g, 1)
    axis = g.integer(-x.rank, x.rank - 1)
    parts = [x]
    for _ in range(g.integer(0, 3)):
        shape = list(x.shape)
        shape[axis] = g.size(8)
        known = [t for t in g.tensors if t.dtype == x.dtype and _alike(t.shape, x.shape, axis)]
        own = known and g.chance(0.6)
        parts.append(g.pick(known) if own else g.constant(g.values(shape, x.dtype)))
    order = g.rng.permutation(len(parts))
    g.node("Concat", [parts[i] for i in order], axis=axis)


def split(g: Graph) -> None:
    """Split into equal or given parts."""
    x = _any(g, 1)
    axis = g.integer(-x.rank, x.rank - 1)
    size = x.shape[axis]
    parts = g.integer(1, 4)
    attributes = g.maybe(0.9, axis=axis)
    axis = attributes.get("axis", 0)
    size = x.shape[axis]
    if g.chance(0.5) and size % parts == 0 and (g.opset < 18 or g.chance(0.3)):
        if g.opset >= 18:
            attributes["num_outputs"] = parts
        g.node("Split", [x], parts, **attributes)
        return
    if g.opset >= 18 and g.chance(0.4):
        g.node("Split", [x], parts, num_outputs=parts, **attributes)
        return
    cuts = np.sort(g.rng.integers(0, size + 1, parts - 1))
    sizes = np.diff([0, *cuts, size]).tolist()
    if 0 in sizes and not g.empty:
        raise RejectedError("an empty part")
    if g.opset >= 13:
        g.node("Split", [x, g.constant(sizes, "int64")], parts, **attributes)
    else:
        g.node("Split", [x], parts, split=sizes, **attributes)


def slice_(g: Graph) -> None:
    """Slice with any signs, steps and ends beyond the tensor."""
    x = _any(g, 1)
    axes = g.rng.choice(x.rank, g.integer(1, x.rank), replace=False).tolist()
    starts, ends, steps = [], [], []
    for axis in axes:
        size = x.shape[axis]
        step = g.pick([1, 1, 1, 2, 3, -1, -2]) if g.opset >= 10 else 1
        low, high = sorted(g.ints(2, 0, size))
        if low == high and not g.empty:
            low, high = 0, size
        start, end = (low, high) if step > 0 else (high - 1, low - 1)
        if step > 0:
            end = g.pick([end, end - size if end < size else 2**31 - 1])
            start = start - size if g.chance(0.3) and start < size and size else start
        elif end < 0:
            end = -(2**31)
        starts, ends, steps = [*starts, start], [*ends, end], [*steps, step]
    if g.opset < 10:
        g.node("Slice", [x], starts=starts, ends=ends, axes=axes)
        return
    named = [a - x.rank if g.chance(0.3) else a for a in axes]
    dtype = g.pick(["int64", "int64", "int32"])
    operands = [g.constant(v, dtype) for v in (starts, ends, named, steps)]
    if axes == list(range(len(axes))) and g.chance(0.3):
        operands[2] = None
    if set(steps) == {1} and g.chance(0.5):
        operands[3] = None
    g.node("Slice", [x, *operands])


def pad(g: Graph) -> None:
    """Pad in every mode, also negative pads."""
    x = _any(g, 1)
    mode = g.pick(["constant", "constant", "reflect", "edge", "wrap"])
    if mode == "wrap" and g.opset < 19:
        mode = "constant"
    count = x.rank
    axes = None
    if g.opset >= 18 and g.chance(0.3):
        axes = g.rng.choice(x.rank, g.integer(1, x.rank), replace=False).tolist()
        count = len(axes)
    low = -1 if mode == "constant" and g.chance(0.2) else 0
    most = 3 if mode == "constant" else 1
    if mode != "constant" and g.chance(0.3):
        most = max(min(x.shape) - 1, 0)
    pads = g.ints(2 * count, low, most)
    fill = g.constant(1.5 if x.value.dtype.kind == "f" else 1, x.dtype)
    with_fill = mode == "constant" and g.chance(0.5)
    if g.opset < 11:
        extra = {"value": 1.5} if with_fill and x.value.dtype.kind == "f" else {}
        g.node("Pad", [x], pads=pads, mode=mode, **extra)
        return
    operands = [x, g.constant(pads, "int64"), fill if with_fill else None]
    if axes is not None:
        named = [a - x.rank if g.chance(0.3) else a for a in axes]
        operands.append(g.constant(named, "int64"))
    g.node("Pad", operands, **g.maybe(1.0 if mode != "constant" else 0.5, mode=mode))


def depth_space(g: Graph) -> None:
    """DepthToSpace and SpaceToDepth."""
    block = g.integer(1, 3)
    if g.chance(0.5):
        x = g.tensor(rank=4, fits=lambda v: v.shape[1] % block**2 == 0)
        modes = g.maybe(0.6, mode=g.pick(["DCR", "CRD"])) if g.opset >= 11 else {}
        g.node("DepthToSpace", [x], blocksize=block, **modes)
        return
    x = g.tensor(rank=4, fits=lambda v: v.shape[2] % block == 0 and v.shape[3] % block == 0)
    g.node("SpaceToDepth", [x], blocksize=block)


def trilu(g: Graph) -> None:
    """The upper or lower part of matrices."""
    if g.opset < 14:
        raise RejectedError("too early")
    x = _any(g, 2)
    k = g.constant(g.integer(-3, 3), "int64") if g.chance(0.6) else None
    g.node("Trilu", [x, k], **g.maybe(0.6, upper=g.integer(0, 1)))


def shape_of(g: Graph) -> None:
    """Shape and Size, whose results are constants."""
    x = _any(g)
    if g.chance(0.3):
        g.node("Size", [x])
        return
    ends = g.maybe(0.4, start=g.integer(-2, 2), end=g.integer(-1, 3)) if g.opset >= 15 else {}
    g.node("Shape", [x], **ends)


def made(g: Graph) -> None:
    """Tensors from nothing: ConstantOfShape, Range, EyeLike."""
    from onnx import helper

    operator = g.pick(["ConstantOfShape", "Range", "EyeLike"])
    if operator == "EyeLike":
        x = g.tensor(rank=2)
        g.node(operator, [x], **g.maybe(0.5, k=g.integer(-2, 2), dtype=g.pick([1, 6, 7])))
    elif operator == "Range":
        if g.opset < 11:
            raise RejectedError("too early")
        start, step, count = g.integer(-3, 3), g.pick([1, 2, -1, 3]), g.integer(1, 9)
        dtype = g.pick(["int64", "float32", "int32"])
        limits = [g.constant(v, dtype) for v in (start, start + step * count, step)]
        g.node(operator, limits)
    else:
        shape = g.constant(g.ints(g.integer(1, 4), 1, 5), "int64")
        value = helper.make_tensor("value", 1, [1], [0.5]) if g.chance(0.5) else None
        g.node(operator, [shape], **({"value": value} if value else {}))


def identity(g: Graph) -> None:
    """Identity and Dropout."""
    x = _any(g)
    if g.chance(0.5):
        g.node("Identity", [x])
        return
    x = g.tensor()
    g.node("Dropout", [x], g.pick([1, 1, 2]))


def _alike(first: tuple[int, ...], second: tuple[int, ...], axis: int) -> bool:
    if len(first) != len(second):
        return False
    axis %= len(first)
    return all(a == b for i, (a, b) in enumerate(zip(first, second, strict=True)) if i != axis)


def _factors(g: Graph, size: int) -> list[int]:
    """Return sizes whose product is `size`."""
    if size == 0:
        return [0, *g.ints(g.integer(0, 2), 1, 3)]
    factors = [1] * g.integer(0 if size == 1 else 1, 5)
    left = size
    while left > 1:
        prime = next((p for p in range(2, math.isqrt(left) + 1) if left % p == 0), left)
        factors[g.integer(0, len(factors) - 1)] *= prime
        left //= prime
    return factors


NODES = {
    reshape: 4, flatten: 1, transpose: 4, squeeze: 2, expand: 2, tile: 1, concat: 5, split: 3,
    slice_: 4, pad: 3, depth_space: 2, trilu: 1, shape_of: 1, made: 1, identity: 1,
}  # fmt: skip
