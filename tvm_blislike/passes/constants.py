"""Operators whose inputs are all known at compile time, computed with NumPy; empty tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator

from tvm_blislike.onnx.folding import MOST_ELEMENTS
from tvm_blislike.passes.block_outputs import block_outputs
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
)

# Constants and other names into their readers, and out with what nobody reads: it would count as
# a reader of its operands.
TIDY = tvm.transform.Sequential(
    [
        block_outputs,
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ]
)


def _permute(call: relax.Call, x: np.ndarray) -> np.ndarray:
    axes = call.attrs.axes
    return x.transpose(None if axes is None else [int(axis) for axis in axes])


def _to_result_shape(call: relax.Call, x: np.ndarray) -> np.ndarray:
    return x.reshape(static_shape(call))


def _converted(call: relax.Call, x: np.ndarray) -> np.ndarray | None:
    """Integers of one type as those of another; between other types TVM rounds."""
    dtype = dtype_name(call)
    is_integer = x.dtype.kind in "iu" and dtype.lstrip("u").startswith("int")
    return x.astype(dtype) if is_integer else None


def _taken(call: relax.Call, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Elements by their numbers, as `passes.legalize` has it."""
    axis = call.attrs.axis
    return x.take(indices, None if axis is None else int(axis), mode="clip")


def _joined(call: relax.Call, *parts: np.ndarray) -> np.ndarray:
    axis = call.attrs.axis
    return np.concatenate(parts, 0 if axis is None else int(axis))


