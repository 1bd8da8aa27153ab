"""Weights of a recurrent layer in the order of its kernel; those of constants are constants.

Units of a block lie side by side, gate by gate, in the last block with zeros behind the last unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tvm import relax
from tvm.relax import op

from tvm_blislike.passes.constants import evaluate
from tvm_blislike.passes.recurrent.layer import Layer, needs_recurrent_bias
from tvm_blislike.tvm_seams import constant, static_shape

# Axes behind (direction, gate, block, unit of the block).
_D, _GATE, _BLOCK, _UNIT, _K = range(5)


class Arranger:
    """Emits the arrangement of operands, or computes that of constants.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to emit.
    layer : Layer
        Sizes and block.
    """

    def __init__(self, builder: relax.BlockBuilder, layer: Layer) -> None:
        self.builder, self.layer = builder, layer

    def columns(self, weights: relax.Expr) -> relax.Expr:
        """Return W (directions, gates * hidden, inputs) as columns of a matrix (inputs, ...)."""
        layer, inputs = self.layer, static_shape(weights)[-1]
        blocks = self._blocks(weights, range(layer.cell.gates))
        ordered = self._do(op.permute_dims(blocks, (_K, _D, _BLOCK, _GATE, _UNIT)))
        return self._do(op.reshape(ordered, (inputs, int(np.prod(layer.gates_shape[1:])))))

    def panels(self, weights: relax.Expr) -> list[relax.Expr]:
        """Return R (directions, gates * hidden, hidden) as the panels of each product."""
        blocks = (self._blocks(weights, gates) for gates in self.layer.phases)
        return [self._do(op.permute_dims(b, (_D, _BLOCK, _K, _GATE, _UNIT))) for b in blocks]

    def bias(self, given: Mapping[str, relax.Expr]) -> relax.Expr | None:
        """Return the bias of the inputs' product, None without one."""
        if "bias" not in given:
            return None
        layer, gates = self.layer, range(self.layer.cell.gates)
        of_inputs, of_states = self._halves(given["bias"])
        total = self._blocks(of_inputs, gates)
        states = self._blocks(of_states, gates)
        if needs_recurrent_bias(layer.cell):
            # That of the last gate stays with the recurrent product.
            mask = np.ones((1, layer.cell.gates, 1, 1), "float32")
            mask[:, -1] = 0
            states = self._do(op.multiply(states, constant(mask, "float32")))
        total = self._do(op.add(total, states))
        ordered = self._do(op.permute_dims(total, (_D, _BLOCK, _GATE, _UNIT)))
        return self._do(op.reshape(ordered, (int(np.prod(layer.gates_shape[1:])),)))

    def recurrent_bias(self, bias: relax.Expr) -> relax.Expr:
        """Return the bias of the last gate's recurrent product, (directions, units)."""
        layer = self.layer
        blocks = self._blocks(self._halves(bias)[1], [layer.cell.gates - 1])
        return self._do(op.reshape(blocks, (layer.cell.directions, layer.padded)))

    def peepholes(self, weights: relax.Expr) -> relax.Expr:
        """Return P (directions, 3 * hidden) as (directions, 3, units)."""
        blocks = self._blocks(weights, range(3))
        return self._do(op.reshape(blocks, (self.layer.cell.directions, 3, self.layer.padded)))

    def _halves(self, bias: relax.Expr) -> list[relax.Expr]:
        """Return the biases of the inputs' product and of the recurrent one."""
        directions, size = static_shape(bias)
        both = self._do(op.reshape(bias, (directions, 2, size // 2)))
        parts = (self._taken(both, [half]) for half in range(2))
        return [self._do(op.reshape(part, (directions, size // 2))) for part in parts]

    def _blocks(self, tensor: relax.Expr, gates: Sequence[int]) -> relax.Expr:
        """Return (directions, gates * hidden, ...) as (directions, gates, blocks, nr, ...)."""
        layer, (directions, rows, *rest) = self.layer, static_shape(tensor)
        hidden = layer.cell.hidden
        count = rows // hidden
        apart = self._do(op.reshape(tensor, (directions, count, hidden, *rest)))
        if len(gates) < count:
            apart = self._taken(apart, gates)
        if layer.padded > hidden:
            zeros = np.zeros((directions, len(gates), layer.padded - hidden, *rest), "float32")
            apart = self._do(op.concat([apart, constant(zeros, "float32")], axis=2))
        return self._do(
            op.reshape(apart, (directions, len(gates), layer.groups, layer.block.nr, *rest))
        )

    def _taken(self, tensor: relax.Expr, numbers: Sequence[int]) -> relax.Expr:
        """Return some rows of the second axis."""
        return self._do(op.take(tensor, constant(np.array(numbers), "int64"), axis=1))

    def _do(self, call: relax.Call) -> relax.Expr:
        """Return what a call makes: a constant where its operands are."""
        normal = self.builder.normalize(call)
        first = normal.args[0]
        args = list(first.fields) if isinstance(first, relax.Tuple) else normal.args
        value = evaluate(normal, args)
        return self.builder.emit(normal) if value is None else value
