"""Permutations of axes meet their inverses behind what does not mind the order of axes.

Graphs of TensorFlow have their channels last. Exporters put a permutation in front of each
convolution and one behind it, so that bias, activation and zeros around an image stand between two
of them, where no kernel takes them in. A value is carried as it was before the permutation

    y = permute_dims(x, axes)   carried as x

through elementwise operators, reductions, joins, slices and zeros around it, as far as one of its
readers undoes the permutation or has pixels reduced. Any other reader gets it permuted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.model.layouts import with_rank
from tvm_blislike.passes.constants import TIDY
from tvm_blislike.passes.image_operators import BINARY, REDUCTIONS, UNARY
from tvm_blislike.passes.padding import PAD
from tvm_blislike.passes.quantized.steps import DEQUANTIZE, QUANTIZE
from tvm_blislike.passes.slices import SLICE
from tvm_blislike.tvm_seams import (
    bindings,
    constant,
    constant_array,
    dtype_name,
    functions,
    is_constant,
    op_name,
    static_shape,
)

PERMUTE = "relax.permute_dims"
_CONCAT = "relax.concat"
# A reader of so many times fewer elements than the result has them permuted for it.
_FEWER = 8

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Permuted:
    """A value of the model as the permutation of another.

    Parameters
    ----------
    var : relax.Expr
        What is permuted.
    axes : tuple of int
        As of `permute_dims`: the place in `var` of each axis of the value.
    """

    var: relax.Expr
    axes: Axes


@tvm.transform.module_pass(opt_level=0, name="blislike.Permutations")
def permutations(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Rewrite every Relax function with permutations that are undone."""
    result = mod.clone()
    for gvar, func in functions(mod):
        wanted = _undone(func)
        if any(_is_undone(binding, wanted) for binding in bindings(func)):
            result.update_func(gvar, _Permutations(mod, wanted).visit_expr(func))
    return TIDY(result)


# By variable, the permutations that readers apply to it, behind operators that may follow them.
_Wanted = dict[relax.Var, set[Axes]]


def _undone(func: relax.Function) -> _Wanted:
    wanted: _Wanted = defaultdict(set)
    for binding in reversed(bindings(func)):
        call = binding.value
        if not isinstance(call, relax.Call) or static_shape(call) is None:
            continue
        if op_name(call) == PERMUTE:
            wanted[call.args[0]].add(_axes(call))
        elif op_name(call) in _FOLLOWING:
            found = set(wanted.get(binding.var, ()))
            if op_name(call) in REDUCTIONS:
                found = (found if call.attrs.keepdims else set()) | _of_pixels(call)
            for source in _sources(call):
                wanted[source] |= {axes for axes in found if len(axes) == _rank(source)}
    return wanted


def _is_undone(binding: relax.VarBinding, wanted: _Wanted) -> bool:
    """Whether a permutation meets its inverse."""
    call = binding.value
    if op_name(call) != PERMUTE or static_shape(call) is None:
        return False
    return _inverse(_axes(call)) in wanted.get(binding.var, ())


def _of_pixels(call: relax.Call) -> set[Axes]:
    """Return the permutation in front of a reduction of pixels that puts channels before them."""
    rank = _rank(call.args[0])
    last = rank - 1
    is_of_pixels = rank > 2 and _reduced_axes(call) == tuple(range(1, last))
    return {(0, last, *range(1, last))} if is_of_pixels else set()


def _sources(call: relax.Call) -> list[relax.Var]:
    """Return the variables with as many axes as the result that a call reads."""
    args = call.args
    if op_name(call) == _CONCAT:
        args = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else []
    elif op_name(call) not in BINARY:
        args = args[:1]
    return [arg for arg in args if isinstance(arg, relax.Var) and static_shape(arg) is not None]


