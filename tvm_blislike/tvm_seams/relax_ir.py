"""How TVM 0.27 spells its Relax IR."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

# What the upper bounds of variables are called, for TVM's plan of the memory.
UPPER_BOUNDS = "tir_var_upper_bound"
# Copied at a time where rows of one array are columns of another: each needs a cache line.
_COLUMNS = 64


def op_name(expr: relax.Expr) -> str:
    """Return the operator's name, empty for anything but an operator call."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
        return str(expr.op.name)
    return ""


def is_constant(expr: relax.Expr) -> bool:
    """Whether the expression is a tensor known at compile time; data types are constants, too."""
    return isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.value, tvm.runtime.Tensor)


def constant_array(expr: relax.Expr) -> np.ndarray:
    """Return the value of a constant: its memory, which cannot be written to."""
    array = _memory(expr.value)
    array = expr.value.numpy() if array is None else array
    array.flags.writeable = False
    return array


def constant(value: np.ndarray, dtype: str) -> relax.Constant:
    """Return a constant of an array's values, whose axes may lie in any order: one copy."""
    tensor = tvm.runtime.empty(np.shape(value), dtype)
    target = _memory(tensor)
    if target is None:
        return relax.const(np.array(value, dtype, order="C"))
    copy_into(target, np.asarray(value))
    return relax.const(tensor)


def scaled_constant(value: np.ndarray, scale: np.ndarray) -> relax.Constant:
    """Return a constant of an array times factors of fp64, rounded to the array's type once."""
    tensor = tvm.runtime.empty(value.shape, str(value.dtype))
    target = _memory(tensor)
    if target is None:
        return relax.const((value * scale).astype(value.dtype))
    np.multiply(value, scale, out=target, casting="same_kind")
    return relax.const(tensor)


def copy_into(target: np.ndarray, source: np.ndarray) -> None:
    """Copy an array whose axes may lie in another order.

    NumPy goes along the rows of the target. Where these are columns of the source, each element
    comes from another cache line, and the line is gone before its next element is needed: in
    blocks of columns a matrix of 400 MB is transposed in 0.2 s instead of 0.8 s.
    """
    if source.ndim < 2 or abs(source.strides[-1]) == min(map(abs, source.strides)):
        target[...] = source
        return
    for start in range(0, source.shape[-1], _COLUMNS):
        target[..., start : start + _COLUMNS] = source[..., start : start + _COLUMNS]


def _memory(tensor: tvm.runtime.Tensor) -> np.ndarray | None:
    """Return a tensor's memory; None for bfloat16 and the like, which NumPy itself lacks."""
    try:
        return np.from_dlpack(tensor)
    except (RuntimeError, BufferError):  # the second since NumPy 2.5
        return None


