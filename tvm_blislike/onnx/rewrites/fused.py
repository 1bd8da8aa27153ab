"""Layers of ONNX Runtime's own that hold more than one operator of ONNX, written as several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site


def conv(site: Site) -> Sequence[str]:
    """Write `FusedConv` as a convolution, the sum with its fourth operand, and an activation."""
    kept = {
        name: site.attribute(name)
        for name in ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
        if site.attribute(name) is not None
    }
    result = site.add("Conv", *_without_end(site.node.input[:3]), **kept)
    if site.has_operand(3):
        result = site.add("Add", result, site.node.input[3])
    return [_activated(site, result, list(site.attribute("activation_params", [])))]


def gemm(site: Site) -> Sequence[str]:
    """Write `FusedGemm` as `Gemm` and an activation."""
    kept = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
    kept = {name: site.attribute(name, usual) for name, usual in kept.items()}
    result = site.add("Gemm", *_without_end(site.node.input[:3]), **kept)
    numbers = [site.attribute(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return [_activated(site, result, [number for number in numbers if number is not None])]


def matmul(site: Site) -> Sequence[str]:
    """Write `FusedMatMul` as the product of its transposed operands, scaled, and an activation."""
    factors = [_factor(site, index, which) for index, which in enumerate("AB")]
    result = site.add("MatMul", *factors)
    scale = site.attribute("alpha", 1.0)
    if scale != 1.0:
        result = site.add("Mul", result, site.constant(np.array(scale, site.dtype())))
    numbers = [site.attribute(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return [_activated(site, result, [number for number in numbers if number is not None])]


def _factor(site: Site, index: int, which: str) -> str:
    """Return a factor as a product takes it.

    `transBatch` says that the rows stand first, before the axes of the batch.
    """
    name = site.node.input[index]
    transposed = bool(site.attribute(f"trans{which}", 0))
    batch_behind = bool(site.attribute(f"transBatch{which}", 0))
    if not (transposed or batch_behind):
        return name
    axes = list(range(len(site.shape(index))))
    if len(axes) < 2:  # a vector stays one
        return name
    if batch_behind:
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if transposed:
        axes[-2:] = axes[:-3:-1]
    return site.add("Transpose", name, perm=axes)


def _without_end(operands: Sequence[str]) -> list[str]:
    """Return operands without those left out at their end."""
    kept = list(operands)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _activated(site: Site, name: str, numbers: list[float]) -> str:
    """Return the activation that a fused layer ends with."""
    kind = site.attribute("activation", "")
    if not kind:
        return name
    if kind not in _ACTIVATIONS:
        site.refuse(f"its activation {kind!r} is none of {', '.join(sorted(_ACTIVATIONS))}")
    return _ACTIVATIONS[kind](site, name, numbers)


Activation = Callable[[Site, str, list[float]], str]


def _plain(operator: str, *names: str) -> Activation:
    """Return an activation whose numbers are attributes of an operator of ONNX."""

    def make(site: Site, name: str, numbers: list[float]) -> str:
        return site.add(operator, name, **dict(zip(names, numbers, strict=False)))

    return make


def _clip(site: Site, name: str, numbers: list[float]) -> str:
    """`Clip`, whose bounds are attributes before opset 11."""
    if len(numbers) != 2:
        site.refuse(f"its activation Clip has {len(numbers)} bounds")
    if site.opset < 11:
        return site.add("Clip", name, min=numbers[0], max=numbers[1])
    return site.add("Clip", name, *(site.constant(np.array(n, site.dtype())) for n in numbers))


_ACTIVATIONS: dict[str, Activation] = {
    "Clip": _clip,
    "Elu": _plain("Elu", "alpha"),
    "HardSigmoid": _plain("HardSigmoid", "alpha", "beta"),
    "LeakyRelu": _plain("LeakyRelu", "alpha"),
    "Relu": _plain("Relu"),
    "Sigmoid": _plain("Sigmoid"),
    "Softplus": _plain("Softplus"),
    "Softsign": _plain("Softsign"),
    "Tanh": _plain("Tanh"),
    "ThresholdedRelu": _plain("ThresholdedRelu", "alpha"),
}
