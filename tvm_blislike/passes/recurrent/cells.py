"""What becomes of the sums of a block: gates, new states, results.

ONNX, LSTM-22, GRU-22 and RNN-22, section Equations. Rows whose sequence has ended keep their
states, and their results are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.model.recurrent import GATES
from tvm_blislike.passes.recurrent.functions import applied, clipped
from tvm_blislike.passes.recurrent.layer import Layer, Place
from tvm_blislike.passes.recurrent.products import Sums, of_inputs

# Peepholes in the order of ONNX.
_PEEPHOLES = "iof"


@dataclass(frozen=True)
class _Vector:
    """A vector of units of a row, or one lane of it."""

    layer: Layer
    place: Place
    row: int
    vector: int
    sums: Sums
    lane: Any = None

    @property
    def first(self) -> Any:
        """The first unit of the vector."""
        block = self.layer.block
        return self.place.group * block.nr + self.vector * block.lanes

    @property
    def at(self) -> list[Any]:
        """Direction, row and unit: the place in all workspaces."""
        return [self.place.direction, self.place.row(self.row), self.first + self.lane]

    def gate(self, name: str) -> Any:
        """Return the buffer of a gate's sum."""
        number = GATES[self.layer.cell.kind].index(name)
        gate = self.layer.phases[self.place.phase].index(number)
        return self.sums[self.row, gate, self.vector][0]

    def value(self, name: str) -> Any:
        """Return a gate."""
        return self.gate(name)[self.lane]

    def put(self, name: str, value: Any) -> None:
        """Emit that a gate becomes a value."""
        T.buffer_store(self.gate(name), value, [self.lane])

    def activated(self, number: int, x: Any) -> Any:
        """Return a function of the cell, by its number, of `x`."""
        functions = [direction[number] for direction in self.layer.cell.activations]
        return applied(functions, self.place.direction, x)

    def gated(self, number: int, x: Any) -> Any:
        """Return a function of what is clipped before."""
        return self.activated(number, clipped(x, self.layer.cell.clip))

    def peephole(self, name: str, cell: Any) -> Any:
        """Return what a gate sees of a cell's state, None without peepholes."""
        weights = self.place.buffers.get("peepholes")
        if weights is None:
            return T.float32(0)
        direction, _, unit = self.at
        return weights[direction, _PEEPHOLES.index(name), unit] * cell

    def kept(self, workspace: str) -> Any:
        """Return what a workspace has of the unit."""
        return self.place.buffers[workspace][tuple(self.at)]

    def keep(self, workspace: str, value: Any) -> None:
        """Emit that a workspace keeps a value."""
        T.buffer_store(self.place.buffers[workspace], value, self.at)

    @property
    def state(self) -> Any:
        """The state of the unit before the step."""
        return self.place.buffers["state"][(self.place.step % 2, *self.at)]

    def if_present(self, value: Any, other: Any) -> Any:
        """Return a value while the row's sequence lasts, and another one behind its end."""
        lengths = self.place.buffers.get("lengths")
        if lengths is None:
            return value
        return tirx.Select(self.place.time < lengths[self.place.row(self.row)], value, other)


def finish(layer: Layer, place: Place, sums: Sums) -> None:
    """Emit what becomes of the sums of a block."""
    steps = _STEPS[layer.cell.kind, len(layer.phases)]
    for row in range(place.rows):
        for vector in range(layer.block.vectors):
            here = _Vector(layer, place, row, vector, sums)
            with T.vectorized(0, layer.block.lanes) as lane:
                name = steps[place.phase](_at_lane(here, lane))
            if name:
                _write_result(here, here.gate(name))


def _at_lane(here: _Vector, lane: Any) -> _Vector:
    return _Vector(here.layer, here.place, here.row, here.vector, here.sums, lane)


def _lstm(v: _Vector) -> str:
    cell = v.kept("cells")
    v.put("i", v.gated(0, v.value("i") + v.peephole("i", cell)))
    if v.layer.cell.input_forget:
        v.put("f", T.float32(1) - v.value("i"))
    else:
        v.put("f", v.gated(0, v.value("f") + v.peephole("f", cell)))
    v.put("c", v.gated(1, v.value("c")))
    v.put("c", v.value("f") * cell + v.value("i") * v.value("c"))
    v.put("o", v.gated(0, v.value("o") + v.peephole("o", v.value("c"))))
    v.put("f", v.activated(2, v.value("c")))
    v.keep("cells", v.if_present(v.value("c"), cell))
    return _put_state(v, "o", v.value("o") * v.value("f"))


def _gru(v: _Vector) -> str:
    """The reset gate takes its part of the product: one phase."""
    unit = v.vector * v.layer.block.lanes + v.lane
    of_input = of_inputs(v.layer, v.place, v.row, GATES["GRU"].index("h"), unit)
    v.put("z", v.gated(0, v.value("z")))
    v.put("r", v.gated(0, v.value("r")))
    v.put("h", of_input + v.value("r") * v.value("h"))
    v.put("h", v.gated(1, v.value("h")))
    z = v.value("z")
    return _put_state(v, "h", (T.float32(1) - z) * v.value("h") + z * v.state)


def _gru_gates(v: _Vector) -> str:
    """The reset gate takes its part of the state: the product follows."""
    v.put("z", v.gated(0, v.value("z")))
    v.put("r", v.gated(0, v.value("r")))
    v.keep("update", v.value("z"))
    v.keep("reset", v.value("r") * v.state)
    return ""


def _gru_state(v: _Vector) -> str:
    z = v.kept("update")
    v.put("h", v.gated(1, v.value("h")))
    return _put_state(v, "h", (T.float32(1) - z) * v.value("h") + z * v.state)


def _rnn(v: _Vector) -> str:
    v.put("h", v.gated(0, v.value("h")))
    return _put_state(v, "h", v.value("h"))


# Of each phase of a kind; they return the gate that has the result then, "" for none.
_STEPS: dict[tuple[str, int], tuple[Callable[[_Vector], str], ...]] = {
    ("LSTM", 1): (_lstm,),
    ("GRU", 1): (_gru,),
    ("GRU", 2): (_gru_gates, _gru_state),
    ("RNN", 1): (_rnn,),
}


def _put_state(v: _Vector, name: str, value: Any) -> str:
    """Emit the new state, and leave the result of the step in a gate."""
    v.put(name, value)
    at = [(v.place.step + 1) % 2, *v.at]
    T.buffer_store(v.place.buffers["state"], v.if_present(v.value(name), v.state), at)
    v.put(name, v.if_present(v.value(name), T.float32(0)))
    return name


def _write_result(here: _Vector, values: Any) -> None:
    """Emit the copy of a vector into the result of the step, in whose rows padding has no place."""
    hidden, lanes = here.layer.cell.hidden, here.layer.block.lanes
    if hidden % here.layer.block.nr == 0:
        _copy(here, values)
        return
    with T.If(here.first + lanes <= hidden):
        with T.Then():
            _copy(here, values)
        with T.Else(), T.serial(0, lanes) as lane, T.If(here.first + lane < hidden), T.Then():
            _store(_at_lane(here, lane), values)


def _copy(here: _Vector, values: Any) -> None:
    with T.vectorized(0, here.layer.block.lanes) as lane:
        _store(_at_lane(here, lane), values)


def _store(v: _Vector, values: Any) -> None:
    direction, row, unit = v.at
    if v.layer.cell.batch_first:
        at = [row, v.place.time, direction, unit]
    else:
        at = [v.place.time, direction, row, unit]
    T.buffer_store(v.place.buffers["y"], values[v.lane], at)
