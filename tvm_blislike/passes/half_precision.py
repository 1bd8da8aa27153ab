"""Models of 16-bit floats become ones of fp32 where a core lacks their arithmetic.

Values between operators stay in fp32. The other way, rounding each tensor as the model says, costs
a conversion of each element and says nothing more: rounding is not what a model is trained for, and
ONNX Runtime's CPU kernels do not round between layers either. What a model shows of its 16 bits
stays: the types of its inputs and outputs, and its own casts, which round. Weights are the same
numbers; where memory bounds a layer they keep their 16 bits (`passes.stored_weights`).

What has no form in fp32, such as a PrimFunc, computes as it did, between two conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.hardware import Core
from tvm_blislike.passes.constants import TIDY, Folding
from tvm_blislike.passes.imported import operator_of
from tvm_blislike.tvm_seams import constant, constant_array, functions, is_constant, op_name

_WIDE = "float32"
HALVES = ("float16", "bfloat16")


@tvm.transform.module_pass(opt_level=0, name="blislike.HalvesAsFloats")
class HalvesAsFloats:
    """Module pass for a core."""

    def __init__(self, core: Core) -> None:
        self.halves = frozenset(dtype for dtype in HALVES if not core.computes(dtype))

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the rewritten module."""
        if not any(_computes_in(func, self.halves) for _, func in functions(mod)):
            return mod
        # Constants to their readers.
        mod = TIDY(_rewritten(mod, _Folding))
        result = mod.clone()
        for gvar, func in functions(mod):
            if _computes_in(func, self.halves):
                result.update_func(gvar, _HalvesAsFloats(mod, self.halves).visit_expr(func))
        return relax.transform.DeadCodeElimination()(result)


def _rewritten(mod: tvm.IRModule, rewriter: type) -> tvm.IRModule:
    result = mod.clone()
    for gvar, func in functions(mod):
        result.update_func(gvar, rewriter(mod).visit_expr(func))
    return result


@mutator
class _Folding(Folding):
    """Constants to values."""


def _computes_in(func: relax.Function, dtypes: frozenset[str]) -> bool:
    """Whether values of these types occur in a function, and all of them as bindings of values."""
    found: list[bool] = []
    matched: list[bool] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call | relax.Var) or is_constant(expr):
            found.append(_is_of(expr.ty, dtypes))
        if isinstance(expr, relax.SeqExpr):
            of_blocks = (binding for block in expr.blocks for binding in block.bindings)
            matched.extend(isinstance(binding, relax.MatchCast) for binding in of_blocks)

    relax.analysis.post_order_visit(func, visit)
    return any(found) and not any(matched)


def _is_of(type_: tvm.ir.Type, dtypes: frozenset[str]) -> bool:
    """Whether a tensor, or a part of a tuple, has one of some types."""
    if isinstance(type_, relax.TupleType):
        return any(_is_of(part, dtypes) for part in type_.fields)
    return isinstance(type_, relax.TensorType) and str(type_.dtype) in dtypes


def _with_constants_of(old: relax.Expr, new: relax.Expr) -> relax.Expr:
    """Return a new result, or the parts of a tuple, with the constants of the old one."""
    if is_constant(old):
        return old
    if isinstance(old, relax.Tuple) and any(map(is_constant, old.fields)):
        pairs = zip(old.fields, new.fields, strict=True)
        return relax.Tuple([_with_constants_of(*pair) for pair in pairs])
    return new


