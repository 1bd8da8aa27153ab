"""Operators whose inputs are all known at compile time, computed with NumPy; empty tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator

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


# Operators that importers put around weights. Anything else is left to TVM's FoldConstant.
_NUMPY: dict[str, Callable[..., Any]] = {
    "relax.add": _plain(np.add),
    "relax.astype": _converted,
    "relax.concat": _joined,
    "relax.subtract": _plain(np.subtract),
    "relax.multiply": _plain(np.multiply),
    "relax.divide": _plain(np.divide),
    "relax.negative": _plain(np.negative),
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