def _plain(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda _call, *args: function(*args)


def _of_floats(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray | None]:
    """Return a function of floats, which waits for run time with numbers of another kind."""
    return lambda _call, *args: (
        function(*args) if all(arg.dtype.kind == "f" for arg in args) else None
    )


def _reduced(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray | None]:
    """Return a reduction of floats over the axes of a call, in fp64 as sums of weights are long."""

    def reduced(call: relax.Call, x: np.ndarray) -> np.ndarray | None:
        if x.dtype.kind != "f" or not x.size:
            return None
        axes = None if call.attrs.axis is None else tuple(int(axis) for axis in call.attrs.axis)
        return function(x.astype(np.float64), axis=axes, keepdims=bool(call.attrs.keepdims))

    return reduced


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # By the hyperbolic tangent, which nothing overflows.
    return 0.5 * (1 + np.tanh(0.5 * x.astype(np.float64)))


def _silu(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid(x)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + _erf(x * math.sqrt(0.5)))


def _softmax(call: relax.Call, x: np.ndarray) -> np.ndarray | None:
    if x.dtype.kind != "f" or not x.size:
        return None
    powers = np.exp(x.astype(np.float64) - x.max(axis=int(call.attrs.axis), keepdims=True))
    return powers / powers.sum(axis=int(call.attrs.axis), keepdims=True)


def _layer_norm(call: relax.Call, x: np.ndarray, *affine: np.ndarray) -> np.ndarray | None:
    attrs, axes = call.attrs, tuple(int(axis) % x.ndim for axis in call.attrs.axes)
    # Only there parameters have the axes that NumPy gives them.
    are_last = axes == tuple(range(x.ndim - len(axes), x.ndim))
    if x.dtype.kind != "f" or not are_last:
        return None
    centered = x - x.mean(axis=axes, keepdims=True, dtype=np.float64)
    variance = np.square(centered).mean(axis=axes, keepdims=True)
    scale, shift = affine
    normalized = centered / np.sqrt(variance + attrs.epsilon)
    normalized = normalized * scale if attrs.scale else normalized
    return normalized + shift if attrs.center else normalized


def _tiled(call: relax.Call, x: np.ndarray) -> np.ndarray | None:
    if math.prod(static_shape(call)) > MOST_ELEMENTS:
        return None
    return np.tile(x, [int(times) for times in call.attrs.repeats])


def _spread(call: relax.Call, x: np.ndarray) -> np.ndarray | None:
    """Return an array in a larger shape, unless operators would read much more for it."""
    shape = static_shape(call)
    return np.broadcast_to(x, shape) if math.prod(shape) <= MOST_ELEMENTS else None


# Operators that importers put around weights. Anything else is left to TVM's FoldConstant.
_NUMPY: dict[str, Callable[..., Any]] = {
    "relax.add": _plain(np.add),
    "relax.astype": _converted,
    "relax.concat": _joined,
    "relax.subtract": _plain(np.subtract),
    "relax.multiply": _plain(np.multiply),
    "relax.divide": _plain(np.divide),
    "relax.negative": _plain(np.negative),
    "relax.abs": _plain(np.abs),
    "relax.square": _plain(np.square),
    "relax.nn.relu": _plain(lambda x: np.maximum(x, 0)),
    "relax.exp": _of_floats(np.exp),
    "relax.log": _of_floats(np.log),
    "relax.tanh": _of_floats(np.tanh),
    "relax.sigmoid": _of_floats(_sigmoid),
    "relax.erf": _of_floats(_erf),
    "relax.nn.gelu": _of_floats(_gelu),
    "relax.nn.silu": _of_floats(_silu),
    "relax.nn.softmax": _softmax,
    "relax.nn.layer_norm": _layer_norm,
    "relax.rsqrt": _of_floats(lambda x: 1 / np.sqrt(x)),
    "relax.power": _of_floats(np.power),
    "relax.matmul": _of_floats(np.matmul),
    "relax.mean": _reduced(np.mean),
    "relax.sum": _reduced(np.sum),
    "relax.max": _reduced(np.max),
    "relax.min": _reduced(np.min),
    "relax.variance": _reduced(np.var),
    "relax.sign": _plain(np.sign),
    "relax.sqrt": _plain(np.sqrt),
    "relax.isnan": _plain(np.isnan),
    "relax.where": _plain(np.where),
    "relax.maximum": _plain(np.maximum),
    "relax.minimum": _plain(np.minimum),
    "relax.permute_dims": _permute,
    "relax.reshape": _to_result_shape,
    "relax.expand_dims": _to_result_shape,
    "relax.squeeze": _to_result_shape,
    "relax.flatten": _to_result_shape,
    "relax.broadcast_to": _spread,
    "relax.tile": _tiled,
    "relax.take": _taken,
}


def evaluate(call: relax.Call, args: Sequence[relax.Expr]) -> relax.Expr | None:
    """Return the value of `call` on `args` as a constant, None when it must wait for run time."""
    function = _NUMPY.get(op_name(call))
    tensors = [arg for arg in args if not isinstance(arg, relax.ShapeExpr)]
    if function is None or not tensors or not all(is_constant(arg) for arg in tensors):
        return None
    if static_shape(call) is None:
        return None
    with np.errstate(all="ignore"):  # what is no number is none at run time, too
        value = function(call, *(constant_array(arg) for arg in tensors))
    return None if value is None else constant(value, dtype_name(call))


def _with_elements(expr: relax.Expr) -> relax.Expr:
    """Return another tensor for one without elements, which any operator may then compute.

    TVM loses such tensors: it takes a slice without elements for a reshape of any other. This one
    is allocated at run time, as TVM cannot read a last constant without elements.
    """
    if not isinstance(expr.ty, relax.TensorType) or 0 not in (static_shape(expr) or ()):
        return expr
    shape = relax.ShapeExpr(static_shape(expr))
    return relax.op.builtin.alloc_tensor(shape, dtype_name(expr), 0)


class Folding(PyExprMutator):
    """Base of mutators that replace calls by their values on the way, and what has no elements."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Return the value of a call whose inputs are constant, or the call."""
        call = super().visit_call_(call)
        value = evaluate(call, [self.known(arg) for arg in call.args])
        return _with_elements(call if value is None else value)

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        """Return a part of a tuple."""
        return _with_elements(super().visit_tuple_getitem_(item))

    def known(self, arg: relax.Expr) -> relax.Expr:
        """Return the constant that a variable is bound to, or the argument itself."""
        bound = self.lookup_binding(arg) if isinstance(arg, relax.Var) else None
        return bound if bound is not None and is_constant(bound) else arg
