"""Elementwise operators on the 256 values that a tensor of 8 bits can have, as the floats they are.

Arithmetic is that of float32; functions are computed in float64 and rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax

from tvm_blislike.tvm_seams import dtype_name, op_name

_Function = Callable[..., np.ndarray]


def values_of(call: relax.Call, operands: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the results of an operator, None for one that is not elementwise, or not known.

    Parameters
    ----------
    call : relax.Call
        Of the model.
    operands : sequence of numpy.ndarray
        Its tensors: 256 values each, or a constant of one element.
    """
    name = op_name(call).removeprefix("relax.").removeprefix("nn.")
    with np.errstate(all="ignore"):
        if name in _WITH_ATTRIBUTES:
            result = _WITH_ATTRIBUTES[name](call, *operands)
        elif name in _ARITHMETIC:
            result = _ARITHMETIC[name](*operands)
        elif name in _FUNCTIONS:
            result = _FUNCTIONS[name](*(operand.astype(np.float64) for operand in operands))
        else:
            return None
        return np.asarray(result).astype(dtype_name(call))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _leaky(call: relax.Call, x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, x * np.float32(call.attrs.alpha))


def _clipped(call: relax.Call, x: np.ndarray) -> np.ndarray:
    low, high = (np.float32(float(arg.value)) for arg in call.args[1:])
    return np.minimum(np.maximum(x, low), high)


_erf = np.vectorize(math.erf, otypes=[np.float64])
_WITH_ATTRIBUTES: dict[str, _Function] = {
    "leakyrelu": _leaky,
    "clip": _clipped,
    "astype": lambda _call, x: x,
}
_ARITHMETIC: dict[str, _Function] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "negative": np.negative,
    "abs": np.abs,
    "square": np.square,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sqrt": np.sqrt,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "prelu": lambda x, slope: np.where(x > 0, x, x * slope),
    "where": np.where,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
}
_FUNCTIONS: dict[str, _Function] = {
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x * math.sqrt(0.5))),
    "gelu_tanh": _gelu_tanh,
    "erf": _erf,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "power": np.power,
    **{name: getattr(np, name) for name in "exp log tanh sin cos tan sinh cosh".split()},
}
