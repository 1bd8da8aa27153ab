"""What the parts of a recurrent kernel share: sizes, buffers, and the place of a block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm_blislike.model.recurrent import Cell
from tvm_blislike.passes.recurrent.blocks import Block


@dataclass(frozen=True)
class Layer:
    """A recurrent layer of known sizes with its register block.

    Parameters
    ----------
    cell : Cell
        What is computed.
    steps, batch : int
        Sizes of the data.
    block : Block
        Rows and units computed at a time.
    by_element : bool
        Whether vectors are multiplied by elements of others, so that states are loaded as vectors.
    """

    cell: Cell
    steps: int
    batch: int
    block: Block
    by_element: bool = False

    @property
    def phases(self) -> tuple[tuple[int, ...], ...]:
        """Gates of each product of a step: a second one multiplies what the first one made."""
        return phases_of(self.cell)

    @property
    def groups(self) -> int:
        """Blocks of all units."""
        return self.block.groups(self.cell.hidden)

    @property
    def padded(self) -> int:
        """Units with those that fill the last block."""
        return self.block.padded(self.cell.hidden)

    @property
    def gates_shape(self) -> tuple[int, ...]:
        """Shape of the products of all inputs."""
        cell = self.cell
        rows = self.steps * self.batch
        return (rows, cell.directions, self.groups, cell.gates, self.block.nr)

    def panel_shape(self, phase: int) -> tuple[int, ...]:
        """Shape of the packed recurrent weights of a product."""
        cell = self.cell
        gates = len(self.phases[phase])
        return (cell.directions, self.groups, cell.hidden, gates, self.block.nr)

    @property
    def parameters(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shapes and types of the parameters by name, results last."""
        cell, units = self.cell, (self.cell.directions, self.padded)
        state = cell.state_shape(self.batch)
        shapes = {"gates": self.gates_shape}
        shapes |= {f"r{phase}": self.panel_shape(phase) for phase in range(len(self.phases))}
        more = {"lengths": (self.batch,), "h": state, "c": state}
        more["peepholes"] = (cell.directions, 3, self.padded)
        if needs_recurrent_bias(cell):
            shapes["bias"] = units
        shapes |= {name: more[name] for name in cell.operands if name != "bias"}
        shapes |= {"y": cell.sequence_shape(self.steps, self.batch), "y_h": state}
        if cell.has_cell_state:
            shapes["y_c"] = state
        return {
            name: (shape, "int32" if name == "lengths" else "float32")
            for name, shape in shapes.items()
        }

    @property
    def workspaces(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what is kept from step to step: of the state the last two, in turn."""
        units = (self.cell.directions, self.batch, self.padded)
        found = {"state": (2, *units)}
        if self.cell.has_cell_state:
            found["cells"] = units
        if len(self.phases) > 1:
            found |= {"update": units, "reset": units}
        return found


def phases_of(cell: Cell) -> tuple[tuple[int, ...], ...]:
    """Return the gates of each product of a step."""
    if cell.kind == "GRU" and not cell.linear_before_reset:
        return (0, 1), (2,)
    return (tuple(range(cell.gates)),)


def needs_recurrent_bias(cell: Cell) -> bool:
    """Whether a bias stands with the recurrent product and not with that of the inputs."""
    return cell.kind == "GRU" and cell.linear_before_reset and "bias" in cell.operands


@dataclass(frozen=True)
class Place:
    """Where a block is computed.

    Parameters
    ----------
    buffers : mapping of str to buffer
        Parameters and workspaces.
    phase : int
        The product.
    direction, step, time, group, first : expression
        Direction; step, and the position in the sequence that it has; block of units; first row.
    rows : int
        Rows of the batch.
    """

    buffers: Mapping[str, Any]
    phase: int
    direction: Any
    step: Any
    time: Any
    group: Any
    first: Any
    rows: int

    def row(self, number: int) -> Any:
        """Return a row of the batch."""
        return self.first + number
