"""The Relax operator of recurrent layers, which TVM does not have.

Its operands are those of ONNX: data, weights, recurrent weights, then what the cell has of
`model.recurrent.OPTIONAL`; last comes the cell as text. `passes.recurrent` puts a matrix product
and a kernel in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, relax

from tvm_blislike.model.marks import RECURRENT
from tvm_blislike.model.recurrent import Cell
from tvm_blislike.tvm_seams import dtype_name, static_shape
from tvm_blislike.tvm_seams.own_operators import called, declared


def cell_of(call: relax.Call) -> Cell:
    """Return the cell of a call of the operator."""
    return Cell.from_json(str(call.args[-1].value))


def _results(call: relax.Call) -> relax.TupleType:
    cell, dtype = cell_of(call), dtype_name(call.args[0])
    steps, batch = cell.sizes(static_shape(call.args[0]))
    states = [cell.state_shape(batch)] * (2 if cell.has_cell_state else 1)
    shapes = [cell.sequence_shape(steps, batch), *states]
    return relax.TupleType([relax.TensorType(shape, dtype) for shape in shapes])


_RECURRENT = declared(RECURRENT, "LSTM, GRU and RNN of ONNX.", _results)


def recurrent(cell: Cell, operands: Sequence[relax.Expr]) -> relax.Call:
    """Return a call, not yet emitted: all steps, the last state, of an LSTM that of its cells.

    Parameters
    ----------
    cell : Cell
        What is computed.
    operands : sequence of relax.Expr
        Data, weights, recurrent weights, and those that `cell.operands` names, in fp32.
    """
    return called(_RECURRENT, [*operands, ir.StringImm(cell.to_json())])
