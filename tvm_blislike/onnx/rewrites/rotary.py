"""`RotaryEmbedding` of ONNX Runtime's own, whose angles stand in a table by place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site


def rotary_embedding(site: Site) -> Sequence[str]:
    """Write `RotaryEmbedding`: pairs of elements of each head are turned by the place's angles.

    Pairs are neighbours (`interleaved`), or an element of each half.
    """
    if site.attribute("is_packed_batching", 0):
        site.refuse("its batch is packed")
    shape = site.shape()
    half = site.shape(2)[1]
    if len(shape) == 4:  # (batch, heads, steps, size)
        batch, count, steps, size = shape
        data, order = site.node.input[0], (batch, 1, steps, half)
        outer: tuple[int, ...] = (batch, count, steps)
    else:
        batch, steps, hidden = shape
        count = site.attribute("num_heads", 0) or hidden // _size(site, half)
        size, outer, order = hidden // count, (batch, steps, count), (batch, steps, 1, half)
        data = site.reshaped(site.node.input[0], [*outer, size])
    if 2 * half > size:
        site.refuse(f"its table has {half} angles, its heads {size} elements")
    cosine, sine = (_angles(site, place, steps, order) for place in (2, 3))
    turned = data if 2 * half == size else site.sliced(data, [3], [0], [2 * half])
    turned = _turned(site, turned, outer, half, cosine, sine)
    if 2 * half < size:
        turned = site.add("Concat", turned, site.sliced(data, [3], [2 * half], [size]), axis=3)
    return [site.reshaped(turned, shape) if len(shape) == 3 else turned]


def _size(site: Site, half: int) -> int:
    if site.attribute("rotary_embedding_dim", 0):
        site.refuse("it turns a part of each head, and does not say how many there are")
    return 2 * half


def _angles(site: Site, place: int, steps: int, order: tuple[int, ...]) -> str:
    """Return cosines or sines of all places, in the order of the data."""
    places = site.node.input[1]
    if site.shape(1) in ((), (1,)):  # the first one; others follow
        following = site.constant(np.arange(steps, dtype=np.int64))
        places = site.add("Add", site.reshaped(places, [1]), following)
        order = (1, *order[1:])
    return site.reshaped(site.add("Gather", site.node.input[place], places, axis=0), order)


def _turned(
    site: Site, data: str, outer: tuple[int, ...], half: int, cosine: str, sine: str
) -> str:
    apart = (half, 2) if site.attribute("interleaved", 0) else (2, half)
    axis = 4 if apart[1] == 2 and site.attribute("interleaved", 0) else 3
    pairs = site.reshaped(data, [*outer, *apart])
    first, second = (site.add("Gather", pairs, site.number(i), axis=axis) for i in range(2))
    one = site.add("Sub", site.add("Mul", first, cosine), site.add("Mul", second, sine))
    other = site.add("Add", site.add("Mul", first, sine), site.add("Mul", second, cosine))
    shape = [*outer, half, 1] if axis == 4 else [*outer, 1, half]
    both = site.add("Concat", *(site.reshaped(x, shape) for x in (one, other)), axis=axis)
    return site.reshaped(both, [*outer, 2 * half])
