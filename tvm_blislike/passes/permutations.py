"""Permutations of axes meet their inverses behind what does not mind the order of axes.

Graphs of TensorFlow have their channels last. Exporters put a permutation in front of each
convolution and one behind it, so that bias, activation and zeros around an image stand between two
of them, where no kernel takes them in. A value is carried as it was before the permutation

    y = permute_dims(x, axes)   carried as x

through elementwise operators, reductions, joins, slices and zeros around it, as far as one of its
readers undoes the permutation or has pixels reduced. Any other reader gets it permuted. Signals
lie in images of one row for a convolution, and lose this row for what lies between two: it is
carried along.
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
from tvm_blislike.passes.unit_axes import PERMUTE, moves_nothing
from tvm_blislike.tvm_seams import (
    bindings,
    constant,
    constant_array,
    dtype_name,
    functions,
    is_constant,
    op_name,
    permuted_axes,
    static_shape,
)

_CONCAT, _SQUEEZE, _EXPAND = "relax.concat", "relax.squeeze", "relax.expand_dims"
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
        As of `permute_dims`: the place in `var` of each axis of the value. Axes of one element may
        be left out.
    """

    var: relax.Expr
    axes: Axes

    @property
    def is_itself(self) -> bool:
        """Whether the value is `var`."""
        return self.axes == tuple(range(_rank(self.var)))

    @property
    def left_out(self) -> list[int]:
        """The axes of `var` that the value does not have."""
        return [axis for axis in range(_rank(self.var)) if axis not in self.axes]

    @property
    def order(self) -> Axes:
        """The permutation without the axes that are left out."""
        return _renumbered(self.axes)


