"""What a recurrent layer computes beside its tensors: LSTM, GRU and RNN of ONNX."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

# Gates of a cell in the order of ONNX's weights: LSTM input, output, forget, cell; GRU update,
# reset, hidden.
GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "h"}
# Operands behind data, weights and recurrent weights, in ONNX's order.
OPTIONAL = ("bias", "lengths", "h", "c", "peepholes")


@dataclass(frozen=True)
class Activation:
    """A function of a cell, by ONNX's name in lower case, and its two numbers."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Cell:
    """A recurrent layer as in ONNX, operator LSTM, GRU or RNN.

    Parameters
    ----------
    kind : str
        "LSTM", "GRU" or "RNN".
    hidden : int
        Units of a direction.
    reverse : tuple of bool
        Whether a direction goes from the last step to the first.
    activations : tuple of tuple of Activation
        Of each direction: f, g and h of an LSTM, f and g of a GRU, f of an RNN.
    clip : float
        Limit of what goes into the gates' functions; 0 for none.
    linear_before_reset, input_forget, batch_first : bool
        Attributes of ONNX; `batch_first` is its layout 1.
    operands : tuple of str
        Which of `OPTIONAL` there are.
    """

    kind: str
    hidden: int
    reverse: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    clip: float = 0.0
    linear_before_reset: bool = False
    input_forget: bool = False
    batch_first: bool = False
    operands: tuple[str, ...] = ()

    @property
    def gates(self) -> int:
        """Gates of the cell."""
        return len(GATES[self.kind])

    @property
    def directions(self) -> int:
        """1, or 2 of a layer in both directions."""
        return len(self.reverse)

    @property
    def has_cell_state(self) -> bool:
        """Whether there is a second state, and so a third result."""
        return self.kind == "LSTM"

    def state_shape(self, batch: int) -> tuple[int, int, int]:
        """Return the shape of the states."""
        axes = (batch, self.directions) if self.batch_first else (self.directions, batch)
        return (*axes, self.hidden)

    def sequence_shape(self, steps: int, batch: int) -> tuple[int, int, int, int]:
        """Return the shape of the results of all steps."""
        if self.batch_first:
            return (batch, steps, self.directions, self.hidden)
        return (steps, self.directions, batch, self.hidden)

    def sizes(self, data_shape: tuple[int, ...]) -> tuple[int, int]:
        """Return steps and batch, given the shape of the data."""
        first, second = data_shape[:2]
        return (second, first) if self.batch_first else (first, second)

    def __str__(self) -> str:
        names = {(False,): "", (True,): " reverse"}
        return f"{self.kind} of {self.hidden} units{names.get(self.reverse, ' in both directions')}"

    def to_json(self) -> str:
        """Return this as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Cell:
        """Return the cell that `to_json` wrote."""
        fields = json.loads(text)
        activations = tuple(
            tuple(Activation(**each) for each in direction) for direction in fields["activations"]
        )
        lists = {name: tuple(fields[name]) for name in ("reverse", "operands")}
        return Cell(**{**fields, **lists, "activations": activations})
