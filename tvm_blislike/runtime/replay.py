"""A recorded run, made again on other inputs and outputs where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_blislike.errors import InputError
from tvm_blislike.runtime.arrays import ALIGNMENT, address_of, aligned, array_of

# Address and bytes.
Span = tuple[int, int]
# Copied in less time than NumPy takes to tell where an array lies: 0.4 microseconds instead of 1.8.
_FEW_BYTES = 1 << 14


class Replay:
    """A run's calls of kernels, which read inputs and write outputs where the caller has them.

    Inputs and outputs that are not aligned as kernels count on, and outputs that no kernel alone
    writes, such as constants, views of inputs or a part of another tensor, are copied.

    Parameters
    ----------
    tape : Tape
        The calls.
    allocated : set of tuple of int
        Address and bytes of what the run allocated.
    inputs, outputs : sequence of tvm.runtime.Tensor
        Of the recorded run.

    Attributes
    ----------
    tape : Tape
        As above.
    """

    def __init__(
        self, tape: Any, allocated: set[Span], inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> None:
        self.tape = tape
        self._held = (tuple(inputs), tuple(outputs))
        arrays = [array_of(t) for t in inputs], [array_of(t) for t in outputs]
        self._results = [(array.shape, array.dtype) for array in arrays[1]]
        spans = [[(address_of(a), a.nbytes) for a in each] for each in arrays]
        self._inputs = [
            _Place(tape, array, span, not any(_meet(span, other) for other in spans[1]))
            for array, span in zip(arrays[0], spans[0], strict=True)
        ]
        self._outputs = [
            _Place(tape, array, span, _is_alone(i, spans[1], allocated, tape.tensors))
            for i, (array, span) in enumerate(zip(arrays[1], spans[1], strict=True))
        ]
        # Of the last run, where they were tuples, which stay as they are, and nothing was copied.
        self._settled: tuple[Any, Any] = (None, None)
        # Addresses of the last run, where it was one on addresses.
        self._addresses: tuple[int, ...] | None = None

    def results(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Run once; return outputs with memory of their own, None unless conditions were as before.

        Parameters
        ----------
        inputs : sequence of array
            Of the sizes and types of the model.
        """
        outputs = [aligned(shape, dtype) for shape, dtype in self._results]
        self._forget()
        self._move(inputs, outputs, _FEW_BYTES)
        return outputs if self._copied(inputs, outputs) else None

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> bool:
        """Run once; return whether conditions were as they were, outputs are as they happen if not.

        Parameters
        ----------
        inputs, outputs : sequence of array
            Of the sizes and types of the model. Looking where they lie takes 11 to 19 microseconds
            between runs of a SqueezeNet; tuples that are given again are known.

        Raises
        ------
        InputError
            When an output lies in the memory of an input.
        """
        if inputs is self._settled[0] and outputs is self._settled[1]:
            return self.tape.run()
        self._forget()
        if self._move(inputs, outputs):
            self._require_apart(inputs, outputs)
        if not self._copied(inputs, outputs):
            return False
        if all(place.is_there for place in (*self._inputs, *self._outputs)):
            same = isinstance(inputs, tuple) and isinstance(outputs, tuple)
            self._settled = (inputs, outputs) if same else (None, None)
        return True

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> bool:
        """Run once on memory at addresses; return False where `run` has to, on arrays.

        That is where conditions were not as before, or something has to be copied or refused.

        Parameters
        ----------
        inputs, outputs : sequence of int
            Where contiguous arrays of the sizes and types of the model begin. Arrays say where they
            lie in 15 microseconds, in 300 where kernels have just driven Python from the caches.
        """
        addresses = (*inputs, *outputs)
        if addresses == self._addresses:
            return self.tape.run()
        self._forget()
        places = (*self._inputs, *self._outputs)
        moved = [place.move_to(a) for place, a in zip(places, addresses, strict=True)]
        if None in moved:
            return False
        if True in moved and not self._are_apart(addresses):
            for place in places:
                place.back()
            return False
        self._addresses = addresses
        return self.tape.run()

    def _forget(self) -> None:
        """Forget where arrays of the last run lie: another one may lie elsewhere."""
        self._settled, self._addresses = (None, None), None

    def _are_apart(self, addresses: Sequence[int]) -> bool:
        """Whether no output lies in the memory of an input or another output."""
        places = (*self._inputs, *self._outputs)
        spans = [(a, place.own.nbytes) for a, place in zip(addresses, places, strict=True)]
        first = len(self._inputs)
        return not any(
            _meet(span, other) for j, span in enumerate(spans[first:], first) for other in spans[:j]
        )

    def _move(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], copied: int = 0
    ) -> bool:
        """Let kernels use arrays of more than `copied` bytes; return whether any is a new one."""
        moved = [p.move(a, copied) for p, a in zip(self._inputs, inputs, strict=True)]
        moved += [p.move(a, copied) for p, a in zip(self._outputs, outputs, strict=True)]
        return True in moved

    def _copied(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> bool:
        """Run once, with copies of what kernels do not use where it lies; return as `run`."""
        for place, array in zip(self._inputs, inputs, strict=True):
            if not place.is_there:
                place.own[...] = array
        if not self.tape.run():
            return False
        for place, array in zip(self._outputs, outputs, strict=True):
            if not place.is_there:
                array[...] = place.own
        return True

    def _require_apart(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        arrays = [*inputs, *outputs]
        for j, output in enumerate(outputs, len(inputs)):
            if any(np.may_share_memory(output, other) for other in arrays[:j]):
                for place in (*self._inputs, *self._outputs):
                    place.back()
                raise InputError(
                    f"output {j - len(inputs)} lies in the memory of an input or another output",
                    "give every output memory of its own",
                )


class _Place:
    """An input or output: where the kernels have it at the moment.

    Attributes
    ----------
    own : array
        The memory of the recorded run.
    is_there : bool
        Whether the kernels have the caller's memory.
    """

    def __init__(self, tape: Any, own: np.ndarray, span: Span, may_move: bool) -> None:
        self.own, self.is_there = own, False
        self._tape, self._may_move = tape, may_move
        self._start = self._now = span[0]
        self._parts = [
            (number, other[0] - span[0])
            for number, other in enumerate(tape.tensors)
            if _meet(span, other)
        ]

    def move(self, array: np.ndarray, copied: int) -> bool:
        """Take the caller's memory where that can be; return whether it is another than before.

        Parameters
        ----------
        copied : int
            Bytes up to which an array is copied rather than asked where it lies.
        """
        wanted = self._start
        if self._may_move and array.nbytes > copied and array.flags.c_contiguous:
            address = address_of(array)
            wanted = address if address % ALIGNMENT == 0 else wanted
        if wanted == self._now:
            return False
        self._set(wanted)
        return True

    def move_to(self, address: int) -> bool | None:
        """Take memory at an address; return whether it is another than before, None if it cannot.

        Unlike `move`, it has no memory of its own to fall back on.
        """
        if self.is_there and address == self._now:
            return False
        if not self._may_move or address % ALIGNMENT:
            return None
        self._set(address)
        return True

    def back(self) -> None:
        """Take the memory of the recorded run."""
        self._set(self._start)

    def _set(self, address: int) -> None:
        self.is_there = address != self._start
        self._now = address
        for number, offset in self._parts:
            self._tape.move(number, address + offset)


def _is_alone(
    index: int, outputs: Sequence[Span], allocated: set[Span], tensors: Sequence[Span]
) -> bool:
    """Whether an output was allocated as such, and whatever meets it lies within it."""
    span = outputs[index]
    others = [other for i, other in enumerate(outputs) if i != index]
    within = all(_lies_in(t, span) for t in tensors if _meet(span, t))
    return span in allocated and within and not any(_meet(span, other) for other in others)


def _meet(one: Span, other: Span) -> bool:
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]


def _lies_in(one: Span, other: Span) -> bool:
    return other[0] <= one[0] and one[0] + one[1] <= other[0] + other[1]
