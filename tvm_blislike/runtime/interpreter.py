"""TVM's virtual machine with a model's executable, on tensors that are aligned for kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvm_blislike.errors import InputError
from tvm_blislike.runtime import huge_pages, instruments
from tvm_blislike.runtime.arrays import array_of
from tvm_blislike.runtime.replay import Replay
from tvm_blislike.runtime.runnable import require_runnable
from tvm_blislike.side_by_side import code_threads, side_by_side

if TYPE_CHECKING:
    import numpy as np
    from tvm.runtime import Executable, Module

    from tvm_blislike.tvm_seams.loaded import Weights

# A function, and the shapes that it is run on.
Key = tuple[str, tuple[tuple[int, ...], ...]]


class Interpreter:
    """A started virtual machine, for one Python thread at a time.

    Parameters
    ----------
    executable : tvm.runtime.Executable or tvm.runtime.Module
        What `tvm.compile` returned, or a loaded library.
    target : mapping
        Configuration of the `tvm.target.Target` it was compiled for.
    may_record : bool
        Whether conditions alone decide which kernels a function calls on inputs of given sizes.
    weights : mapping of str to sequence of Tensor
        What functions take behind the inputs.

    Raises
    ------
    TargetError
        When the executable is for another kind of processor.
    """

    def __init__(
        self,
        executable: Executable | Module,
        target: Mapping[str, Any],
        may_record: bool,
        weights: Weights,
    ) -> None:
        from tvm_blislike.tvm_seams import loaded

        require_runnable(target)
        loaded.raised_as(InputError)
        # Which TVM would do one after the other.
        side_by_side(loaded.make_code, loaded.generated(executable), code_threads())
        self._machine = loaded.VirtualMachine(executable)
        self._may_record, self._weights = may_record, weights
        self._begun: set[Key] = set()

    def run(self, function: str, buffers: Sequence[Any]) -> list[Any]:
        """Run a function on tensors; return the outputs, which its next run may overwrite."""
        return _listed(self._machine[function](*buffers, *self._weights.get(function, ())))

    def recorded(
        self, function: str, arrays: Sequence[np.ndarray]
    ) -> tuple[list[Any], Replay | None]:
        """Run a function; return the outputs, and its calls where conditions alone decide them."""
        from tvm_blislike.tvm_seams.tapes import Recorder, Tape

        recorder, buffers = Recorder(), self.filled(arrays)
        with self._watched(key_of(function, arrays), recorder):
            results = self.run(function, buffers)
        if not (self._may_record and recorder.is_complete and _are_arrays(buffers, results)):
            return results, None
        return results, Replay(
            Tape(recorder, self._machine.loop), recorder.allocated, buffers, results
        )

    def timed(
        self, function: str, arrays: Sequence[np.ndarray], repeat: int
    ) -> list[dict[str, list[float]]]:
        """Run a function once, then `repeat` times; return each kernel's seconds of each call."""
        clock, buffers = instruments.KernelClock(), self.filled(arrays)
        with self._watched(key_of(function, arrays)):
            self.run(function, buffers)
        with instruments.attached(self._machine, clock):
            for _ in range(repeat):
                clock.start_run()
                self.run(function, buffers)
        return clock.runs

    @staticmethod
    def filled(arrays: Sequence[np.ndarray]) -> list[Any]:
        """Return tensors with the values of arrays, aligned as kernels count on."""
        from tvm_blislike.tvm_seams import loaded

        buffers = [loaded.empty(array.shape, str(array.dtype)) for array in arrays]
        for buffer, array in zip(buffers, arrays, strict=True):
            loaded.fill(buffer, array)
        return buffers

    def _watched(
        self, key: Key, instrument: instruments.Instrument | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Return the context of a run; a function's first one allocates all that later ones use."""
        if key not in self._begun:
            self._begun.add(key)
            return huge_pages.moved(self._machine, instrument)
        if instrument is None:
            return contextlib.nullcontext()
        return instruments.attached(self._machine, instrument)


def key_of(function: str, arrays: Sequence[np.ndarray]) -> Key:
    """Return what a function's runs on arrays of the same shapes have in common."""
    return function, tuple(array.shape for array in arrays)


def _listed(result: Any) -> list[Any]:
    import tvm_ffi

    return [result] if isinstance(result, tvm_ffi.Tensor) else list(result)


def _are_arrays(*groups: Sequence[Any]) -> bool:
    """Whether NumPy has the types of all tensors."""
    try:
        return bool([array_of(tensor) for group in groups for tensor in group])
    except TypeError:
        return False