@mutator
class _Permutations(PyExprMutator):
    """Carries values of the model in front of their permutations as far as that is wanted."""

    def __init__(self, mod: tvm.IRModule, wanted: _Wanted) -> None:
        super().__init__(mod)
        self.wanted = wanted
        self.carried: dict[relax.Var, Permuted] = {}
        self.restored: dict[relax.Var, relax.Expr] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        """Begin anew."""
        # What is emitted in one block cannot be read in another.
        self.carried, self.restored = {}, {}
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Emit what is carried in front of a permutation there."""
        call, var = binding.value, binding.var
        found = None
        if isinstance(call, relax.Call) and self.builder_.current_block_is_dataflow():
            found = self._found(call, var)
        if found is None:
            super().visit_var_binding_(binding)
        elif not isinstance(var, relax.DataflowVar):
            self.set_var_remap(var, self.builder_.emit_output(_restored(found)))
        elif _is_identity(found.axes):
            self.set_var_remap(var, found.var)
        else:
            self.carried[var] = found

    def visit_dataflow_var_(self, var: relax.Var) -> relax.Expr:
        """Return a value as the model has it to any reader that does not know of this."""
        if var not in self.carried:
            return super().visit_dataflow_var_(var)
        if var not in self.restored:
            self.restored[var] = self.builder_.emit(_restored(self.carried[var]))
        return self.restored[var]

    def _found(self, call: relax.Call, var: relax.Var) -> Permuted | None:
        if static_shape(call) is None:
            return None
        if op_name(call) == PERMUTE:
            return self._permuted(call, var)
        sources = _sources(call) if op_name(call) in _FOLLOWING else []
        orders = {self.carried[source].axes for source in sources if source in self.carried}
        if len(orders) != 1:
            return None
        (axes,) = orders
        is_wanted = _inverse(axes) in self.wanted.get(var, ())
        if not (is_wanted or op_name(call) in REDUCTIONS):
            return None
        if op_name(call) not in _MOVED:
            return self._elementwise(call, axes)
        if not all(source in self.carried for source in sources):
            return None
        carried = [self.carried[source].var for source in sources]
        if op_name(call) in (QUANTIZE, DEQUANTIZE):
            carried += map(self.visit_expr, call.args[1:])
        moved = _MOVED[op_name(call)](call, carried, axes)
        return Permuted(self.builder_.emit(moved.var), moved.axes)

    def _permuted(self, call: relax.Call, var: relax.Var) -> Permuted | None:
        """Return a permutation of what may be permuted itself, None where nothing is undone."""
        axes, source = _axes(call), call.args[0]
        behind = self.carried.get(source) if isinstance(source, relax.Var) else None
        if behind is not None:
            return Permuted(behind.var, tuple(behind.axes[axis] for axis in axes))
        is_undone = _inverse(axes) in self.wanted.get(var, ())
        return Permuted(self.visit_expr(source), axes) if is_undone else None

    def _elementwise(self, call: relax.Call, axes: Axes) -> Permuted | None:
        operands = [self._operand(arg, call, axes) for arg in call.args]
        if any(operand is None for operand in operands):
            return None
        return Permuted(self.builder_.emit(relax.Call(call.op, operands, call.attrs)), axes)

    def _operand(self, arg: relax.Expr, call: relax.Call, axes: Axes) -> relax.Expr | None:
        """Return an operand in the order of others, None where it had to be permuted for it."""
        shape = static_shape(arg)
        if arg in self.carried and self.carried[arg].axes == axes:
            return self.carried[arg].var
        if shape is None or (math.prod(shape) == 1 and len(shape) <= 1):
            return self.visit_expr(arg)
        if is_constant(arg):
            array = with_rank(constant_array(arg), len(axes)).transpose(_inverse(axes))
            return constant(np.ascontiguousarray(array), dtype_name(arg))
        is_small = math.prod(shape) * _FEWER <= math.prod(static_shape(call))
        if len(shape) != len(axes) or not is_small:
            return None
        return self.builder_.emit(op.permute_dims(self.visit_expr(arg), _inverse(axes)))


def _quantized(call: relax.Call, sources: list[relax.Expr], axes: Axes) -> Permuted:
    operator = getattr(op, op_name(call).removeprefix("relax."))
    axis = axes[int(call.attrs.axis) % len(axes)]
    return Permuted(operator(*sources, axis, str(call.attrs.out_dtype)), axes)


def _reduced(call: relax.Call, sources: list[relax.Expr], axes: Axes) -> Permuted:
    gone = [axes[axis] for axis in _reduced_axes(call)]
    operator = getattr(op, op_name(call).removeprefix("relax."))
    is_kept = bool(call.attrs.keepdims)
    kept = axes if is_kept else _renumbered([axis for axis in axes if axis not in gone])
    return Permuted(operator(sources[0], axis=sorted(gone), keepdims=is_kept), kept)


def _joined(call: relax.Call, sources: list[relax.Expr], axes: Axes) -> Permuted:
    return Permuted(op.concat(sources, axes[int(call.attrs.axis or 0) % len(axes)]), axes)


def _padded(call: relax.Call, sources: list[relax.Expr], axes: Axes) -> Permuted:
    width = [int(each) for each in call.attrs.pad_width]
    pairs = list(zip(width[::2], width[1::2], strict=True))
    ordered = [each for axis in _inverse(axes) for each in pairs[axis]]
    mode, value = str(call.attrs.pad_mode), float(call.attrs.pad_value)
    return Permuted(op.nn.pad(sources[0], ordered, mode, value), axes)


def _sliced(call: relax.Call, sources: list[relax.Expr], axes: Axes) -> Permuted:
    along = [axes[int(axis) % len(axes)] for axis in call.args[1].fields]
    ends = [[int(each) for each in arg.fields] for arg in call.args[2:]]
    return Permuted(op.strided_slice(sources[0], along, *ends), axes)


# A call on what its first operands are permutations of: by these, and what the axes of the call's
# result are there.
_MOVED: dict[str, Callable[[relax.Call, list[relax.Expr], Axes], Permuted]] = {
    **dict.fromkeys((QUANTIZE, DEQUANTIZE), _quantized),
    **dict.fromkeys(REDUCTIONS, _reduced),
    _CONCAT: _joined,
    PAD: _padded,
    SLICE: _sliced,
}
_FOLLOWING = frozenset({*UNARY, *BINARY, *_MOVED})


def _restored(value: Permuted) -> relax.Expr:
    """Return a value as the model has it."""
    return value.var if _is_identity(value.axes) else op.permute_dims(value.var, value.axes)


def _axes(call: relax.Call) -> Axes:
    """Return the axes of a permutation; it turns them around where it names none."""
    rank, axes = _rank(call), call.attrs.axes
    return tuple(reversed(range(rank))) if axes is None else tuple(int(a) % rank for a in axes)


def _reduced_axes(call: relax.Call) -> Axes:
    """Return the axes over which a call reduces."""
    rank, axes = _rank(call.args[0]), call.attrs.axis
    return tuple(range(rank)) if axes is None else tuple(sorted(int(a) % rank for a in axes))


def _rank(expr: relax.Expr) -> int:
    return len(static_shape(expr))


def _inverse(axes: Axes) -> Axes:
    return tuple(axes.index(axis) for axis in range(len(axes)))


def _renumbered(axes: Sequence[int]) -> Axes:
    """Return the order of axes of which others are gone."""
    return tuple(sorted(axes).index(axis) for axis in axes)


def _is_identity(axes: Axes) -> bool:
    return axes == tuple(range(len(axes)))