@mutator
class _HalvesAsFloats(PyExprMutator):
    """Binds fp32 to what was a variable of 16 bits; those that others see keep theirs beside it."""

    def __init__(self, mod: tvm.IRModule, halves: frozenset[str]) -> None:
        super().__init__(mod)
        self.mod, self.halves = mod, halves
        # Variables of the present block and what holds their values in fp32.
        self.wide: dict[relax.Var, relax.Expr] = {}

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        return self._visit_block(block, super().visit_binding_block_)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        return self._visit_block(block, super().visit_dataflow_block_)

    def _visit_block(
        self, block: relax.BindingBlock, visit: Callable[[relax.BindingBlock], relax.BindingBlock]
    ) -> relax.BindingBlock:
        # What is emitted in one block cannot be read in another.
        outer, self.wide = self.wide, {}
        try:
            return visit(block)
        finally:
            self.wide = outer

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var = binding.var
        if not _is_of(var.ty, self.halves):
            super().visit_var_binding_(binding)
            return
        value = self.builder_.emit(self.visit_expr(binding.value))
        value = self.wide[var] = self._as(value, self._widened(value.ty))
        if not isinstance(var, relax.DataflowVar):
            self._show(var, value)

    def _show(self, var: relax.Var, value: relax.Expr) -> None:
        """Bind a variable that is read outside its block, in its own type."""
        narrow = self._as(value, var.ty)
        in_dataflow = self.builder_.current_block_is_dataflow()
        emit = self.builder_.emit_output if in_dataflow else self.builder_.emit
        self.set_var_remap(var, emit(narrow))

    def visit_var_(self, var: relax.Var) -> relax.Expr:
        return self.wide[var] if var in self.wide else super().visit_var_(var)

    def visit_dataflow_var_(self, var: relax.Var) -> relax.Expr:
        return self.wide[var] if var in self.wide else super().visit_dataflow_var_(var)

    def visit_seq_expr_(self, seq: relax.SeqExpr) -> relax.Expr:
        """Return a sequence whose result has its own type, also where it is a constant."""
        result = super().visit_seq_expr_(seq)
        body = _with_constants_of(seq.body, result.body)
        return result if body.same_as(result.body) else relax.SeqExpr(result.blocks, body)

    def visit_generic_const_(self, expr: relax.Expr) -> relax.Expr:
        if is_constant(expr) and _is_of(expr.ty, self.halves):
            return constant(constant_array(expr).astype(_WIDE), _WIDE)
        return expr

    # --- values ------------------------------------------------------------------------------

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        args = [self._operand(arg) for arg in call.args]
        if op_name(call) == "relax.astype":
            return self._cast(call, args[0])
        wide = self._in_floats(call, args)
        return self._as_before(call, args) if wide is None else wide

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        parts = self._operand(item.tuple_value)
        if isinstance(parts, relax.Tuple):
            return parts.fields[item.index]
        return relax.TupleGetItem(parts, item.index)

    def _operand(self, arg: relax.Expr) -> relax.Expr:
        """Return an operand in fp32."""
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._operand(field) for field in arg.fields])
        now = self.visit_expr(arg)
        # Still of 16 bits are parameters, and what an earlier block shows: converted once a block.
        if not (isinstance(arg, relax.Var) and _is_of(now.ty, self.halves)):
            return now
        self.wide[arg] = self._as(now, self._widened(now.ty))
        return self.wide[arg]

    def _cast(self, call: relax.Call, data: relax.Expr) -> relax.Expr:
        """Return a cast of the model's own: to 16 bits it rounds."""
        dtype = str(call.attrs.dtype)
        if dtype not in self.halves:
            return data if str(data.ty.dtype) == dtype else relax.op.astype(data, dtype)
        if _is_of(call.args[0].ty, frozenset([dtype])):
            return data
        return relax.op.astype(self.builder_.emit(relax.op.astype(data, dtype)), _WIDE)

    def _in_floats(self, call: relax.Call, args: Sequence[relax.Expr]) -> relax.Expr | None:
        """Return a call of fp32 in place of one of 16 bits, None where there is none."""
        if op_name(call) == "relax.call_tir":
            fields = call.args[1].fields if isinstance(call.args[1], relax.Tuple) else []
            found = operator_of(self.mod, call, list(fields))
            if found is None:
                return None
            call, args = found, list(args[1].fields)
        if not op_name(call):
            return None
        try:
            wide = self.builder_.normalize(relax.Call(call.op, args, call.attrs, call.ty_args))
        except Exception:  # TVM's of all kinds: operands whose types do not fit
            return None
        expected = self._widened(self.builder_.normalize(call).ty)
        return wide if tvm_ffi.structural_equal(wide.ty, expected) else None

    def _as_before(self, call: relax.Call, args: Sequence[relax.Expr]) -> relax.Expr:
        """Return a call with operands in its own types; readers convert its result."""
        own = [self._as(new, old.ty) for new, old in zip(args, call.args, strict=True)]
        return relax.Call(call.op, own, call.attrs, call.ty_args)

    # --- types -------------------------------------------------------------------------------

    def _widened(self, type_: tvm.ir.Type) -> tvm.ir.Type:
        """Return a type with fp32 in place of 16 bits."""
        if isinstance(type_, relax.TupleType):
            return relax.TupleType([self._widened(part) for part in type_.fields])
        if not _is_of(type_, self.halves):
            return type_
        shape = type_.shape
        if shape is None:
            return relax.TensorType(dtype=_WIDE, ndim=type_.ndim)
        return relax.TensorType(shape, _WIDE)

    def _as(self, value: relax.Expr, wanted: tvm.ir.Type) -> relax.Expr:
        """Return a value, or the parts of a tuple, in the data types of another type."""
        if not self._differ(value.ty, wanted):
            return value
        if isinstance(wanted, relax.TupleType):
            if isinstance(value, relax.Tuple):
                parts = list(value.fields)
            else:
                parts = [relax.TupleGetItem(value, i) for i in range(len(wanted.fields))]
            fields = zip(parts, wanted.fields, strict=True)
            return relax.Tuple([self._as(part, of) for part, of in fields])
        dtype = str(wanted.dtype)
        if is_constant(value):
            return constant(constant_array(value).astype(dtype), dtype)
        value = value if isinstance(value, relax.Var) else self.builder_.emit(value)
        return self.builder_.emit(relax.op.astype(value, dtype))

    def _differ(self, type_: tvm.ir.Type, wanted: tvm.ir.Type) -> bool:
        """Whether a value of a type has to be converted; it may not be normalized yet."""
        if isinstance(wanted, relax.TupleType):
            parts = getattr(type_, "fields", None)
            if parts is None:
                return True
            return any(self._differ(a, b) for a, b in zip(parts, wanted.fields, strict=True))
        if not isinstance(wanted, relax.TensorType):
            return False
        return str(getattr(type_, "dtype", "")) != str(wanted.dtype)
