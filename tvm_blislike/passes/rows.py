"""Rows of several matrices as those of one, and scalars as vectors of one element.

The product of (b, s, k) with one matrix (k, n) is that of (b * s, k), and products of a matrix
each, such as (b, h, s, k) with (b, h, k, n), are counted by one axis. A matrix by a batch of one,
as a filter bank by a spectrum, is a product of two. A reshape behind them would keep bias and
activation out of their kernels, so what is behind has as few axes, as long as each of its
operators goes along rows: elementwise ones, and normalizations of the last axis. Where a reader
wants the model's shape, one reshape is put, which moves nothing.

Likewise what is computed from scalars has one axis: TVM's passes break functions of scalars alone,
so these would all be kernels of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.passes.constants import TIDY
from tvm_blislike.passes.image_operators import BINARY, UNARY
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    functions,
    is_constant,
    op_name,
    static_shape,
)

_ALONG_ROWS = {"relax.nn.layer_norm", "relax.nn.rms_norm", "relax.nn.softmax"}
# Axes of rows: those of one matrix, or of a matrix each.
_MATRIX, _MATRICES = 2, 3
_Shape = tuple[int, ...]


@tvm.transform.module_pass(opt_level=0, name="blislike.AsRows")
def as_rows(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Rewrite every Relax function."""
    result = mod.clone()
    for gvar, func in functions(mod):
        result.update_func(gvar, _AsRows(mod).visit_expr(func))
    return TIDY(result)


@mutator
class _AsRows(PyExprMutator):
    """Keeps values of the model in `rows`, of another shape, until somebody wants them as such."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.rows: dict[relax.Var, relax.Var] = {}
        self.plain: dict[relax.Var, relax.Var] = {}
        self.made: dict[tuple[relax.Expr, _Shape], relax.Var] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        # What is emitted in one block cannot be read in another.
        self.rows, self.plain, self.made = {}, {}, {}
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        inside = isinstance(value, relax.Call) and self.builder_.current_block_is_dataflow()
        rows = self._in_rows(value) if inside else None
        if rows is None:
            super().visit_var_binding_(binding)
            return
        has_its_shape, is_inner = static_shape(rows) == static_shape(var), _is_inner(var)
        if not has_its_shape:
            self.rows[var] = rows
        if not is_inner:
            shaped = rows if has_its_shape else op.reshape(rows, static_shape(var))
            self.set_var_remap(var, self.builder_.emit_output(shaped))
        elif has_its_shape:
            self.set_var_remap(var, rows)

    def visit_dataflow_var_(self, var: relax.Var) -> relax.Expr:
        """Return the model's shape to any reader that does not know of rows."""
        if var not in self.rows:
            return super().visit_dataflow_var_(var)
        if var not in self.plain:
            self.plain[var] = self.builder_.emit(op.reshape(self.rows[var], static_shape(var)))
        return self.plain[var]

    def _in_rows(self, call: relax.Call) -> relax.Var | None:
        shape, name = static_shape(call), op_name(call)
        if shape is None:
            return None
        if name == "relax.reshape":
            return self._reshaped(call, shape)
        if name == "relax.matmul":
            return self._product(call, shape)
        if name in _ALONG_ROWS:
            data, *parameters = call.args
            fits = data in self.rows and shape and _goes_along_rows(call)
            return self._emit(call, [self.rows[data], *parameters]) if fits else None
        is_elementwise = name in UNARY or name in BINARY or _quantizes_alike(call)
        return self._elementwise(call, shape) if is_elementwise else None

    def _reshaped(self, call: relax.Call, shape: _Shape) -> relax.Var | None:
        """Return the source of a reshape where that has the rows already."""
        source = self.rows.get(call.args[0], self.visit_expr(call.args[0]))
        is_same = isinstance(source, relax.Var) and static_shape(source) == _rows_of(shape)
        return source if is_same else None

    def _product(self, call: relax.Call, shape: _Shape) -> relax.Var | None:
        a, b = call.args
        left, right = static_shape(a), static_shape(b)
        if left is None or right is None or len(shape) < 3:
            return None
        if len(right) == 2:
            return self._emit(call, [self._as(a, left, _MATRIX), self.visit_expr(b)])
        if left[:-2] != right[:-2] and math.prod((*left[:-2], *right[:-2])) == 1:
            return self._emit(call, [self._as(a, left, _MATRIX), self._as(b, right, _MATRIX)])
        if len(shape) < 4 or left[:-2] != right[:-2]:
            return None
        rank = _MATRIX if math.prod(shape[:-2]) == 1 else _MATRICES
        return self._emit(call, [self._as(a, left, rank), self._as(b, right, rank)])

    def _elementwise(self, call: relax.Call, shape: _Shape) -> relax.Var | None:
        """Return an elementwise operator on rows where one of its operands is in rows."""
        tensors = [arg for arg in call.args if isinstance(arg.ty, relax.TensorType)]
        if None in map(static_shape, tensors) or not any(arg in self.rows for arg in tensors):
            return None
        whole = [arg for arg in tensors if arg in self.rows and static_shape(arg) == shape]
        if whole:
            rank = len(static_shape(self.rows[whole[0]]))
            if not all(_has_rows(static_shape(arg), shape, rank) for arg in tensors):
                return None
            args = [self._as(arg, shape, rank) if arg in tensors else arg for arg in call.args]
            return self._emit(call, args)
        # A scalar beside others: these stay as they are.
        return self._emit(call, [self._scalar(arg) for arg in call.args])

    def _scalar(self, arg: relax.Expr) -> relax.Expr:
        """Return a scalar as a vector of one element, anything else as it is."""
        is_scalar = arg in self.rows and static_shape(arg) == ()
        return self.rows[arg] if is_scalar else self.visit_expr(arg)

    def _emit(self, call: relax.Call, args: Sequence[relax.Expr]) -> relax.Var:
        return self.builder_.emit(_on_rows(call, args))

    def _as(self, arg: relax.Expr, whole: _Shape, rank: int) -> relax.Expr:
        """Return an operand beside rows, of so many axes, of a tensor of the shape `whole`."""
        wanted = _operand_rows(static_shape(arg), whole, rank)
        found = self.rows.get(arg, arg) if isinstance(arg, relax.Var) else arg
        if static_shape(found) == wanted or (static_shape(arg) == () and found is not arg):
            return found if found is not arg else self.visit_expr(arg)
        if is_constant(arg):
            return constant(constant_array(arg).reshape(wanted), dtype_name(arg))
        if (arg, wanted) not in self.made:
            plain = found if found is not arg else self.visit_expr(arg)
            self.made[arg, wanted] = self.builder_.emit(op.reshape(plain, wanted))
        return self.made[arg, wanted]


