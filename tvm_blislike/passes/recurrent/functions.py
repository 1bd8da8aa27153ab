"""Activation functions of recurrent cells as scalar expressions; `vector_math` makes vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.model.recurrent import Activation

_Function = Callable[[Any, float, float], Any]


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")


def _positive(x: Any, yes: Any, no: Any) -> Any:
    return tirx.Select(x >= _f32(0), yes, no)


def _softplus(x: Any, _alpha: float, _beta: float) -> Any:
    magnitude = _positive(x, x, _f32(0) - x)
    return T.max(x, _f32(0)) + T.log(_f32(1) + T.exp(_f32(0) - magnitude))


_FUNCTIONS: dict[str, _Function] = {
    "affine": lambda x, a, b: _f32(a) * x + _f32(b),
    "elu": lambda x, a, _: _positive(x, x, _f32(a) * (T.exp(x) - _f32(1))),
    "hardsigmoid": lambda x, a, b: T.min(T.max(_f32(a) * x + _f32(b), _f32(0)), _f32(1)),
    "leakyrelu": lambda x, a, _: _positive(x, x, _f32(a) * x),
    "relu": lambda x, *_: T.max(x, _f32(0)),
    "scaledtanh": lambda x, a, b: _f32(a) * T.tanh(_f32(b) * x),
    "sigmoid": lambda x, *_: T.sigmoid(x),
    "softplus": _softplus,
    "softsign": lambda x, *_: x / (_f32(1) + _positive(x, x, _f32(0) - x)),
    "tanh": lambda x, *_: T.tanh(x),
    "thresholdedrelu": lambda x, a, _: tirx.Select(x > _f32(a), x, _f32(0)),
}


def applied(functions: Sequence[Activation], direction: Any, x: Any) -> Any:
    """Return a function of `x`, that of the direction where directions have different ones."""
    values = [_FUNCTIONS[each.name](x, each.alpha, each.beta) for each in functions]
    if len(set(functions)) == 1:
        return values[0]
    return tirx.Select(direction == 0, *values)


def clipped(x: Any, limit: float) -> Any:
    """Return `x` within a limit on both sides; 0 for none."""
    return T.max(T.min(x, _f32(limit)), _f32(-limit)) if limit else x
