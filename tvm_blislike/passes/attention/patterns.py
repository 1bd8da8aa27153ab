"""Attentions among the operators of a block: softmax(scale * Q K^T, masked) V."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tvm import relax

from tvm_blislike.model.attention import Attention, Mask
from tvm_blislike.model.views import View
from tvm_blislike.passes.attention.scores import Operand, Scores, read
from tvm_blislike.passes.attention.views import Source, Sources, is_copy, number_of
from tvm_blislike.tvm_seams import dtype_name, op_name, permuted_axes, static_shape

Shape = tuple[int, ...]
_MATRIX = 2


@dataclass(frozen=True)
class Found:
    """An attention in place of what makes a variable.

    Parameters
    ----------
    attention : Attention
        What it computes.
    tensors : tuple of relax.Expr
        Q, K and V.
    masks : tuple of (relax.Expr, relax.Expr)
        Of each mask with a view the floats, and what they are made of, which tells equal ones.
    """

    attention: Attention
    tensors: tuple[relax.Expr, ...]
    masks: tuple[Operand, ...] = field(default=())


class Patterns:
    """Finds attentions in a block.

    Parameters
    ----------
    block : relax.DataflowBlock
        Where.
    uses : mapping
        How often each variable is read in the function.
    """

    def __init__(self, block: relax.DataflowBlock, uses: Mapping[relax.Var, int]) -> None:
        self.sources, self.uses = Sources(block), uses
        self.block = block
        self.readers: dict[relax.Var, relax.Var] = {}
        for var, value in self.sources.values.items():
            for arg in value.args if isinstance(value, relax.Call) else ():
                if isinstance(arg, relax.Var):
                    self.readers[arg] = var

    def all(self) -> dict[relax.Var, Found]:
        """Return each attention by the variable of its result."""
        found = {}
        for var, value in self.sources.values.items():
            if op_name(value) == "relax.matmul" and _is_float(value):
                attention = self._attention(var, value)
                if attention is not None:
                    found[attention[0]] = attention[1]
        return found

    def _attention(self, var: relax.Var, call: relax.Call) -> tuple[relax.Var, Found] | None:
        weights, guarded = self._weights(call.args[0])
        scores = None if weights is None else read(weights.args[0], self.sources, self.uses)
        if scores is None or not _is_float(scores.product):
            return None
        *batches, rows, columns = static_shape(scores.product)
        *result, _, width = static_shape(call)
        batch = math.prod(batches)
        if math.prod(result) != batch or static_shape(call.args[0])[-_MATRIX:] != (rows, columns):
            return None
        depth = static_shape(scores.product.args[0])[-1]
        if depth == 1 or 0 in (batch, rows, columns, width):
            return None
        q = self._operand(scores.product.args[0], (*batches, rows, depth), scaled=True)
        k = self._operand(scores.product.args[1], (*batches, columns, depth), True, turned=True)
        v = self._operand(call.args[1], (*result, columns, width))
        last, out = self._out(var, (batch, rows, width))
        masks, operands = self._masks(scores, (batch, rows, columns))
        attention = Attention(
            *(source.view for source in (q, k, v)),
            out,
            scores.scale * q.factor * k.factor,
            masks,
            guarded,
        )
        return last, Found(attention, (q.tensor, k.tensor, v.tensor), operands)

    def _weights(self, expr: relax.Expr) -> tuple[relax.Call | None, bool]:
        """Return the softmax whose result an expression is, and whether it is guarded."""
        call = self.sources.value(expr)
        if self.uses.get(expr, 1) > 1:
            return None, False
        if is_copy(call):
            return self._weights(call.args[0])
        if op_name(call) == "relax.reshape":
            argument = call.args[0]
            keeps_rows = static_shape(call)[-_MATRIX:] == static_shape(argument)[-_MATRIX:]
            return self._weights(argument) if keeps_rows else (None, False)
        inner = self._guarded(call)
        call = call if inner is None else self.sources.value(inner)
        if op_name(call) != "relax.nn.softmax" or None in (static_shape(call),):
            return None, False
        is_last = int(call.attrs.axis) % len(static_shape(call)) == len(static_shape(call)) - 1
        return (call if is_last else None), inner is not None

    def _guarded(self, call: relax.Expr) -> relax.Expr | None:
        """Return p of where(isnan(p), 0, p) that nobody else reads, None for anything else."""
        if op_name(call) != "relax.where" or number_of(call.args[1]) != 0:
            return None
        test, weights = self.sources.value(call.args[0]), call.args[2]
        is_guard = op_name(test) == "relax.isnan" and test.args[0].same_as(weights)
        alone = self.uses.get(weights, 0) == 2 and self.uses.get(call.args[0], 1) == 1
        return weights if is_guard and alone else None

    def _operand(
        self, expr: relax.Expr, shape: Shape, scaled: bool = False, turned: bool = False
    ) -> Source:
        """Return an operand as (batch, rows, elements) of the tensor in which it lies."""
        *batches, rows, elements = shape

        def seen(view: View) -> View | None:
            if turned:
                order = [*range(len(view.axes) - _MATRIX), -1, -2]
                view = view.permuted([axis % len(view.axes) for axis in order])
            return view.broadcast(shape).reshaped((math.prod(batches), rows, elements))

        source = self.sources.of(expr, scaled)
        view = seen(source.view)
        if view is None or not _has_plain_rows(view):
            return Source(expr, seen(View.of(static_shape(expr))))
        return Source(source.tensor, view, source.factor)

    def _masks(self, scores: Scores, shape: Shape) -> tuple[tuple[Mask, ...], tuple[Operand, ...]]:
        masks, operands = [], []
        for mask in scores.masks:
            if mask.diagonal is not None:
                masks.append(mask.diagonal)
                continue
            source = Source(mask.value, View.of(static_shape(mask.value)))
            if mask.kept is None:
                source = self.sources.of(mask.value)
            view = source.view.broadcast(mask.shape).reshaped(shape)
            if view is None or not _has_plain_rows(view):
                source = Source(mask.value, View.of(static_shape(mask.value)))
                view = source.view.broadcast(mask.shape).reshaped(shape)
            masks.append(Mask(view, replaces=mask.kept is not None))
            operands.append(Operand(mask.shape, source.tensor, mask.kept, mask.fill))
        return tuple(masks), tuple(operands)

    def _out(self, var: relax.Var, shape: Shape) -> tuple[relax.Var, View]:
        """Return the last variable that is the result in another order, and the result in it."""
        chain: list[relax.Call] = []
        best = var, View.of(shape)
        while self.uses.get(var, 0) == 1 and var in self.readers:
            var = self.readers[var]
            call = self.sources.values[var]
            if op_name(call) not in _UNDONE or static_shape(call) is None:
                break
            chain.append(call)
            view = _undone(chain)
            view = None if view is None else view.reshaped(shape)
            if view is not None and _has_plain_rows(view) and view.stride(2) in (0, 1):
                best = var, view
        return best


def _has_plain_rows(view: View) -> bool:
    """Whether rows, and elements of a row, have one stride each."""
    return None not in (view.stride(1), view.stride(2))


def _is_float(call: relax.Call) -> bool:
    shapes = [static_shape(expr) for expr in (call, *call.args)]
    return None not in shapes and {dtype_name(e) for e in (call, *call.args)} == {"float32"}


def _undone(chain: list[relax.Call]) -> View | None:
    """Return the operand of the first call of a chain, as it lies in the result of the last."""
    view: View | None = View.of(static_shape(chain[-1]))
    for call in reversed(chain):
        view = None if view is None else _UNDONE[op_name(call)](call, view)
    return view


def _unpermuted(call: relax.Call, view: View) -> View:
    order = permuted_axes(call)
    return view.permuted([order.index(axis) for axis in range(len(order))])


def _unshaped(call: relax.Call, view: View) -> View | None:
    return view.reshaped(static_shape(call.args[0]))


_UNDONE: dict[str, Callable[[relax.Call, View], View | None]] = {
    "relax.permute_dims": _unpermuted,
    "relax.reshape": _unshaped,
}