def static_shape(expr: relax.Expr) -> tuple[int, ...] | None:
    """Return the shape of a tensor expression, None where a size is symbolic or unknown."""
    shape = getattr(expr.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    # All at once: every step of a loop over TVM's own containers asks for their length anew.
    extents = shape.values[:]
    if not all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
        return None
    return tuple([extent.value for extent in extents])


def permuted_axes(call: relax.Call) -> tuple[int, ...]:
    """Return the axes of a `permute_dims`, which turns them around where it names none."""
    rank, axes = call.args[0].ty.ndim, call.attrs.axes
    return tuple(range(rank))[::-1] if axes is None else tuple(int(axis) % rank for axis in axes)


def has_known_sizes(expr: relax.Expr) -> bool:
    """Whether all sizes of a tensor or shape are known; other types have none."""
    if isinstance(expr.ty, relax.ShapeType):
        values = expr.ty.values
        return values is not None and all(isinstance(size, tvm.tirx.IntImm) for size in values)
    return not isinstance(expr.ty, relax.TensorType) or static_shape(expr) is not None


def dtype_name(expr: relax.Expr) -> str:
    """Return the element type of a tensor expression."""
    return str(expr.ty.dtype)


def functions(mod: tvm.IRModule) -> list[tuple[tvm.ir.GlobalVar, relax.Function]]:
    """Return the Relax functions of a module."""
    return [(g, f) for g, f in mod.functions_items() if isinstance(f, relax.Function)]


def global_var(name: str, like: tvm.ir.GlobalVar) -> tvm.ir.GlobalVar:
    """Return a name of a function for one that has another name."""
    made = tvm.ir.GlobalVar(name)
    relax.expr._update_type(made, like.ty)
    return made


# The shapes of what a function takes, and of what it returns; None for a size that is not known.
Signature = tuple[tuple[tuple[int | None, ...], ...], tuple[tuple[int | None, ...], ...]]


def is_public(func: tvm.ir.BaseFunc) -> bool:
    """Whether a function can be called from outside its module."""
    return bool(func.attrs) and "global_symbol" in func.attrs


def signatures(mod: tvm.IRModule) -> dict[str, Signature]:
    """Return the shapes of what goes in and out of each function that can be called."""
    return {g.name_hint: _signature(f) for g, f in functions(mod) if is_public(f)}


def _signature(func: relax.Function) -> Signature:
    result = func.ret_ty
    results = result.fields if isinstance(result, relax.TupleType) else [result]
    return (
        tuple(type_shape(param.ty) for param in func.params),
        tuple(type_shape(each) for each in results),
    )


def signature_at(func: relax.Function, sizes_of: Mapping[str, int]) -> Signature:
    """Return the shapes of what goes in and out of a function of open sizes.

    Parameters
    ----------
    sizes_of : mapping of str to int
        Name of each variable to its value.
    """
    analyzer = tvm.sym.Analyzer()

    def value(var: tvm.tirx.Var) -> tvm.tirx.IntImm:
        return tvm.tirx.IntImm(str(var.ty), sizes_of[var.name])

    def number(extent: tvm.tirx.Expr) -> int:
        if isinstance(extent, tvm.tirx.IntImm):
            return int(extent.value)
        known = tvm_ffi.structural_map(extent, [(tvm.tirx.Var, value)])
        return int(analyzer.simplify(known))

    def sizes(type_: relax.TensorType) -> tuple[int, ...]:
        return tuple(number(extent) for extent in type_.shape.values)

    result = func.ret_ty
    results = result.fields if isinstance(result, relax.TupleType) else [result]
    return tuple(sizes(param.ty) for param in func.params), tuple(map(sizes, results))


def type_shape(type_: relax.TensorType) -> tuple[int | None, ...]:
    """Return the sizes of a type of tensors, None for each that is not known."""
    known = isinstance(type_.shape, relax.ShapeExpr)
    sizes = type_.shape.values if known else [None] * max(type_.ndim, 0)
    return tuple(int(size) if hasattr(size, "value") else None for size in sizes)


def runs_of_functions(mod: tvm.IRModule, name: str) -> dict[str, int]:
    """Return how often each Relax function runs in one run of that of a name, itself among them.

    A function that is called in several places of another runs as often, whatever a condition says;
    one that calls itself counts once.
    """
    runs: dict[str, int] = {}

    def add(here: str, times: int, callers: tuple[str, ...]) -> None:
        runs[here] = runs.get(here, 0) + times
        for called, places in _called(mod[here]).items():
            if called not in callers and isinstance(mod[called], relax.Function):
                add(called, times * places, (*callers, called))

    add(name, 1, (name,))
    return runs


def _called(func: relax.Function) -> dict[str, int]:
    """Return in how many places a function names each other one."""
    places: dict[str, int] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call):
            for part in (expr.op, *expr.args):
                if isinstance(part, tvm.ir.GlobalVar):
                    places[part.name_hint] = places.get(part.name_hint, 0) + 1

    relax.analysis.post_order_visit(func, visit)
    return places


def bindings(func: relax.Function) -> list[relax.VarBinding]:
    """Return the variable bindings of a function in order, without nested functions."""
    blocks = func.body.blocks if isinstance(func.body, relax.SeqExpr) else []
    return [b for block in blocks for b in block.bindings if isinstance(b, relax.VarBinding)]


def operators(mod: tvm.IRModule) -> set[str]:
    """Return the names of the operators that the Relax functions call."""
    found: set[str] = set()
    for _, func in functions(mod):
        relax.analysis.post_order_visit(func, lambda expr: found.add(op_name(expr)))
    return found


def use_counts(func: relax.Function) -> dict[relax.Var, int]:
    """Return how often each variable is read."""
    counts: dict[relax.Var, int] = {}

    def count(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var):
            counts[expr] = counts.get(expr, 0) + 1

    for binding in bindings(func):
        relax.analysis.post_order_visit(binding.value, count)
    if isinstance(func.body, relax.SeqExpr):
        relax.analysis.post_order_visit(func.body.body, count)
    return counts
