"""Random nodes of convolutions, matrix products and what normalizes behind them."""

from __future__ import annotations

import math
from typing import Any

from graphs import Graph, RejectedError, Tensor

_MOST_MACS = 4_000_000


def conv(g: Graph) -> None:
    """Conv in one to three dimensions with any of its attributes."""
    x = g.tensor(rank=(3, 4, 4, 4, 5), fits=lambda v: v.shape[1] > 0)
    _, ci, *sizes = x.shape
    groups = _groups(g, ci)
    co = groups * g.pick([1, 1, 2, 3, 4, 8, 16] if groups > 1 else [1, 2, 5, 8, 12, 16, 24, 32, 48])
    window, kernel = _window(g, sizes)
    _limit(x.value.size * co // groups * math.prod(kernel))
    reach = ci // groups * math.prod(kernel)
    w = g.weights((co, ci // groups, *kernel), x.dtype, 1 / math.sqrt(max(reach, 1)))
    operands = [x, w] + ([g.weights((co,), x.dtype)] if g.chance(0.5) else [])
    if g.chance(0.5):
        window["kernel_shape"] = kernel
    if groups > 1 or g.chance(0.2):
        window["group"] = groups
    y = g.node("Conv", operands, **window)[0]
    _behind(g, y)


def conv_transpose(g: Graph) -> None:
    """ConvTranspose in one to three dimensions."""
    x = g.tensor(rank=(3, 4, 4, 5), fits=lambda v: v.shape[1] > 0)
    _, ci, *sizes = x.shape
    groups = _groups(g, ci)
    co = groups * g.pick([1, 2, 4, 8])
    window, kernel = _window(g, sizes, transposed=True)
    _limit(x.value.size * co // groups * math.prod(kernel))
    w = g.weights((ci, co // groups, *kernel), x.dtype, 1 / math.sqrt(ci // groups))
    operands = [x, w] + ([g.weights((co,), x.dtype)] if g.chance(0.5) else [])
    if g.chance(0.3):
        strides = window.get("strides", [1] * len(sizes))
        window["output_padding"] = [g.integer(0, max(s - 1, 0)) for s in strides]
    if g.chance(0.5):
        window["kernel_shape"] = kernel
    if groups > 1:
        window["group"] = groups
    if g.chance(0.1):
        strides = window.get("strides", [1] * len(sizes))
        window["output_shape"] = [
            n * s + g.integer(0, 1) for n, s in zip(sizes, strides, strict=True)
        ]
        window.pop("pads", None)
    _behind(g, g.node("ConvTranspose", operands, **window)[0])


def gemm(g: Graph) -> None:
    """Gemm with transposed operands, factors and a bias that broadcasts."""
    trans_a, trans_b = g.integer(0, 1), g.integer(0, 1)
    a = g.tensor(rank=2)
    m, k = a.shape[::-1] if trans_a else a.shape
    n = g.size(40)
    b = _second(g, (n, k) if trans_b else (k, n), a.dtype)
    operands = [a, b]
    if g.opset < 11 or g.chance(0.7):
        operands.append(g.weights(g.pick([(n,), (m, n), (1, n), (m, 1), (1,), ()]), a.dtype))
    alpha, beta = (round(g.rng.uniform(0.2, 2), 2) for _ in range(2))
    g.node("Gemm", operands, transA=trans_a, transB=trans_b, **g.maybe(0.3, alpha=alpha, beta=beta))


def matmul(g: Graph) -> None:
    """MatMul of vectors, matrices and batches that broadcast."""
    a = g.tensor(rank=(1, 2, 3, 4))
    k = a.shape[-1]
    shape: tuple[int, ...] = (k, g.size(48))
    if g.chance(0.1):
        shape = (k,)
    elif a.rank > 2 and g.chance(0.5):
        batch = [size if g.chance(0.7) else 1 for size in a.shape[:-2]]
        shape = (*batch[g.integer(0, len(batch)) :], *shape)
    elif g.chance(0.1):
        shape = (g.integer(1, 3), *shape)
    _limit(a.value.size * (shape[-1] if len(shape) > 1 else 1) * 4)
    _behind(g, g.node("MatMul", [a, _second(g, shape, a.dtype)])[0])


def einsum(g: Graph) -> None:
    """Einsum of the patterns that exporters write, and others."""
    if g.opset < 12:
        raise RejectedError("too early")
    a, b, c, d = (g.integer(1, 9) for _ in range(4))
    x = g.tensor(rank=3)
    b, c, d = x.shape
    equation, other = g.pick(
        [
            ("bij,bjk->bik", (b, d, a)),
            ("bij,bkj->bik", (b, a, d)),
            ("bij,jk->bik", (d, a)),
            ("abc,cd", (d, a)),
            ("bij,bij->b", (b, c, d)),
            ("bij->bji", None),
            ("bij->i", None),
            ("...ij,...jk->...ik", (b, d, a)),
            ("bij,bi->bj", (b, c)),
        ]
    )
    g.node("Einsum", [x] + ([_second(g, other, x.dtype)] if other else []), equation=equation)


def batch_norm(g: Graph) -> None:
    """BatchNormalization as in inference."""
    x = g.tensor(rank=(2, 3, 4, 4, 5))
    channels = (x.shape[1],)
    scale, bias, mean = (g.weights(channels, x.dtype) for _ in range(3))
    variance = g.constant(g.values(channels, x.dtype, "positive"))
    attributes = g.maybe(0.4, epsilon=1e-3, momentum=0.8)
    _behind(g, g.node("BatchNormalization", [x, scale, bias, mean, variance], **attributes)[0])


def norm(g: Graph) -> None:
    """The normalizations that look at the data."""
    since = {
        "InstanceNormalization": 1,
        "LRN": 1,
        "LayerNormalization": 17,
        "GroupNormalization": 21,
        "MeanVarianceNormalization": 9,
        "RMSNormalization": 23,
    }
    operator = g.pick(list(since))
    if g.opset < since[operator]:
        raise RejectedError("too early")
    globals()[f"_{operator.lower()}"](g)


def _instancenormalization(g: Graph) -> None:
    x = g.tensor(rank=(3, 4, 5), fits=lambda v: v[0, 0].size > 3 if v.size else False)
    scale, bias = (g.weights((x.shape[1],), x.dtype) for _ in range(2))
    g.node("InstanceNormalization", [x, scale, bias], **g.maybe(0.4, epsilon=1e-3))


def _layernormalization(g: Graph) -> None:
    x = g.tensor(rank=(2, 3, 4))
    axis = g.integer(-x.rank, x.rank - 1)
    shape = x.shape[axis:]
    if math.prod(shape) < 4:
        raise RejectedError("nothing to normalize")
    operands = [x, g.weights(shape, x.dtype)]
    operands += [g.weights(shape, x.dtype)] if g.chance(0.6) else []
    outputs = 3 if g.chance(0.1) else 1
    g.node("LayerNormalization", operands, outputs, axis=axis, **g.maybe(0.4, epsilon=1e-3))


def _rmsnormalization(g: Graph) -> None:
    x = g.tensor(rank=(2, 3, 4))
    axis = g.integer(-x.rank, x.rank - 1)
    shape = x.shape[axis:]
    g.node(
        "RMSNormalization", [x, g.weights(shape, x.dtype)], axis=axis, **g.maybe(0.4, epsilon=1e-3)
    )


def _groupnormalization(g: Graph) -> None:
    x = g.tensor(rank=(3, 4), fits=lambda v: v.shape[1] % 2 == 0 and v.size > 8)
    scale, bias = (g.weights((x.shape[1],), x.dtype) for _ in range(2))
    groups = g.pick([d for d in (1, 2, x.shape[1]) if x.value[0].size // d > 3] or [1])
    g.node("GroupNormalization", [x, scale, bias], num_groups=groups, **g.maybe(0.4, epsilon=1e-3))


def _lrn(g: Graph) -> None:
    x = g.tensor(rank=4)
    size = g.pick([1, 3, 5, 2, 4])
    g.node("LRN", [x], size=size, **g.maybe(0.5, alpha=0.02, beta=0.6, bias=1.5))


def _meanvariancenormalization(g: Graph) -> None:
    x = g.tensor(rank=4, fits=lambda v: v.size > 8)
    axes = sorted(g.rng.choice(4, g.integer(1, 3), replace=False).tolist())
    g.node("MeanVarianceNormalization", [x], **g.maybe(0.6, axes=axes))


def softmax(g: Graph) -> None:
    """Softmax and its relatives along any axis."""
    operator = g.pick(["Softmax", "Softmax", "LogSoftmax", "Hardmax"])
    # ONNX's reference, which has Hardmax of other types, knows its newest form only.
    x = g.tensor(("float32",) if operator == "Hardmax" else (), rank=(1, 2, 3, 4))
    axis = g.integer(-x.rank, x.rank - 1)
    g.node(operator, [x], **g.maybe(0.8, axis=axis))


def attention(g: Graph) -> None:
    """Attention of opset 23 with heads of their own axis or within the last one."""
    if g.opset < 23:
        raise RejectedError("too early")
    batch, heads, length, keys, size = (g.integer(1, 4) for _ in range(5))
    size, keys = 4 * size, keys + length
    query = g.input(g.values((batch, heads, length, size), g.float_type))
    key, value = (g.input(g.values((batch, heads, keys, size), g.float_type)) for _ in range(2))
    g.node("Attention", [query, key, value], **g.maybe(0.3, is_causal=1, scale=0.3, softcap=2.0))


def _second(g: Graph, shape: tuple[int, ...], dtype: str) -> Tensor:
    scale = 1 / math.sqrt(max(shape[-2] if len(shape) > 1 else shape[0], 1))
    if g.chance(0.25):
        return g.input((scale * g.values(shape, dtype)).astype(dtype))
    return g.weights(shape, dtype, scale)


def _groups(g: Graph, ci: int) -> int:
    if g.chance(0.6):
        return 1
    return ci if g.chance(0.5) else g.pick([d for d in range(1, ci + 1) if ci % d == 0])


def _window(
    g: Graph, sizes: list[int], transposed: bool = False
) -> tuple[dict[str, Any], list[int]]:
    """Return random strides, dilations and pads, and a kernel size that usually fits."""
    rank = len(sizes)
    kernel = [g.pick([1, 1, 2, 3, 3, 3, 4, 5, 7]) for _ in sizes]
    if g.chance(0.5):
        kernel = [kernel[0]] * rank
    attributes: dict[str, Any] = {}
    if g.chance(0.4):
        attributes["strides"] = [g.integer(1, 3) for _ in sizes]
    if g.chance(0.25):
        attributes["dilations"] = [g.integer(1, 3) for _ in sizes]
    style = g.rng.random()
    if style < 0.35:
        same = [k // 2 for k in kernel]
        attributes["pads"] = same + same
    elif style < 0.55:
        attributes["pads"] = [g.integer(0, max(kernel[i % rank] - 1, 0)) for i in range(2 * rank)]
    elif style < 0.75:
        attributes["auto_pad"] = g.pick(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
    return attributes, kernel


def _behind(g: Graph, y: Tensor) -> None:
    """Now and then add what models have behind a convolution: an epilogue that is fused."""
    if not g.chance(0.5):
        return
    with g.attempt():
        if g.chance(0.4):
            shape = (1,) * g.integer(0, 2) + tuple(
                1 if i != 1 else s for i, s in enumerate(y.shape)
            )
            y = g.node(g.pick(["Add", "Mul", "Sub"]), [y, g.weights(shape, y.dtype)])[0]
        if g.chance(0.3):
            others = [t for t in g.tensors if t.shape == y.shape and t.dtype == y.dtype]
            y = g.node("Add", [y, g.pick(others)])[0]
        if g.chance(0.7):
            operators = ["Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Softplus", "HardSigmoid"]
            operators += ["HardSwish"] if g.opset >= 14 else []
            y = g.node(g.pick(operators), [y])[0]


def _limit(macs: int) -> None:
    if macs > _MOST_MACS:
        raise RejectedError("too many operations")


NODES = {
    conv: 14, conv_transpose: 4, gemm: 4, matmul: 5, einsum: 1, batch_norm: 3, norm: 4, softmax: 3,
    attention: 1,
}  # fmt: skip
