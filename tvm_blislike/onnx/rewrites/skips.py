"""Normalizations of ONNX Runtime's own, of sums and of embeddings, written as ONNX's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site

_USUAL_EPSILON = 1e-12


def skip_layer_norm(site: Site) -> Sequence[str]:
    """Write `SkipLayerNormalization`: of the sum of its data, a residual and a bias."""
    total = _total(site, 4)
    return [*_layer_norm(site, total, 2, 3), total]


def skip_rms_norm(site: Site) -> Sequence[str]:
    """Write `SkipSimplifiedLayerNormalization`: that without a mean and without `beta`."""
    total = _total(site, 3)
    # Results are the norm, a mean, the inverse deviation and the sum.
    for name in site.node.output[1:3]:
        if name in site.read:
            site.refuse(f"its result {name!r} is read")
    epsilon = site.attribute("epsilon", _USUAL_EPSILON)
    result = site.add("RMSNormalization", total, site.node.input[2], axis=-1, epsilon=epsilon)
    return [result, result, result, total]


def rms_norm(site: Site) -> Sequence[str]:
    """Write `SimplifiedLayerNormalization` as ONNX's `RMSNormalization`."""
    if site.results() > 1:
        site.refuse(f"its result {site.node.output[1]!r} is read")
    axis, epsilon = site.attribute("axis", -1), site.attribute("epsilon", 1e-5)
    data, gamma = site.node.input[:2]
    if axis % len(site.shape()):
        return [site.add("RMSNormalization", data, gamma, axis=axis, epsilon=epsilon)]
    site.refuse("it is over all axes")


def group_norm(site: Site) -> Sequence[str]:
    """Write `GroupNorm`, whose channels stand last, as ONNX's; SiLU may follow it."""
    data, last = site.node.input[0], bool(site.attribute("channels_last", 1))
    rank = len(site.shape())
    axes = [0, rank - 1, *range(1, rank - 1)]
    first = site.add("Transpose", data, perm=axes) if last else data
    epsilon, groups = site.attribute("epsilon", 1e-5), site.attribute("groups")
    # Before opset 21 ONNX scales groups, since then channels.
    scaled = groups if site.opset < 21 else site.shape(1)[0]
    usual = [site.constant(np.full(scaled, value, site.dtype())) for value in (1, 0)]
    result = site.add("GroupNormalization", first, *usual, num_groups=groups, epsilon=epsilon)
    for operator, place in (("Mul", 1), ("Add", 2)):
        name = site.node.input[place]
        ends = name if site.dtype(place) == site.dtype() else site.cast(name, site.dtype())
        shape = [-1, *[1] * (rank - 2)]
        result = site.add(operator, result, site.reshaped(ends, shape))
    if last:
        result = site.add("Transpose", result, perm=[axes.index(axis) for axis in range(rank)])
    if site.attribute("activation", 0):
        result = site.add("Mul", result, site.add("Sigmoid", result))
    return [result]


def embed_layer_norm(site: Site) -> Sequence[str]:
    """Write `EmbedLayerNormalization`: of the sum of the words', segments' and places' vectors."""
    batch, length = site.shape()
    total = site.add("Gather", site.node.input[2], site.node.input[0], axis=0)
    total = site.add("Add", total, _places(site, length))
    if site.has_operand(1) and site.has_operand(4):
        segments = site.add("Gather", site.node.input[4], site.node.input[1], axis=0)
        total = site.add("Add", total, segments)
    epsilon = site.attribute("epsilon", _USUAL_EPSILON)
    ends = site.node.input[5:7]
    normalized = site.add("LayerNormalization", total, *ends, axis=-1, epsilon=epsilon)
    return [normalized, _lengths(site, batch), total]


def _places(site: Site, length: int) -> str:
    """Return the vectors of the places, those in order unless the node names others."""
    if site.has_operand(8):
        return site.add("Gather", site.node.input[3], site.node.input[8], axis=0)
    return site.sliced(site.node.input[3], [0], [0], [length])


def _lengths(site: Site, batch: int) -> str:
    """Return how many words each sentence has."""
    if not site.has_operand(7) or not site.attribute("mask_index_type", 1):
        return site.constant(np.zeros(batch, np.int32))
    return site.cast(site.reduced("ReduceSum", site.node.input[7], [1]), np.int32)


def _total(site: Site, bias: int) -> str:
    shapes = [site.shape(index) for index in range(2)]
    skip = site.node.input[1]
    if len(shapes[1]) not in (2, len(shapes[0])):
        site.refuse(f"its residual has the shape {shapes[1]}, its data {shapes[0]}")
    total = site.add("Add", site.node.input[0], skip)
    return site.add("Add", total, site.node.input[bias]) if site.has_operand(bias) else total


def _layer_norm(site: Site, data: str, gamma: int, beta: int) -> list[str]:
    """Return a layer norm over the last axis, and mean and inverse deviation where they are read.

    `gamma` and `beta` are places of operands.
    """
    epsilon = site.attribute("epsilon", _USUAL_EPSILON)
    weights = site.node.input[gamma]
    shift = site.node.input[beta] if site.has_operand(beta) else None
    if not any(name in site.read for name in site.node.output[1:3]):
        shift = shift or site.constant(np.zeros(site.shape(gamma), site.dtype(gamma)))
        result = site.add("LayerNormalization", data, weights, shift, axis=-1, epsilon=epsilon)
        return [result, result, result]
    mean = site.reduced("ReduceMean", data, [-1], keepdims=1)
    centred = site.add("Sub", data, mean)
    squares = site.add("Mul", centred, centred)
    inverse = _inverse_root(site, site.reduced("ReduceMean", squares, [-1], keepdims=1), epsilon)
    result = site.add("Mul", site.add("Mul", centred, inverse), weights)
    return [site.add("Add", result, shift) if shift else result, mean, inverse]


def _inverse_root(site: Site, squares: str, epsilon: float) -> str:
    shifted = site.add("Add", squares, site.constant(np.array(epsilon, site.dtype())))
    return site.add("Reciprocal", site.add("Sqrt", shifted))
