"""Runs of a function on inputs of the same sizes: recorded ones again, and new ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_blislike.runtime.arrays import array_of
from tvm_blislike.runtime.replay import Replay

if TYPE_CHECKING:
    from tvm_blislike.runtime.interpreter import Interpreter

# Ways that conditions may turn out whose calls are kept: each has memory of its own.
_MOST_WAYS = 4


class Runs:
    """A function's runs on inputs of the same sizes, its calls kept for each way they went.

    Interpreters come with each run: one that was started anew goes on with the same runs.

    Parameters
    ----------
    function : str

    Attributes
    ----------
    replays : list of Replay
        The kept calls; those that ran last come first.
    """

    def __init__(self, function: str) -> None:
        self._function = function
        self.replays: list[Replay] = []
        self._varies = False
        self._buffers: list[Any] = []

    def results(self, inputs: Sequence[np.ndarray], interpreter: Interpreter) -> list[np.ndarray]:
        """Run once; return the outputs, with memory of their own."""
        for replay in tuple(self.replays):
            outputs = replay.results(inputs)
            if outputs is not None:
                self._was_last(replay)
                return outputs
        return [_copied(result) for result in self.anew(inputs, interpreter)]

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> bool:
        """Run once as before, without an interpreter; return whether a run before went this way."""
        for replay in tuple(self.replays):
            if replay.run(inputs, outputs):
                self._was_last(replay)
                return True
        return False

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> bool:
        """Run once the way that the last run went, on memory at addresses; see `Replay.run_at`."""
        return bool(self.replays) and self.replays[0].run_at(inputs, outputs)

    def anew(self, inputs: Sequence[np.ndarray], interpreter: Interpreter) -> list[Any]:
        """Interpret, alone with the interpreter; keep the calls where few ways are known.

        Returns
        -------
        list of tensor
            The outputs, which the next run may overwrite.
        """
        if self._varies:
            return self._interpreted(inputs, interpreter)
        results, replay = interpreter.recorded(self._function, inputs)
        if replay is None or len(self.replays) == _MOST_WAYS:
            self._varies, self.replays = True, []
        else:
            self.replays.insert(0, replay)
        return results

    def _interpreted(self, inputs: Sequence[np.ndarray], interpreter: Interpreter) -> list[Any]:
        if self._buffers:
            copy(inputs, map(array_of, self._buffers))
        else:
            self._buffers = interpreter.filled(inputs)
        return interpreter.run(self._function, self._buffers)

    def _was_last(self, replay: Replay) -> None:
        if replay is not self.replays[0]:
            self.replays.remove(replay)
            self.replays.insert(0, replay)


def copy(values: Iterable[Any], places: Iterable[np.ndarray]) -> None:
    """Copy arrays, or tensors of the machine, to where arrays lie."""
    for value, place in zip(values, places, strict=True):
        np.copyto(place, value if isinstance(value, np.ndarray) else array_of(value))


def _copied(tensor: Any) -> np.ndarray:
    try:
        return array_of(tensor).copy()
    except TypeError:  # a type that NumPy lacks
        from tvm_blislike.tvm_seams import loaded

        return loaded.numpy_of(tensor)
