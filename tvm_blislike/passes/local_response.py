"""Normalization across channels (ONNX `LRN`) as one kernel.

    y[c] = x[c] / (bias + alpha * mean of x[c - size // 2 .. c + (size - 1) // 2] ** 2) ** beta

TVM's importer writes it as a square, a 3-D average pool over an added axis, and four elementwise
operators: six passes over memory where the sum of a few neighbours is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.tvm_seams import (
    constant_array,
    dtype_name,
    functions,
    is_constant,
    op_name,
    static_shape,
)
from tvm_blislike.tvm_seams.attributes import NEVER_FUSED

# Channels whose squares are written out as one sum; a pool is better for wider windows.
_MOST_CHANNELS = 16
# What the importer sums neighbours by.
POOLS = frozenset(["relax.nn.avg_pool2d", "relax.nn.avg_pool3d"])


@tvm.transform.module_pass(opt_level=0, name="blislike.LocalResponse")
def local_response(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Replace what the importer makes of `LRN`."""
    found = False
    rewriter = _Rewriter(mod)
    for gvar, func in functions(mod):
        new = rewriter.visit_expr(func)
        if not new.same_as(func):
            found = True
            rewriter.builder_.update_func(gvar, new)
    return rewriter.builder_.get() if found else mod


@dataclass(frozen=True)
class _Window:
    """The normalized tensor and the parameters of `LRN`."""

    data: relax.Expr
    size: int
    alpha: float
    beta: float
    bias: float


@mutator
class _Rewriter(PyExprMutator):
    """Puts one call in the place of each normalization; dead code is left to others."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        window = self._window(call) if op_name(call) == "relax.divide" else None
        if window is None:
            return call
        return self.builder_.call_te(
            lambda data: _normalized(data, window),
            window.data,
            primfunc_name_hint="local_response",
            primfunc_attrs=dict(NEVER_FUSED),
        )

    def _window(self, call: relax.Call) -> _Window | None:
        """Read x / (bias + alpha * pool(x * x)) ** beta backwards."""
        data, below = call.args
        power, beta = self._with_scalar(below, "relax.power")
        sum_, bias = self._with_scalar(power, "relax.add")
        scaled, alpha = self._with_scalar(sum_, "relax.multiply")
        pool = self._value(self._through(scaled, "relax.squeeze"))
        if None in (beta, bias, alpha) or op_name(pool) not in POOLS:
            return None
        size = _channels_of(pool)
        square = self._value(self._through(pool.args[0], "relax.expand_dims"))
        if not size or op_name(square) != "relax.multiply":
            return None
        if not all(arg.same_as(data) for arg in square.args):
            return None
        if static_shape(data) is None or dtype_name(data) != "float32":
            return None
        if static_shape(data) != static_shape(call):
            return None  # A parameter has more axes.
        return _Window(data, size, alpha, beta, bias)

    def _value(self, expr: Any) -> Any:
        bound = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return expr if bound is None else bound

    def _with_scalar(self, expr: Any, operator: str) -> tuple[Any, float | None]:
        """Return the operands of `operator(expr, scalar)`."""
        value = self._value(expr)
        if op_name(value) != operator:
            return None, None
        scalar = self._value(value.args[1])
        if not is_constant(scalar) or constant_array(scalar).size != 1:
            return None, None
        return value.args[0], float(constant_array(scalar).reshape(()))

    def _through(self, expr: Any, operator: str) -> Any:
        """Return the operand of an operator that adds or removes axis 1."""
        value = self._value(expr)
        if op_name(value) != operator or [int(a) for a in value.attrs.axis] != [1]:
            return None
        return value.args[0]


def _channels_of(pool: relax.Call) -> int:
    """Return the width of a pool that runs over channels alone, 0 for any other pool."""
    attrs = pool.attrs
    size, *rest = (int(extent) for extent in attrs.pool_size)
    spatial = len(rest) + 1
    before = [size // 2] + [0] * (spatial - 1)
    is_window = (
        rest == [1] * (spatial - 1)
        and [int(s) for s in attrs.strides] == [1] * spatial
        and [int(p) for p in attrs.padding][:spatial] == before
        and attrs.count_include_pad
        and size <= _MOST_CHANNELS
    )
    return size if is_window else 0


def _normalized(data: te.Tensor, window: _Window) -> te.Tensor:
    """Define the normalization of (n, c, ...)."""
    channels, dtype = data.shape[1], data.dtype
    alpha = tirx.const(np.float32(window.alpha / window.size), dtype)

    def square(n: Any, c: Any, rest: tuple[Any, ...]) -> Any:
        inside = tirx.all(c >= 0, c < channels)
        value = data(n, c, *rest)
        return tirx.if_then_else(inside, value * value, tirx.const(0, dtype))

    def value(n: Any, c: Any, *rest: Any) -> Any:
        first = c - window.size // 2
        total = sum(
            (square(n, first + i, rest) for i in range(1, window.size)), square(n, first, rest)
        )
        below = tirx.power(
            total * alpha + tirx.const(window.bias, dtype), tirx.const(window.beta, dtype)
        )
        return data(n, c, *rest) / below

    return te.compute(data.shape, value, name="local_response")