def _goes_along_rows(call: relax.Call) -> bool:
    """Whether a normalization is one of the last axis."""
    attrs, rank = call.attrs, len(static_shape(call))
    axes = [attrs.axis] if op_name(call) == "relax.nn.softmax" else attrs.axes
    return [int(axis) % rank for axis in axes] == [rank - 1]


def _quantizes_alike(call: relax.Call) -> bool:
    """Whether a call quantizes all elements with the same scale."""
    if op_name(call) != "relax.quantize":
        return False
    shapes = [static_shape(arg) for arg in call.args[1:]]
    return None not in shapes and all(math.prod(shape) == 1 for shape in shapes)


def _on_rows(call: relax.Call, args: Sequence[relax.Expr]) -> relax.Call:
    """Return a call on other operands, whose last axis is the same."""
    name, attrs = op_name(call), call.attrs
    if name == "relax.quantize":
        return op.quantize(*args, axis=-1, out_dtype=attrs.out_dtype)
    if name == "relax.nn.softmax":
        return op.nn.softmax(args[0], axis=-1)
    if name == "relax.nn.layer_norm":
        return op.nn.layer_norm(*args, -1, attrs.epsilon, attrs.center, attrs.scale)
    if name == "relax.nn.rms_norm":
        return op.nn.rms_norm(*args, -1, attrs.epsilon)
    return relax.Call(call.op, args, attrs)


def _is_inner(var: relax.Var) -> bool:
    """Whether nothing outside its dataflow block reads a variable."""
    return isinstance(var, relax.DataflowVar)


def _rows_of(shape: _Shape, rank: int = _MATRIX) -> _Shape:
    """Return a shape with so many axes if it has more; a scalar's has one."""
    kept = rank - 1
    return (math.prod(shape[:-kept]), *shape[-kept:]) if len(shape) > rank else shape or (1,)


def _has_rows(shape: _Shape, whole: _Shape, rank: int) -> bool:
    """Whether an operand is the same for all rows, or matrices, or has a part for each."""
    kept = rank - 1
    same_for_all = len(shape) <= len(whole) and math.prod(shape) == math.prod(shape[-kept:])
    return same_for_all or shape[:-kept] == whole[:-kept]


def _operand_rows(shape: _Shape, whole: _Shape, rank: int) -> _Shape:
    """Return the shape of an operand beside the rows of `whole`."""
    if len(shape) <= rank:
        return shape or ((1,) if not whole else ())
    return _rows_of(shape, rank)
