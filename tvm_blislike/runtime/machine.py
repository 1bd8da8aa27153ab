"""TVM's virtual machine for the first run of a model, and its calls of kernels for all others."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_blislike.model.variant import MAIN
from tvm_blislike.runtime import huge_pages, instruments
from tvm_blislike.runtime.arrays import aligned, array_of
from tvm_blislike.runtime.replay import Replay
from tvm_blislike.runtime.runnable import require_runnable

if TYPE_CHECKING:
    from tvm.runtime import Executable, Module

    from tvm_blislike.model.tensor_spec import TensorSpec

# A function, and the shapes that it is run on.
_Key = tuple[str, tuple[tuple[int, ...], ...]]
# Sizes whose calls are kept: each has memory of its own.
_MOST_REPLAYS = 64
# Runs once, from arrays into arrays.
Run = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]


class ModelMachine:
    """Runs the functions of an executable, from several Python threads one after the other.

    Parameters
    ----------
    executable : tvm.runtime.Executable or tvm.runtime.Module
        What `tvm.compile` returned, or a loaded library.
    inputs : sequence of TensorSpec
        In the order of the functions' arguments.
    target : mapping
        Configuration of the `tvm.target.Target` it was compiled for.

    Attributes
    ----------
    started : tvm.relax.VirtualMachine or None
        None before the first run.
    """

    def __init__(
        self,
        executable: Executable | Module,
        inputs: Sequence[TensorSpec],
        target: Mapping[str, Any],
    ) -> None:
        self.started: Any = None
        self._executable, self._inputs, self._target = executable, inputs, target
        # The one that ran last comes last.
        self._replays: dict[_Key, Replay] = {}
        # Functions that ran since `started`, and those of them that call other kernels each time.
        self._begun: set[_Key] = set()
        self._varying: set[str] = set()
        self._may_record = all(None not in spec.shape for spec in inputs)
        self._lock = threading.Lock()
        _machines.add(self)

    def run(self, arrays: Sequence[np.ndarray], function: str = MAIN) -> list[np.ndarray]:
        """Run a function on arrays of its sizes; return the outputs, with memory of their own.

        Raises
        ------
        TargetError
            When the executable is for another kind of processor.
        """
        with self._lock:
            self._start()
            key = _key(function, arrays)
            replay = self._replays.pop(key, None)
            if replay is None:
                results = self._first_results(arrays, function)
                return [_copied(result) for result in results]
            self._replays[key] = replay
            outputs = [aligned(shape, dtype) for shape, dtype in replay.results]
            replay.run(arrays, outputs)
            return outputs

    def recorded(
        self,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        function: str = MAIN,
    ) -> Run:
        """Run a function into arrays, and return what does so again, with memory of its own.

        What it returns may run beside others; where the calls of kernels depend on values or
        sizes, runs follow one another.

        Raises
        ------
        TargetError
            When the executable is for another kind of processor.
        """
        with self._lock:
            self._start()
            results, replay = self._recorded(inputs, function)
            _copy(results, outputs)
        return partial(self._interpreted, function) if replay is None else replay.run

    def run_linked(self, kernels: Module) -> None:
        """Take kernels out of a library, before the first run."""
        from tvm_blislike.tvm_seams import executables

        with self._lock:
            self._executable = executables.with_kernels(self._executable, kernels)

    def timed(
        self, arrays: Sequence[np.ndarray], repeat: int, function: str = MAIN
    ) -> list[dict[str, list[float]]]:
        """Run a function once, then `repeat` times; return each kernel's seconds of each call.

        Raises
        ------
        TargetError
            As of `run`.
        """
        clock = instruments.KernelClock()
        with self._lock:
            self._start()
            # The machine shall have the memory that runs had.
            self._replays.pop(_key(function, arrays), None)
            buffers = self._filled(arrays)
            with self._watched(_key(function, arrays)):
                self.started[function](*buffers)
            with instruments.attached(self.started, clock):
                for _ in range(repeat):
                    clock.start_run()
                    self.started[function](*buffers)
        return clock.runs

    def _interpreted(
        self, function: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        with self._lock:
            _copy(_listed(self.started[function](*self._filled(inputs))), outputs)

    def _first_results(self, arrays: Sequence[np.ndarray], function: str) -> list[Any]:
        """Run the machine, and keep its calls for further runs where all make the same."""
        if function in self._varying:
            return _listed(self.started[function](*self._filled(arrays)))
        results, replay = self._recorded(arrays, function)
        if replay is None:
            self._varying.add(function)
        else:
            self._replays[_key(function, arrays)] = replay
            if len(self._replays) > _MOST_REPLAYS:
                del self._replays[next(iter(self._replays))]
        return results

    def _recorded(
        self, arrays: Sequence[np.ndarray], function: str
    ) -> tuple[list[Any], Replay | None]:
        """Run the machine; return the outputs, and its calls where all runs make the same."""
        from tvm_blislike.tvm_seams.tapes import Recorder, Tape

        recorder, buffers = Recorder(), self._filled(arrays)
        with self._watched(_key(function, arrays), recorder):
            results = _listed(self.started[function](*buffers))
        if not (self._may_record and recorder.is_complete and _are_arrays(buffers, results)):
            return results, None
        return results, Replay(Tape(recorder), recorder.allocated, buffers, results)

    def _filled(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Return tensors with the values of arrays, aligned as kernels count on."""
        import tvm

        buffers = [tvm.runtime.empty(a.shape, str(a.dtype)) for a in arrays]
        for buffer, array in zip(buffers, arrays, strict=True):
            buffer.copyfrom(array)
        return buffers

    def _start(self) -> None:
        """Load the executable unless it is; nothing is known of its functions then."""
        if self.started is None:
            import tvm
            from tvm import relax

            require_runnable(self._target)
            self.started = relax.VirtualMachine(self._executable, tvm.cpu())
            self._replays, self._begun, self._varying = {}, set(), set()

    def _watched(
        self, key: _Key, instrument: instruments.Instrument | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Return the context of a run; a function's first one allocates all that later ones use."""
        if key not in self._begun:
            self._begun.add(key)
            return huge_pages.moved(self.started, instrument)
        if instrument is None:
            return contextlib.nullcontext()
        return instruments.attached(self.started, instrument)

    def after_fork(self) -> None:
        """Forget a run of another thread, which is not in this process and never ends its run."""
        if self._lock.locked():
            self.started = None
            self._lock = threading.Lock()


def _key(function: str, arrays: Sequence[np.ndarray]) -> _Key:
    return function, tuple(array.shape for array in arrays)


def _listed(result: Any) -> list[Any]:
    return [result] if hasattr(result, "numpy") else list(result)


def _are_arrays(*groups: Sequence[Any]) -> bool:
    """Whether NumPy has the types of all tensors."""
    try:
        return bool([array_of(tensor) for group in groups for tensor in group])
    except TypeError:
        return False


def _copy(results: Sequence[Any], outputs: Sequence[np.ndarray]) -> None:
    for result, output in zip(results, outputs, strict=True):
        np.copyto(output, array_of(result))


def _copied(tensor: Any) -> np.ndarray:
    try:
        return array_of(tensor).copy()
    except TypeError:  # a type that NumPy lacks
        return tensor.numpy()


_machines: weakref.WeakSet[ModelMachine] = weakref.WeakSet()


def _after_fork() -> None:
    for machine in _machines:
        machine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