@tvm.transform.module_pass(opt_level=0, name="blislike.Permutations")
def permutations(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Rewrite every Relax function with permutations that are undone."""
    rewritten = {}
    for gvar, func in functions(mod):
        wanted = _undone(func)
        if any(_is_undone(binding, wanted) for binding in bindings(func)):
            rewritten[gvar] = _Permutations(mod, wanted).visit_expr(func)
    if not rewritten:
        return mod
    result = mod.clone()
    for gvar, func in rewritten.items():
        result.update_func(gvar, func)
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
            behind = (
                tuple(permuted_axes(call)[axis] for axis in axes) for axes in wanted[binding.var]
            )
            wanted[call.args[0]] |= {permuted_axes(call), *behind}
        elif op_name(call) in _FOLLOWING:
            found = set(wanted[binding.var])
            if op_name(call) in REDUCTIONS:
                found = (found if call.attrs.keepdims else set()) | _of_pixels(call)
            for source in _sources(call):
                wanted[source] |= {axes for axes in found if len(axes) == _rank(source)}
        elif op_name(call) in (_SQUEEZE, _EXPAND) and _axis(call) is not None:
            wanted[call.args[0]] |= {_same(call.args[0])} if op_name(call) == _EXPAND else set()
            for axes in wanted[binding.var]:
                wanted[call.args[0]] |= _in_front(call, axes)
    return wanted


def _in_front(call: relax.Call, axes: Axes) -> set[Axes]:
    """Return what permutes the operand where `axes` permute one with an axis less, or more."""
    at, order = _axis(call), _inverse(axes)
    if op_name(call) == _EXPAND:
        return {_inverse(_renumbered((*order[:at], *order[at + 1 :])))}
    opened = ([place + (place >= new) for place in order] for new in range(_rank(call.args[0])))
    return {_inverse((*places[:at], new, *places[at:])) for new, places in enumerate(opened)}


def _is_undone(binding: relax.VarBinding, wanted: _Wanted) -> bool:
    """Whether a permutation meets its inverse, or an image's row is one again."""
    call, found = binding.value, wanted[binding.var]
    if _is_row(call):
        return _same(call) in found
    is_known = op_name(call) == PERMUTE and static_shape(call) is not None
    return is_known and _inverse(permuted_axes(call)) in found


def _is_row(call: relax.Expr) -> bool:
    """Whether a call takes the one row, or column, of an image for a signal."""
    if op_name(call) != _SQUEEZE or static_shape(call) is None:
        return False
    return _rank(call.args[0]) == 4 and _axis(call) is not None


def _of_pixels(call: relax.Call) -> set[Axes]:
    """Return what puts channels before the pixels in front of a reduction of these."""
    rank, reduced = _rank(call.args[0]), _reduced_axes(call)
    last = rank - 1
    if rank > 2 and reduced == tuple(range(1, last)):
        return {(0, last, *range(1, last))}
    return {_same(call.args[0])} if rank > 2 and reduced == tuple(range(2, rank)) else set()


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
            self.set_var_remap(var, self.builder_.emit_output(self._restored(found, var)))
        elif found.is_itself:
            self.set_var_remap(var, found.var)
        else:
            self.carried[var] = found

    def visit_dataflow_var_(self, var: relax.Var) -> relax.Expr:
        """Return a value as the model has it to any reader that does not know of this."""
        if var not in self.carried:
            return super().visit_dataflow_var_(var)
        if var not in self.restored:
            self.restored[var] = self.builder_.emit(self._restored(self.carried[var], var))
        return self.restored[var]

    def _restored(self, found: Permuted, var: relax.Var) -> relax.Expr:
        """Return a value as the model has it."""
        axes, value, shape = (*found.left_out, *found.axes), found.var, static_shape(var)
        if not moves_nothing(static_shape(value), axes):
            value = self.builder_.emit(op.permute_dims(value, axes))
        return value if static_shape(value) == shape else op.reshape(value, shape)

    def _found(self, call: relax.Call, var: relax.Var) -> Permuted | None:
        if static_shape(call) is None:
            return None
        if op_name(call) == PERMUTE:
            return self._permuted(call, var)
        if op_name(call) in (_SQUEEZE, _EXPAND):
            found = self._of_one_element(call)
            is_wanted = found and (found.is_itself or self._is_wanted(found, var))
            return found if is_wanted else None
        sources = _sources(call) if op_name(call) in _FOLLOWING else []
        known = [self.carried[source] for source in sources if source in self.carried]
        if len({(each.axes, _rank(each.var)) for each in known}) != 1:
            return None
        like = known[0]
        if not (self._is_wanted(like, var) or op_name(call) in REDUCTIONS):
            return None
        if op_name(call) not in _MOVED:
            return self._elementwise(call, like)
        if not all(source in self.carried for source in sources):
            return None
        carried = [self.carried[source].var for source in sources]
        if op_name(call) in (QUANTIZE, DEQUANTIZE):
            carried += map(self.visit_expr, call.args[1:])
        moved = _MOVED[op_name(call)](call, carried, like.axes)
        return Permuted(self.builder_.emit(moved.var), moved.axes)

    def _is_wanted(self, value: Permuted, var: relax.Var) -> bool:
        return _inverse(value.order) in self.wanted.get(var, ())

    def _of_one_element(self, call: relax.Call) -> Permuted | None:
        """Return what has an axis of one element less, or more, in the same memory."""
        source, at = self.carried.get(call.args[0]), _axis(call)
        if source is None and _is_row(call):
            image = self.visit_expr(call.args[0])
            source = Permuted(image, _same(image))
        if source is None or at is None:
            return None
        axes = source.axes
        if op_name(call) == _SQUEEZE:
            return Permuted(source.var, (*axes[:at], *axes[at + 1 :]))
        free = source.left_out
        return Permuted(source.var, (*axes[:at], free[0], *axes[at:])) if free else None

    def _permuted(self, call: relax.Call, var: relax.Var) -> Permuted | None:
        """Return a permutation of what may be permuted itself, None where nothing is undone."""
        axes, source = permuted_axes(call), call.args[0]
        behind = self.carried.get(source) if isinstance(source, relax.Var) else None
        if behind is not None:
            return Permuted(behind.var, tuple(behind.axes[axis] for axis in axes))
        found = Permuted(self.visit_expr(source), axes)
        return found if self._is_wanted(found, var) else None

    def _elementwise(self, call: relax.Call, like: Permuted) -> Permuted | None:
        operands = [self._operand(arg, call, like) for arg in call.args]
        if any(operand is None for operand in operands):
            return None
        made = self.builder_.emit(relax.Call(call.op, operands, call.attrs))
        return Permuted(made, like.axes)

    def _operand(self, arg: relax.Expr, call: relax.Call, like: Permuted) -> relax.Expr | None:
        """Return an operand in the order of others, None where it had to be permuted for it."""
        shape = static_shape(arg)
        if arg in self.carried and self.carried[arg].axes == like.axes:
            return self.carried[arg].var
        if shape is None or shape in ((), (1,)):
            return self.visit_expr(arg)
        added = like.left_out
        if is_constant(arg):
            array = with_rank(constant_array(arg), len(like.axes)).transpose(_inverse(like.order))
            array = np.expand_dims(np.ascontiguousarray(array), tuple(added))
            return constant(array, dtype_name(arg))
        is_small = math.prod(shape) * _FEWER <= math.prod(static_shape(call))
        if len(shape) != len(like.axes) or not is_small:
            return None
        permuted = op.permute_dims(self.visit_expr(arg), _inverse(like.order))
        moved = self.builder_.emit(permuted)
        return self.builder_.emit(op.expand_dims(moved, added)) if added else moved


def _quantized(call: relax.Call, sources: list[relax.Expr], axes: Axes) -> Permuted:
    operator = getattr(op, op_name(call).removeprefix("relax."))
    axis = axes[int(call.attrs.axis) % len(axes)]
    return Permuted(operator(*sources, axis, str(call.attrs.out_dtype)), axes)


def _reduced(call: relax.Call, sources: list[relax.Expr], axes: Axes) -> Permuted:
    gone = [axes[axis] for axis in _reduced_axes(call)]
    operator = getattr(op, op_name(call).removeprefix("relax."))
    kept = axes if call.attrs.keepdims else tuple(axis for axis in axes if axis not in gone)
    return Permuted(operator(sources[0], axis=sorted(gone), keepdims=True), kept)


def _joined(call: relax.Call, sources: list[relax.Expr], axes: Axes) -> Permuted:
    return Permuted(op.concat(sources, axes[int(call.attrs.axis or 0) % len(axes)]), axes)


def _padded(call: relax.Call, sources: list[relax.Expr], axes: Axes) -> Permuted:
    width = [int(each) for each in call.attrs.pad_width]
    placed = [0, 0] * _rank(sources[0])
    for place, pair in zip(axes, zip(width[::2], width[1::2], strict=True), strict=True):
        placed[2 * place : 2 * place + 2] = pair
    mode, value = str(call.attrs.pad_mode), float(call.attrs.pad_value)
    return Permuted(op.nn.pad(sources[0], placed, mode, value), axes)


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


def _reduced_axes(call: relax.Call) -> Axes:
    """Return the axes over which a call reduces."""
    rank, axes = _rank(call.args[0]), call.attrs.axis
    return tuple(range(rank)) if axes is None else tuple(sorted(int(a) % rank for a in axes))


def _rank(expr: relax.Expr) -> int:
    return len(static_shape(expr))


def _same(expr: relax.Expr) -> Axes:
    """Return the permutation that leaves an expression as it is."""
    return tuple(range(_rank(expr)))


def _inverse(axes: Axes) -> Axes:
    return tuple(axes.index(axis) for axis in range(len(axes)))


def _renumbered(axes: Sequence[int]) -> Axes:
    """Return the order of axes of which others are gone."""
    return tuple(sorted(axes).index(axis) for axis in axes)


def _axis(call: relax.Call) -> int | None:
    """Return the one axis of the operand, or of the result, that a call takes away or adds."""
    axes = call.attrs.axis
    if axes is None or len(axes) != 1:
        return None
    return int(axes[0]) % _rank(call if op_name(call) == _EXPAND else call.args[0])
