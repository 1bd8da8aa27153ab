"""Choose one way for each operator of a graph so that the whole takes least time.

Every operator has options: the layout that it reads, the layout that it writes, and the time
that it takes. Between a writer and its readers lie transforms, one per layout that some reader
wants and the writer does not write. The choice of smallest total time is an integer program, and
solved exactly: YFlows (section 4.3) does the same by dynamic programming over a chain, but
graphs have branches that meet again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm_blislike.errors import ChoiceError

if TYPE_CHECKING:
    import highspy


@dataclass(frozen=True)
class Option:
    """One way to compute an operator.

    Parameters
    ----------
    reads, writes : str
        Layouts of its input images and of its result.
    seconds : float
        Predicted time.
    """

    reads: str
    writes: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Node:
    """An operator, or an argument of the graph (one option, nothing read).

    Parameters
    ----------
    result : Hashable
        The value that it computes.
    inputs : tuple of Hashable
        The images that it reads.
    options : tuple of Option
        At least one.
    transform_seconds : float
        Time of moving its result from one layout to another.
    """

    result: Hashable
    inputs: tuple[Hashable, ...]
    options: tuple[Option, ...]
    transform_seconds: float


def choose_options(nodes: Sequence[Node]) -> dict[Hashable, int]:
    """Return the option of each node, by result, that makes the graph fastest.

    Parameters
    ----------
    nodes : sequence of Node
        The graph; inputs that no node computes are read as they are.

    Returns
    -------
    dict
        Result of a node to the index of its option.

    Raises
    ------
    ChoiceError
        When the solver gives up.
    """
    open_nodes = [node for node in nodes if len(node.options) > 1]
    if not open_nodes:
        return {node.result: 0 for node in nodes}
    return _Program(nodes).solved()


class _Program:
    """Minimize the times of the options taken and of the transforms between them.

    x[v, o] = 1: node v is computed in option o. y[v, l] = 1: its result is moved to layout l. For
    every reader u of v and layout l

        sum of x[u, o] over o that read l  <=  sum of x[v, o] over o that write l  +  y[v, l]
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = {node.result: node for node in nodes}
        self.model = _silent_solver()
        self.model.setOptionValue("mip_rel_gap", 0.0)
        self.model.setOptionValue("threads", 1)
        self.taken: dict[Hashable, list[Any]] = {}
        self.moved: dict[tuple[Hashable, str], Any] = {}
        for node in nodes:
            self.taken[node.result] = [self._binary(option.seconds) for option in node.options]
            self.model.addConstr(sum(self.taken[node.result]) == 1)
        for node in nodes:
            for value in dict.fromkeys(node.inputs):
                if value in self.nodes:
                    self._connect(self.nodes[value], node)

    def solved(self) -> dict[Hashable, int]:
        """Return the index of the option taken for each node."""
        import highspy

        self.model.minimize()
        if self.model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise ChoiceError("no choice of layouts was found; use --pin to fix some layers")
        values = self.model.getSolution().col_value
        return {
            result: max(range(len(columns)), key=lambda o: values[columns[o].index])
            for result, columns in self.taken.items()
        }

    def _binary(self, seconds: float) -> Any:
        # Microseconds: the solver's tolerances are absolute.
        return self.model.addBinary(obj=seconds * 1e6)

    def _connect(self, writer: Node, reader: Node) -> None:
        for layout in dict.fromkeys(option.reads for option in reader.options):
            reading = self._options(reader, lambda o, want=layout: o.reads == want)
            writing = self._options(writer, lambda o, want=layout: o.writes == want)
            if len(writing) == len(writer.options):
                continue
            key = (writer.result, layout)
            if key not in self.moved:
                self.moved[key] = self._binary(writer.transform_seconds)
            self.model.addConstr(sum(reading) <= sum(writing) + self.moved[key])

    def _options(self, node: Node, wanted: Callable[[Option], bool]) -> list[Any]:
        columns = self.taken[node.result]
        return [x for x, option in zip(columns, node.options, strict=True) if wanted(option)]


def _silent_solver() -> highspy.Highs:
    """Return a solver that writes nothing, whose standard output is not its own."""
    # It is large to import, and only a compilation needs it.
    import highspy

    class Silent(highspy.Highs):
        """Silent from the start: highspy 1.16 writes a banner when it sets its callbacks."""

        def enableCallbacks(self) -> None:
            self.silent()
            super().enableCallbacks()

    solver = Silent()
    # Versions that set no callbacks so early.
    solver.silent()
    return solver
