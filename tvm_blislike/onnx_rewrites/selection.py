"""Operators that choose elements: with settings as TVM reads them, of types that it can sort."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx_rewrites.site import Site

_ORDERED = frozenset("int32 int64 float16 float32 float64 bfloat16".split())


def one_hot(site: Site) -> Sequence[str]:
    """Write `OneHot` as a comparison: TVM forgets the type of its values."""
    depth, values, rank = site.value(1).item(), site.value(2), len(site.shape())
    axis = site.attribute("axis", -1) % (rank + 1)
    whole = np.dtype("int64")
    size, zero = (site.constant(np.array(number, whole)) for number in (depth, 0))
    index = site.cast(site.node.input[0], whole)
    index = site.add("Where", site.add("Less", index, zero), site.add("Add", index, size), index)
    sizes = list(site.shape())
    shape = site.constant(np.array([*sizes[:axis], 1, *sizes[axis:]], whole))
    column = site.add("Reshape", index, shape)
    classes = np.arange(depth, dtype=whole).reshape([-1] + [1] * (rank - axis))
    off, on = (site.constant(value) for value in values)
    return [site.add("Where", site.add("Equal", column, site.constant(classes)), on, off)]


def non_max_suppression(site: Site) -> Sequence[str]:
    """Write `NonMaxSuppression` with the next larger threshold of overlaps.

    ONNX drops boxes that overlap more than the threshold, TVM those that reach it, too. TVM puts
    settings of its own for those that are left out, and takes boxes for dropped ones where their
    scores are not positive.
    """
    count, overlap, score = (site.value(index) for index in (2, 3, 4))
    if count is None:
        site.refuse("its max_output_boxes_per_class is left out, so that it yields no boxes")
    if score is None or score.item() < 0:
        said = "left out" if score is None else "negative"
        site.refuse(
            f"its score_threshold is {said}, and TVM drops boxes whose scores are not positive",
            "a threshold of 0 is the same for the scores of a Sigmoid or a Softmax",
        )
    limit = np.float32(0 if overlap is None else overlap.item())
    larger = np.nextafter(limit, np.float32(np.inf))
    return [_with_operand(site, 3, site.constant(np.array([larger], np.float32)))]


def top_k(site: Site) -> None:
    """Refuse `TopK` of integers that TVM's runtime cannot sort."""
    _require_sortable(site, _ORDERED | {"int8", "uint8"})


def unique(site: Site) -> None:
    """Refuse `Unique` of integers that TVM's runtime cannot sort."""
    _require_sortable(site, _ORDERED)


def _require_sortable(site: Site, sortable: frozenset[str]) -> None:
    dtype = site.dtype_if_known(0)
    if dtype is not None and str(dtype) not in sortable:
        site.refuse(f"TVM cannot sort numbers of type {dtype}")


def _with_operand(site: Site, index: int, name: str) -> str:
    """Put the node here with another operand; return its result."""
    operands = [*site.node.input, *[""] * (index + 1 - len(site.node.input))]
    operands[index] = name
    attributes = {item.name: site.attribute(item.name) for item in site.node.attribute}
    return site.add(site.node.op_type, *operands, **attributes)
