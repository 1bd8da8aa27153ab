"""ONNX's own `Attention` in its usual forms; its function stands for all others.

The body of that function scales both factors and selects by more than masks, which
`passes.attention` does not look through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_blislike.onnx.rewrites.attention import (
    Heads,
    behind,
    causal,
    scored,
    side_by_side,
    split,
    weighted,
)
from tvm_blislike.onnx.rewrites.site import Site

if TYPE_CHECKING:
    import onnx

_MASK = 3
_ATTRIBUTES = frozenset(["is_causal", "kv_num_heads", "q_num_heads", "scale"])


def is_usual(node: onnx.NodeProto, element: int) -> bool:
    """Whether a node of `Attention` is written here.

    That is one of fp32 whose scores nobody reads, without lengths, bounds and windows. `element` is
    the type of its queries, a number of `onnx.TensorProto`.
    """
    import onnx

    scores_are_read = len(node.output) > 3 and bool(node.output[3])
    has_lengths = len(node.input) > 6 and bool(node.input[6])
    named = {item.name for item in node.attribute}
    is_single = element == onnx.TensorProto.FLOAT
    return is_single and not (scores_are_read or has_lengths or named - _ATTRIBUTES)


def standard(site: Site) -> Sequence[str]:
    """Write `Attention`; ONNX, Attention-23 to -25."""
    queries, keys, values = (_heads(site, place, "q" if place == 0 else "kv") for place in range(3))
    past = 0
    if site.has_operand(4):
        past = site.shape(4)[2]
        keys = behind(site, site.node.input[4], keys, past)
        values = behind(site, site.node.input[5], values, past)
    if queries.count % keys.count:
        site.refuse(f"its {queries.count} heads cannot share {keys.count} heads of keys")
    shared = [_shared(site, part, queries.count // keys.count) for part in (keys, values)]
    weights = _weights(site, queries, shared[0], past)
    result = weighted(site, weights, shared[1])
    whole = side_by_side(site, result) if len(site.shape()) == 3 else result.name
    return [whole, keys.name, values.name]


def _weights(site: Site, queries: Heads, keys: Heads, past: int) -> str:
    scores = scored(site, queries, keys)
    if site.has_operand(_MASK):
        scores = site.add("Add", scores, _mask(site, keys.steps))
    if site.attribute("is_causal", 0):
        scores = site.add("Add", scores, causal(site, queries, keys, past))
    weights = site.add("Softmax", scores, axis=-1)
    if not site.has_operand(_MASK):
        return weights
    zero = site.constant(np.zeros((), site.dtype()))
    return site.add("Where", site.add("IsNaN", weights), zero, weights)


def _mask(site: Site, steps: int) -> str:
    """Return what a mask of numbers, or one of keys that count, adds to scores."""
    shape = site.shape(_MASK)
    if shape[-1] not in (1, steps):
        site.refuse(f"its mask has the shape {shape}, and there are {steps} keys")
    name = site.node.input[_MASK]
    if site.dtype(_MASK) != np.bool_:
        return name
    ends = [site.constant(np.array(end, site.dtype())) for end in (0, -np.inf)]
    return site.add("Where", name, *ends)


def _heads(site: Site, place: int, which: str) -> Heads:
    name, shape = site.node.input[place], site.shape(place)
    if len(shape) == 4:
        return Heads(name, *shape)
    if len(shape) != 3:
        site.refuse(f"its operand {name!r} has {len(shape)} axes, not 3 or 4")
    count = site.attribute(f"{which}_num_heads", 0)
    if count < 1 or shape[2] % count:
        site.refuse(f"its {which}_num_heads is {count}, and its columns are {shape[2]}")
    return split(site, name, shape, count)


def _shared(site: Site, part: Heads, times: int) -> Heads:
    """Return heads of which each stands there several times in a row."""
    if times == 1:
        return part
    apart = site.reshaped(part.name, [part.batch, part.count, 1, part.steps, part.size])
    wanted = [part.batch, part.count, times, part.steps, part.size]
    repeated = site.add("Expand", apart, site.constant(np.array(wanted, np.int64)))
    count = part.count * times
    name = site.reshaped(repeated, [part.batch, count, part.steps, part.size])
    return Heads(name, part.batch, count, part.steps, part.size)
