"""Elementwise operators with operands of types that the importer does not expect."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site


def pow_(site: Site) -> Sequence[str] | None:
    """Write powers of integers in double precision, where ONNX Runtime computes them, too."""
    types = site.known_dtype(), site.known_dtype(1)
    if any(t is None for t in types) or (types[0].kind == "f" and types[0] == types[1]):
        return None
    operands = [site.node.input[0], site.node.input[1]]
    wide = site.dtype() if site.dtype().kind == "f" else np.dtype(np.float64)
    casts = [
        name if site.dtype(i) == wide else site.cast(name, wide) for i, name in enumerate(operands)
    ]
    power = site.add("Pow", *casts)
    return [power if wide == site.dtype() else site.cast(power, site.dtype())]


def mod(site: Site) -> Sequence[str] | None:
    """Write `Mod` of floating point numbers with the sign of the divisor.

    TVM computes a - floor(a / b) * b, which is no number where b is infinite.
    """
    dtype = site.known_dtype()
    if dtype is None or dtype.kind in "iu" or site.attribute("fmod", 0):
        return None
    divisor = site.node.input[1]
    rest, zero = site.add("Mod", *site.node.input, fmod=1), _number(site, 0)
    differ = site.add("Xor", site.add("Less", rest, zero), site.add("Less", divisor, zero))
    shifted = site.add("Where", differ, site.add("Add", rest, divisor), rest)
    return [site.add("Where", site.add("Equal", rest, zero), rest, shifted)]


def bit_shift(site: Site) -> Sequence[str] | None:
    """Write `BitShift` by more than all bits, or by less than none, as what ONNX says of it.

    Processors have several answers: by as many bits modulo their number, or none left.
    """
    dtype, by = site.dtype(), site.known(1)
    bits = dtype.itemsize * 8
    if by is not None and by.size and 0 <= by.min() and by.max() < bits:
        return None
    data, amount = site.node.input
    zero = _number(site, 0)
    inside = site.add("Less", amount, _number(site, bits))
    if dtype.kind == "i":
        inside = site.add("And", inside, site.add("Not", site.add("Less", amount, zero)))
    shifted = site.again(data, site.add("Where", inside, amount, zero))
    nothing = zero
    if dtype.kind == "i" and site.attribute("direction") == "RIGHT":
        nothing = site.add("Where", site.add("Less", data, zero), _number(site, -1), zero)
    return [site.add("Where", inside, shifted, nothing)]


def mean(site: Site) -> Sequence[str] | None:
    """Write `Mean` as a sum that is divided, in the type of its operands."""
    if site.known_dtype() is None:
        return None
    total, *others = site.node.input
    for other in others:
        total = site.add("Add", total, other)
    return [site.add("Div", total, _number(site, len(site.node.input)))]


def clip(site: Site) -> Sequence[str] | None:
    """Write the `Clip` before opset 11 of other types than fp32, whose bounds are fp32."""
    if site.opset >= 11 or _is_usual(site):
        return None
    result = site.node.input[0]
    for name, operator in (("min", "Max"), ("max", "Min")):
        bound = site.attribute(name)
        if bound is not None:
            result = site.add(operator, result, _number(site, bound))
    return [result]


def quick_gelu(site: Site) -> Sequence[str]:
    """Write `QuickGelu`: x times the sigmoid of alpha x."""
    data, alpha = site.node.input[0], site.attribute("alpha", 1.702)
    scaled = data if alpha == 1 else site.add("Mul", data, _number(site, alpha))
    return [site.add("Mul", data, site.add("Sigmoid", scaled))]


def cast(site: Site) -> Sequence[str] | None:
    """Drop a `Cast` to the type that a tensor has: patterns do not look through them."""
    from onnx import helper

    same = helper.tensor_dtype_to_np_dtype(site.attribute("to")) == site.known_dtype()
    return [site.add("Identity", site.node.input[0])] if same and site.known_dtype() else None


def is_inf(site: Site) -> Sequence[str] | None:
    """Write `IsInf` of one sign as a comparison; the importer asks for both."""
    signs = [site.attribute(f"detect_{sign}", 1) for sign in ("negative", "positive")]
    if all(signs):
        return None
    wanted = np.inf if signs[1] else -np.inf if signs[0] else np.nan  # nothing equals NaN
    return [site.add("Equal", site.node.input[0], _number(site, wanted))]


def elu(site: Site) -> Sequence[str] | None:
    """Write `Elu` and `Selu` of other types than fp32; the importer has fp32 constants."""
    if _is_usual(site):
        return None
    selu = site.node.op_type == "Selu"
    alpha = site.attribute("alpha", 1.67326319217681884765625 if selu else 1.0)
    gamma = site.attribute("gamma", 1.05070102214813232421875) if selu else 1.0
    data = site.node.input[0]
    zero, one, alpha, gamma = (_number(site, value) for value in (0, 1, alpha, gamma))
    below = site.add("Sub", site.add("Exp", site.add("Min", data, zero)), one)
    total = site.add("Add", site.add("Max", data, zero), site.add("Mul", below, alpha))
    return [site.add("Mul", total, gamma)]


def thresholded_relu(site: Site) -> Sequence[str]:
    """Write `ThresholdedRelu` as a choice; the importer multiplies by 0, and -inf * 0 is NaN."""
    data = site.node.input[0]
    above = site.add("Less", _number(site, site.attribute("alpha", 1.0)), data)
    return [site.add("Where", above, data, _number(site, 0))]


def hyperbolic(site: Site) -> Sequence[str] | None:
    """Write `Cosh` and `Sinh` of fp64 by exponentials; TVM has them for fp32 only."""
    if not site.is_of(np.float64):
        return None
    data = site.node.input[0]
    both = site.add("Exp", data), site.add("Exp", site.add("Neg", data))
    total = site.add("Add" if site.node.op_type == "Cosh" else "Sub", *both)
    return [site.add("Mul", total, _number(site, 0.5))]


def in_single(site: Site) -> Sequence[str] | None:
    """Compute a function of fp16 in fp32: LLVM has no such function of halves."""
    if not site.is_of(np.float16):
        return None
    operands = [site.cast(name, np.float32) for name in site.node.input]
    return [site.cast(site.again(*operands), np.float16)]


def dropout(site: Site) -> Sequence[str] | None:
    """Write a `Dropout` whose mask is read as what it is in inference: everything is kept."""
    if site.has_operand(2) and site.value(2).item():
        site.refuse("training_mode is set; export it for inference")
    results = [site.add("Identity", site.node.input[0])]
    if site.results() > 1:
        if site.opset < 12:
            site.refuse("before opset 12 its mask means nothing in inference, but is read")
        results.append(site.constant(np.ones(site.shape(), bool)))
    return results


def eye_like(site: Site) -> Sequence[str]:
    """Write `EyeLike` as the constant that it is."""
    from onnx import helper

    element = site.attribute("dtype")
    dtype = helper.tensor_dtype_to_np_dtype(element) if element else site.dtype()
    return [site.constant(np.eye(*site.shape(), k=site.attribute("k", 0), dtype=dtype))]


def _is_usual(site: Site) -> bool:
    """Whether the operand is of fp32, or as good as that because nothing is known of it."""
    return site.known_dtype() is None or site.is_of(np.float32)


def _number(site: Site, value: float) -> str:
    return site.constant(np.array(value, site.dtype()))
