"""Random nodes of elementwise operators: one operand, two that broadcast, comparisons, casts."""

from __future__ import annotations

import numpy as np
from graphs import Graph, RejectedError, Tensor

FLOATS = ("float32", "float64", "float16")
INTEGERS = ("int64", "int32", "uint8", "int8")
# Operators of one operand: the opset they came with, and what its values must be.
_ANY, _POSITIVE, _UNIT = "any", "positive", "unit"
_UNARY = {
    "Abs": (6, _ANY), "Acos": (7, _UNIT), "Acosh": (9, "above one"), "Asin": (7, _UNIT),
    "Asinh": (9, _ANY), "Atan": (7, _ANY), "Atanh": (9, _UNIT), "Ceil": (6, _ANY), "Cos": (7, _ANY),
    "Cosh": (9, _ANY), "Erf": (9, _ANY), "Exp": (6, _ANY), "Floor": (6, _ANY),
    "HardSwish": (14, _ANY), "Identity": (6, _ANY), "Log": (6, _POSITIVE), "Mish": (18, _ANY),
    "Neg": (6, _ANY), "Reciprocal": (6, _POSITIVE), "Relu": (6, _ANY), "Round": (11, _ANY),
    "Sigmoid": (6, _ANY), "Sign": (9, _ANY), "Sin": (7, _ANY), "Sinh": (9, _ANY),
    "Softplus": (6, _ANY), "Softsign": (6, _ANY), "Sqrt": (6, _POSITIVE), "Tan": (7, _UNIT),
    "Tanh": (6, _ANY),
}  # fmt: skip
# ... with integers as well, and from which opset on.
_INTEGER_UNARY = {"Abs": 6, "Neg": 6, "Sign": 9, "Relu": 14, "Identity": 6}
_FITS = {
    _ANY: lambda value: True,
    _POSITIVE: lambda value: value.size == 0 or value.min() > 0.05,
    _UNIT: lambda value: value.size == 0 or np.abs(value).max() < 0.98,
    "above one": lambda value: value.size == 0 or value.min() > 1.01,
}


def unary(g: Graph) -> None:
    """A function of each element."""
    operator = g.pick([name for name, (since, _) in _UNARY.items() if since <= g.opset])
    kind = _UNARY[operator][1]
    if g.opset >= _INTEGER_UNARY.get(operator, 99) and g.chance(0.2):
        g.node(operator, [g.tensor(("int64", "int32", "int8"))])
        return
    if kind == "above one":
        operand = g.tensor(fits=_FITS[kind], kind=_POSITIVE)
    else:
        operand = g.tensor(fits=_FITS[kind], kind=kind)
    g.node(operator, [operand])


def activation(g: Graph) -> None:
    """A function with attributes."""
    x = g.tensor()
    a, b = round(g.rng.uniform(0.01, 1.5), 3), round(g.rng.uniform(-0.5, 1.5), 3)
    options = {
        "Elu": (6, {"alpha": a}),
        "Selu": (6, {"alpha": a + 1, "gamma": b + 1}),
        "LeakyRelu": (6, {"alpha": b}),
        "HardSigmoid": (6, {"alpha": a, "beta": b}),
        "ThresholdedRelu": (10, {"alpha": a}),
        "Shrink": (9, {"bias": b, "lambd": a}),
        "Gelu": (20, {"approximate": g.pick(["none", "tanh"])}),
    }
    operator = g.pick([name for name, (since, _) in options.items() if since <= g.opset])
    g.node(operator, [x], **g.maybe(0.7, **options[operator][1]))


def clip(g: Graph) -> None:
    """Clip with any of its bounds."""
    low, high = sorted(np.round(g.rng.standard_normal(2), 2))
    if g.chance(0.05):
        low, high = high, low  # then every value is `high`
    if g.opset < 11:
        g.node("Clip", [g.tensor()], **g.maybe(0.8, min=float(low), max=float(high)))
        return
    integers = g.opset >= 12 and g.chance(0.2)
    x = g.tensor(INTEGERS) if integers else g.tensor()
    if integers:
        low, high = 1, 4
    bounds = [g.constant(v, x.dtype) if g.chance(0.8) else None for v in (low, high)]
    g.node("Clip", [x, *bounds])


def prelu(g: Graph) -> None:
    """PRelu with one slope, or slopes that broadcast."""
    x = g.tensor(rank=(1, 2, 3, 4))
    g.node("PRelu", [x, _partner(g, x, one_way=True)])


def binary(g: Graph) -> None:
    """Arithmetic of two operands that broadcast."""
    operator = g.pick(["Add", "Add", "Sub", "Mul", "Mul", "Div", "Pow", "Mod", "BitShift"])
    if operator == "BitShift":
        if g.opset < 11:
            raise RejectedError("too early")
        x = g.tensor(("uint8", "uint32", "uint64"))
        y = g.constant(g.rng.integers(0, 4, x.shape), x.dtype)
        g.node(operator, [x, y], direction=g.pick(["LEFT", "RIGHT"]))
        return
    if operator == "Mod":
        _mod(g)
        return
    types = ("int64", "int32") if g.chance(0.15) else ()
    x = g.tensor(types)
    if operator == "Pow":
        _pow(g, x)
        return
    y = _partner(g, x)
    if operator == "Div":
        far = np.abs(y.value).min(initial=9) > 0.2
        if not far:
            y = _constant_partner(g, x, "positive")
    pair = [x, y]
    if operator != "Div" and g.chance(0.5):
        pair.reverse()
    g.node(operator, pair)


