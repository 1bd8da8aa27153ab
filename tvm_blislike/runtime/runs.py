"""Runs of a function on inputs of the same sizes: recorded ones again, and new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tvm_blislike.runtime.arrays import aligned, array_of
from tvm_blislike.runtime.replay import Replay

# Ways that conditions may turn out whose calls are kept: each has memory of its own.
_MOST_WAYS = 4
# Runs the machine on arrays; returns its results, and its calls where these are worth keeping.
Record = Callable[[Sequence[np.ndarray]], tuple[list[Any], Replay | None]]


class Runs:
    """A function's runs on inputs of the same sizes, its calls kept for each way they went.

    Parameters
    ----------
    record : callable
        Runs the machine, and keeps its calls of kernels; None in their place where another run may
        call others although its conditions are the same.
    filled : callable
        Returns tensors of the machine with the values of arrays.
    interpret : callable
        Runs the machine on such tensors.
    """

    def __init__(
        self,
        record: Record,
        filled: Callable[[Sequence[np.ndarray]], list[Any]],
        interpret: Callable[[list[Any]], list[Any]],
    ) -> None:
        self._record, self._filled, self._interpret = record, filled, interpret
        # The one that ran last comes first.
        self._replays: list[Replay] = []
        self._varies = False
        self._buffers: list[Any] = []

    def results(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once; return the outputs, with memory of their own."""
        for replay in tuple(self._replays):
            outputs = [aligned(shape, dtype) for shape, dtype in replay.results]
            if replay.run(inputs, outputs, fresh=True):
                self._was_last(replay)
                return outputs
        return [_copied(result) for result in self.anew(inputs)]

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> bool:
        """Run once as a run before, without the machine; return whether one went the same way."""
        for replay in tuple(self._replays):
            if replay.run(inputs, outputs):
                self._was_last(replay)
                return True
        return False

    def anew(self, inputs: Sequence[np.ndarray]) -> list[Any]:
        """Run the machine, which belongs to the caller; keep its calls where few ways are known.

        Returns
        -------
        list of tensor
            The outputs, which the next run may overwrite.
        """
        if self._varies:
            return self._interpreted(inputs)
        results, replay = self._record(inputs)
        if replay is None or len(self._replays) == _MOST_WAYS:
            self._varies, self._replays = True, []
        else:
            self._replays.insert(0, replay)
        return results

    def _interpreted(self, inputs: Sequence[np.ndarray]) -> list[Any]:
        if self._buffers:
            copy(inputs, map(array_of, self._buffers))
        else:
            self._buffers = self._filled(inputs)
        return self._interpret(self._buffers)

    def _was_last(self, replay: Replay) -> None:
        if replay is not self._replays[0]:
            self._replays.remove(replay)
            self._replays.insert(0, replay)


def copy(values: Iterable[Any], places: Iterable[np.ndarray]) -> None:
    """Copy arrays, or tensors of the machine, to where arrays lie."""
    for value, place in zip(values, places, strict=True):
        np.copyto(place, value if isinstance(value, np.ndarray) else array_of(value))


def _copied(tensor: Any) -> np.ndarray:
    try:
        return array_of(tensor).copy()
    except TypeError:  # a type that NumPy lacks
        return tensor.numpy()
