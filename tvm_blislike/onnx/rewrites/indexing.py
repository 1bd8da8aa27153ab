"""Operators that read or write at indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site

# What the runtime of TVM can sort.
_OF_TOP_K = {"axis": -1, "largest": 1, "sorted": 1}
_SORTED = frozenset("int32 int64 float16 float32 float64 bfloat16".split())


def compress(site: Site) -> Sequence[str] | None:
    """Write `Compress` by a constant condition as `Gather`: its result's shape is known then."""
    condition = site.known(1)
    if condition is None:
        return None
    data, axis = site.node.input[0], site.attribute("axis")
    if axis is None:
        data, axis = site.reshaped(data, (-1,)), 0
    size = math.prod(site.shape()) if site.attribute("axis") is None else site.shape()[axis]
    places = np.flatnonzero(condition[:size])
    return [site.add("Gather", data, site.constant(places), axis=axis)]


def one_hot(site: Site) -> Sequence[str]:
    """Write `OneHot` as a comparison with the numbers below the depth.

    The importer takes Python's numbers for the values, which loses their type.
    """
    depth, shape = int(site.value(1).item()), site.shape()
    axis = site.attribute("axis", -1) % (len(shape) + 1)
    indices = site.node.input[0]
    if site.dtype() != np.int64:
        indices = site.cast(indices, np.int64)
    zero, size = (site.constant(np.array(v, np.int64)) for v in (0, depth))
    behind = site.add("Less", indices, zero)
    indices = site.add("Where", behind, site.add("Add", indices, size), indices)
    indices = site.reshaped(indices, (*shape[:axis], 1, *shape[axis:]))
    numbers = np.arange(depth).reshape(-1, *[1] * (len(shape) - axis))
    hot = site.add("Equal", indices, site.constant(numbers))
    off, on = (site.add("Gather", site.node.input[2], site.number(i), axis=0) for i in (0, 1))
    return [site.add("Where", hot, on, off)]


def scatter_elements(site: Site) -> Sequence[str] | None:
    """Write `ScatterElements` of a part of the other axes as `ScatterND`.

    TVM counts on indices for all of them and writes elsewhere.
    """
    shape, given = site.shape(), site.shape(1)
    axis = site.attribute("axis", 0) % len(shape)
    others = [i for i in range(len(shape)) if i != axis]
    if all(given[i] == shape[i] for i in others):
        return None
    if site.opset < 11:
        site.refuse("its indices are fewer than the elements of other axes than its own")
    columns = [np.broadcast_to(c, given).reshape(-1, 1) for c in np.indices(given, sparse=True)]
    names = [site.constant(column.astype(np.int64)) for column in columns]
    own = site.reshaped(site.node.input[1], (-1, 1))
    names[axis] = own if site.dtype(1) == np.int64 else site.cast(own, np.int64)
    places = site.add("Concat", *names, axis=1)
    updates = site.reshaped(site.node.input[2], (-1,))
    reduction = site.attribute("reduction")
    attributes = {"reduction": reduction} if reduction else {}
    return [site.add("ScatterND", site.node.input[0], places, updates, **attributes)]


def arg_reduce(site: Site) -> Sequence[str] | None:
    """Write `ArgMax` and `ArgMin` with an axis that counts from the front, as before opset 11."""
    axis = site.attribute("axis", 0)
    if axis >= 0 or site.opset >= 11:
        return None
    keep = site.attribute("keepdims", 1)
    operator = site.node.op_type
    return [site.add(operator, site.node.input[0], axis=axis + len(site.shape()), keepdims=keep)]


def gather(site: Site) -> Sequence[str] | None:
    """Write `Gather` with an axis from the front: from behind, negative indices go astray."""
    axis = site.attribute("axis", 0)
    if axis >= 0:
        return None
    return [site.add("Gather", *site.node.input, axis=axis + len(site.shape()))]


def gather_elements(site: Site) -> Sequence[str] | None:
    """Write `GatherElements` of a part of the other axes with that part of the tensor.

    TVM counts on indices for all of them and reads elsewhere; so do negative indices along an axis
    that is counted from behind.
    """
    shape, given = site.shape(), site.shape(1)
    axis = site.attribute("axis", 0) % len(shape)
    cut = [i for i in range(len(shape)) if i != axis and given[i] != shape[i]]
    if not cut and axis == site.attribute("axis", 0):
        return None
    data, indices = site.node.input
    part = site.sliced(data, cut, [0] * len(cut), [given[i] for i in cut]) if cut else data
    return [site.add("GatherElements", part, indices, axis=axis)]