def _mod(g: Graph) -> None:
    if g.opset < 10:
        raise RejectedError("too early")
    x = g.tensor() if g.chance(0.5) else g.tensor(("int64", "int32", "int8"))
    y = _constant_partner(g, x, "positive")
    fmod = 1 if x.value.dtype.kind == "f" else g.integer(0, 1)
    g.node("Mod", [x, y], fmod=fmod)


def _pow(g: Graph, x: Tensor) -> None:
    positive = x.value.min(initial=1) > 0.05
    exponents = [0.5, 1.5, 2.0, -0.5, 3.0] if positive else [2.0, 3.0, 1.0, 0.0]
    exponent = g.constant(g.pick(exponents), x.dtype)
    if positive and g.chance(0.3):
        exponent = _constant_partner(g, x)
    g.node("Pow", [x, exponent])


def variadic(g: Graph) -> None:
    """Max, Min, Sum, Mean of one to four tensors."""
    operator = g.pick(["Max", "Min", "Sum", "Mean"])
    integers = operator in ("Max", "Min") and g.opset >= 12 and g.chance(0.2)
    x = g.tensor(("int64", "int32") if integers else ())
    others = [_partner(g, x) for _ in range(g.integer(0, 3))]
    g.node(operator, [x, *others])


def comparison(g: Graph) -> None:
    """Two operands to truth values."""
    operators = ["Equal", "Greater", "Less"]
    operators += ["GreaterOrEqual", "LessOrEqual"] if g.opset >= 12 else []
    types = ("int64", "int32") if g.chance(0.4) or g.opset < 11 else ()
    x = g.tensor(types)
    g.node(g.pick(operators), [x, _partner(g, x)])


def logical(g: Graph) -> None:
    """Arithmetic of truth values and bits."""
    if g.opset >= 18 and g.chance(0.3):
        x = g.tensor(("int64", "int32", "uint8", "int8"))
        operator = g.pick(["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"])
        operands = [x] if operator == "BitwiseNot" else [x, _partner(g, x)]
        g.node(operator, operands)
        return
    x = g.tensor(("bool",))
    operator = g.pick(["And", "Or", "Xor", "Not"])
    g.node(operator, [x] if operator == "Not" else [x, _partner(g, x)])


def where(g: Graph) -> None:
    """One of two values for each condition."""
    x = g.tensor((), rank=(0, 1, 2, 3, 4))
    condition = g.tensor(("bool",), fits=lambda v: _broadcasts(v.shape, x.shape))
    g.node("Where", [condition, x, _partner(g, x)])


def cast(g: Graph) -> None:
    """Cast to another type: numbers that both hold."""
    source = g.tensor(("float32", "float64", "int64", "int32", "uint8", "int8", "bool"))
    target = g.pick(["float32", "float64", "int64", "int32", "bool", "uint8", "int8", "float16"])
    if source.value.dtype.kind in "fi" and np.dtype(target).kind == "u":
        if source.value.min(initial=0) < 0:
            target = "int32"
    if source.value.size and source.value.dtype.kind == "f" and np.abs(source.value).max() > 120:
        target = "float32"
    if g.opset >= 15 and g.chance(0.2):
        g.node("CastLike", [source, g.constant(np.zeros(1), target)])
        return
    g.node("Cast", [source], to=int(_onnx_type(target)))


def is_special(g: Graph) -> None:
    """IsNaN and IsInf, of values that are neither: non-finite ones never come this far."""
    operator = g.pick(["IsNaN", "IsInf"])
    if g.opset < 10 or (operator == "IsInf" and g.float_type == "float16"):
        raise RejectedError("too early")
    signs = g.maybe(0.2, detect_negative=g.integer(0, 1), detect_positive=g.integer(0, 1))
    g.node(operator, [g.tensor()], **(signs if operator == "IsInf" else {}))


def _partner(g: Graph, x: Tensor, one_way: bool = False) -> Tensor:
    """Return a tensor of the same type that broadcasts with x (to its shape, when one way)."""
    known = [
        t
        for t in g.tensors
        if t.dtype == x.dtype
        and _broadcasts(t.shape, x.shape)
        and (not one_way or np.broadcast_shapes(t.shape, x.shape) == x.shape)
    ]
    if known and g.chance(0.5):
        return g.pick(known)
    return _constant_partner(g, x, more=not one_way)


def _constant_partner(g: Graph, x: Tensor, kind: str = "any", more: bool = False) -> Tensor:
    """Return a constant or input whose shape broadcasts to that of x, or beyond it when `more`."""
    shape = tuple(1 if g.chance(0.3) else size for size in x.shape)
    shape = shape[g.integer(0, len(shape)) :] if g.chance(0.4) else shape
    if more and g.chance(0.1):
        shape = (g.integer(1, 3),) * g.integer(1, 2) + (1,) * (x.rank - len(shape)) + shape
    value = g.values(shape, x.dtype, kind)
    return g.input(value) if g.chance(0.15) else g.constant(value)


def _broadcasts(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(first, second)
    except ValueError:
        return False
    return True


def _onnx_type(dtype: str) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


NODES = {
    unary: 10, activation: 6, clip: 2, prelu: 1, binary: 10, variadic: 3, comparison: 2,
    logical: 2, where: 2, cast: 3, is_special: 1,
}  # fmt: skip
