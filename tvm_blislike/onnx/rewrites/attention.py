"""Attention of ONNX Runtime's own, written as products and a softmax, as exporters write it.

`passes.attention` makes one kernel of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site

# Of `mask_filter_value`: what is added to the scores of keys that are masked.
_FILTER = -10000.0


@dataclass(frozen=True)
class Heads:
    """Queries, keys or values: a tensor (batch, heads, steps, size) and its shape."""

    name: str
    batch: int
    count: int
    steps: int
    size: int


def attention(site: Site) -> Sequence[str]:
    """Write `Attention`: one product for queries, keys and values, which are then split."""
    for name in ("do_rotary", "past_present_share_buffer"):
        if site.attribute(name, 0):
            site.refuse(f"its {name} is set")
    if site.has_operand(6):
        site.refuse(f"its operand {site.node.input[6]!r} says how much of the past is valid")
    count = _count(site)
    columns = site.shape(1)[-1]
    sizes = list(site.attribute("qkv_hidden_sizes", [columns // 3] * 3))
    if any(size % count for size in sizes) or sum(sizes) != columns:
        site.refuse(f"its {columns} columns are no queries, keys and values of {count} heads")
    product = site.add("MatMul", *site.node.input[:2])
    if site.has_operand(2):
        product = site.add("Add", product, site.node.input[2])
    batch, steps = site.shape()[:2]
    parts = [
        split(site, part, (batch, steps, size), count)
        for part, size in zip(_parted(site, product, sizes), sizes, strict=True)
    ]
    present = None
    if site.has_operand(4):
        pasts = [
            site.reshaped(
                site.add("Gather", site.node.input[4], site.number(i), axis=0), site.shape(4)[1:]
            )
            for i in range(2)
        ]
        parts[1:] = [
            behind(site, past, part, site.shape(4)[3])
            for past, part in zip(pasts, parts[1:], strict=True)
        ]
    if site.results() > 1:
        axes = [site.reshaped(p.name, [1, p.batch, p.count, p.steps, p.size]) for p in parts[1:]]
        present = site.add("Concat", *axes, axis=0)
    result = _attended(site, *parts, mask=3, bias=5)
    return [result, present or result]


def multi_head(site: Site) -> Sequence[str]:
    """Write `MultiHeadAttention`: queries, keys and values come apart, or in one tensor."""
    if site.has_operand(8) or site.has_operand(9):
        site.refuse("it keeps the past in a buffer of fixed size")
    if site.results() > 3:
        site.refuse(f"its result {site.node.output[3]!r} are scores")
    count = _count(site)
    queries, keys, values = _operands(site, count)
    if site.has_operand(6):
        length = site.shape(6)[2]
        keys, values = (
            behind(site, site.node.input[place], part, length)
            for place, part in ((6, keys), (7, values))
        )
    return [
        _attended(site, queries, keys, values, mask=4, bias=5),
        keys.name,
        values.name,
    ]


def _count(site: Site) -> int:
    count = site.attribute("num_heads", 0)
    if count < 1:
        site.refuse(f"its num_heads is {count}")
    return count


def _operands(site: Site, count: int) -> list[Heads]:
    shape = site.shape()
    if len(shape) == 5:
        return _packed(site, 0, shape, 3)
    hidden = shape[2]
    if not site.has_operand(1):
        site.refuse("it has no keys")
    if len(site.shape(1)) == 5:
        keys = _packed(site, 1, site.shape(1), 2)
        return [split(site, _biased(site, 0, 0, hidden), shape, count), *keys]
    sizes = [hidden, hidden, _hidden(site, 2)]
    found = []
    for place, first in enumerate((0, hidden, 2 * hidden)):
        if len(site.shape(place)) == 4:  # split already
            found.append(Heads(site.node.input[place], *site.shape(place)))
            continue
        name = _biased(site, place, first, sizes[place])
        found.append(split(site, name, site.shape(place), count))
    return found


def _hidden(site: Site, place: int) -> int:
    shape = site.shape(place)
    return shape[2] if len(shape) == 3 else shape[1] * shape[3]


def _packed(site: Site, place: int, shape: tuple[int, ...], parts: int) -> list[Heads]:
    """Return what one tensor (batch, steps, heads, parts, size) holds."""
    if site.has_operand(3):
        site.refuse("it has a bias, and its operands are packed")
    batch, steps, count, _, size = shape
    found = []
    for part in range(parts):
        one = site.add("Gather", site.node.input[place], site.number(part), axis=3)
        heads = site.add("Transpose", one, perm=[0, 2, 1, 3])
        found.append(Heads(heads, batch, count, steps, size))
    return found


def _biased(site: Site, place: int, first: int, size: int) -> str:
    """Return an operand with its part of the bias."""
    name = site.node.input[place]
    if not site.has_operand(3):
        return name
    return site.add("Add", name, site.sliced(site.node.input[3], [0], [first], [first + size]))


def _parted(site: Site, name: str, sizes: Sequence[int]) -> list[str]:
    if site.opset < 13:
        return site.add_all("Split", [name], len(sizes), axis=2, split=list(sizes))
    given = site.constant(np.array(sizes, np.int64))
    return site.add_all("Split", [name, given], len(sizes), axis=2)


def split(site: Site, name: str, shape: Sequence[int], count: int) -> Heads:
    """Return heads of a tensor (batch, steps, heads x size)."""
    batch, steps, hidden = shape
    apart = site.reshaped(name, [batch, steps, count, hidden // count])
    heads = site.add("Transpose", apart, perm=[0, 2, 1, 3])
    return Heads(heads, batch, count, steps, hidden // count)


def behind(site: Site, past: str, part: Heads, length: int) -> Heads:
    """Return keys or values behind those of the past."""
    whole = site.add("Concat", past, part.name, axis=2)
    return Heads(whole, part.batch, part.count, length + part.steps, part.size)


def _attended(site: Site, queries: Heads, keys: Heads, values: Heads, mask: int, bias: int) -> str:
    """Return softmax(scale Q K' + masks) V with its heads side by side.

    `mask` and `bias` are places of operands.
    """
    added = [site.node.input[bias]] if site.has_operand(bias) else []
    if site.has_operand(mask):
        added.append(_masked(site, mask, queries, keys))
    if site.attribute("unidirectional", 0):
        added.append(causal(site, queries, keys, keys.steps - queries.steps))
    scores = scored(site, queries, keys)
    for each in added:
        scores = site.add("Add", scores, each)
    return side_by_side(site, weighted(site, site.add("Softmax", scores, axis=-1), values))


def scored(site: Site, queries: Heads, keys: Heads) -> str:
    """Return scale Q K', (batch, heads, queries, keys)."""
    scale = site.attribute("scale", 0.0) or 1 / math.sqrt(queries.size)
    across = site.add("Transpose", keys.name, perm=[0, 1, 3, 2])
    scores = site.add("MatMul", queries.name, across)
    return site.add("Mul", scores, site.constant(np.array(scale, site.dtype())))


def weighted(site: Site, weights: str, values: Heads) -> Heads:
    """Return the values times their weights, of as many steps as there are queries."""
    return replace(values, name=site.add("MatMul", weights, values.name))


def side_by_side(site: Site, heads: Heads) -> str:
    """Return a tensor (batch, steps, heads x size)."""
    result = site.add("Transpose", heads.name, perm=[0, 2, 1, 3])
    return site.reshaped(result, [heads.batch, -1, heads.count * heads.size])


def causal(site: Site, queries: Heads, keys: Heads, past: int) -> str:
    """Return what is added to scores so that no query sees a key behind it."""
    later = np.triu(np.ones((queries.steps, keys.steps), bool), past + 1)
    # Halved: with the scores' own it must not overflow. bfloat16 reaches as far as float32.
    lowest = np.finfo(np.float16 if site.dtype() == np.float16 else np.float32).min / 2
    return site.constant(np.where(later, lowest, 0).astype(site.dtype())[None, None])


def _masked(site: Site, place: int, queries: Heads, keys: Heads) -> str:
    """Return what a mask adds to scores: of keys, of queries and keys, or how many keys count."""
    shape = site.shape(place)
    batch, steps = queries.batch, keys.steps
    if shape == (batch,):
        kept = site.add("Less", *_counts(site, place, steps))
    elif shape == (batch, steps):
        kept = site.reshaped(_as_bool(site, place), [batch, 1, 1, steps])
    elif shape == (batch, queries.steps, steps):
        kept = site.reshaped(_as_bool(site, place), [batch, 1, queries.steps, steps])
    else:
        site.refuse(
            f"its mask has the shape {shape}; {queries.steps} queries of {batch} sentences "
            f"attend to {steps} keys"
        )
    filtered = np.array(site.attribute("mask_filter_value", _FILTER), site.dtype())
    nothing = site.constant(np.zeros((), site.dtype()))
    return site.add("Where", kept, nothing, site.constant(filtered))


def _counts(site: Site, place: int, steps: int) -> tuple[str, str]:
    """Return the keys' places and how many count, to be compared."""
    lengths = site.reshaped(site.node.input[place], [-1, 1, 1, 1])
    return site.constant(np.arange(steps, dtype=np.int32).reshape(1, 1, 1, -1)), lengths


def _as_bool(site: Site, place: int) -> str:
    return site.cast(site.node.input[place], bool)