def slice_(site: Site) -> Sequence[str] | None:
    """Write `Slice` with its axes, and as operands: the importer knows of no other form."""
    data = site.node.input[0]
    if site.opset < 10:
        starts, ends = site.attribute("starts"), site.attribute("ends")
        return [site.sliced(data, site.attribute("axes", range(len(starts))), starts, ends)]
    if site.has_operand(3) or not site.has_operand(4):
        return None
    axes = site.constant(np.arange(site.value(1).size))
    return [site.add("Slice", *site.node.input[:3], axes, site.node.input[4])]


def split(site: Site) -> Sequence[str] | None:
    """Write a `Split` with empty parts as slices; TVM wants places to cut that differ."""
    axis = site.attribute("axis", 0)
    sizes = site.attribute("split") if site.opset < 13 else site.known(1)
    if sizes is None and not site.has_operand(1) and site.is_known():
        sizes = _equal_parts(site, site.shape()[axis])
    if sizes is None or all(sizes):
        return None
    axis %= len(site.shape())
    ends = np.cumsum(sizes)
    return [
        site.sliced(site.node.input[0], [axis], [end - size], [end])
        for size, end in zip(sizes, ends, strict=True)
    ]


def _equal_parts(site: Site, size: int) -> list[int] | None:
    """Return the sizes of a `Split` that names none: equal, but for a last one that is smaller.

    None where there are too few elements, as in branches of ONNX's functions that are not taken.
    """
    count = len(site.node.output)
    part = -(-size // count)
    last = size - (count - 1) * part
    return [part] * (count - 1) + [last] if last >= 0 else None


def suppression(site: Site) -> Sequence[str]:
    """Write `NonMaxSuppression` with limits as TVM means them.

    It has other defaults, drops boxes that overlap by the limit as well, where ONNX drops those
    that overlap by more, and lets no box be dropped whose score is not positive.
    """
    most, overlap, score = (site.value(index) for index in (2, 3, 4))
    none, boxes, scores = np.float32(0), *site.node.input[:2]
    overlap = np.nextafter(none if overlap is None else np.float32(overlap.item()), np.float32(1))
    limit = none if score is None else np.float32(score.item())
    if score is None or limit < 0:
        scores, limit = _positive(site, scores, None if score is None else limit), none
    limits = [
        np.array([0 if most is None else most.item()], np.int64),
        np.array([overlap]),
        np.array([limit]),
    ]
    return [site.again(boxes, scores, *map(site.constant, limits))]


def _positive(site: Site, scores: str, limit: np.float32 | None) -> str:
    """Put scores here that are positive and in the same order, 0 for those below the limit."""
    zero, one = (site.constant(np.array(number, np.float32)) for number in (0, 1))
    lowest = site.reduced("ReduceMin", scores, range(len(site.shape(1))), keepdims=1)
    added = site.add("Where", site.add("Less", zero, lowest), zero, site.add("Sub", one, lowest))
    shifted = site.add("Add", scores, added)
    if limit is None:
        return shifted
    kept = site.add("Less", site.constant(np.array(limit)), scores)
    return site.add("Where", kept, shifted, zero)


def unique(site: Site) -> None:
    """Refuse the forms of `Unique` that TVM computes otherwise."""
    if not site.attribute("sorted", 1):
        site.refuse("sorted is 0, and TVM sorts all the same")
    if site.results() > 1:
        site.refuse("its results behind the first have other shapes in TVM")
    _require_sorted(site, _SORTED)


def top_k(site: Site) -> Sequence[str] | None:
    """Compute `TopK` of bfloat16 in fp32, refuse other types that TVM's runtime cannot sort."""
    dtype = site.known_dtype()
    if dtype is None or str(dtype) != "bfloat16":
        return _require_sorted(site, _SORTED | {"int8", "uint8"})
    operands = [site.cast(site.node.input[0], np.float32), *site.node.input[1:]]
    attributes = {name: site.attribute(name, default) for name, default in _OF_TOP_K.items()}
    values, places = site.add_all("TopK", operands, 2, **attributes)
    return [site.cast(values, dtype), places]


def _require_sorted(site: Site, types: frozenset[str]) -> None:
    dtype = site.known_dtype()
    if dtype is not None and str(dtype) not in types:
        site.refuse(f"TVM cannot sort numbers of type {dtype}")
