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
from tvm_blislike.runtime.arrays import array_of
from tvm_blislike.runtime.replay import Replay
from tvm_blislike.runtime.runnable import require_runnable
from tvm_blislike.runtime.runs import Runs, copy

if TYPE_CHECKING:
    from tvm.runtime import Executable, Module

    from tvm_blislike.model.tensor_spec import TensorSpec

# A function, and the shapes that it is run on.
_Key = tuple[str, tuple[tuple[int, ...], ...]]
# Sizes whose calls are kept: each has memory of its own.
_MOST_SIZES = 64
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
        self._kept: dict[_Key, Runs] = {}
        # Functions that ran since `started`.
        self._begun: set[_Key] = set()
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
            runs = self._kept.pop(key, None) or self._runs(function)
            self._kept[key] = runs
            if len(self._kept) > _MOST_SIZES:
                del self._kept[next(iter(self._kept))]
            return runs.results(arrays)

    def recorded(
        self,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        function: str = MAIN,
    ) -> Run:
        """Run a function into arrays, and return what does so again, with memory of its own.

        What it returns may run beside others; where sizes depend on values, or a condition turns
        out as in none of its runs before, runs follow one another.

        Raises
        ------
        TargetError
            When the executable is for another kind of processor.
        """
        runs = self._runs(function)

        def run(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
            if not runs.run(inputs, outputs):
                with self._lock:
                    self._start()
                    copy(runs.anew(inputs), outputs)

        run(inputs, outputs)
        return run

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
            self._kept.pop(_key(function, arrays), None)
            buffers = self._filled(arrays)
            with self._watched(_key(function, arrays)):
                self.started[function](*buffers)
            with instruments.attached(self.started, clock):
                for _ in range(repeat):
                    clock.start_run()
                    self.started[function](*buffers)
        return clock.runs

    def _runs(self, function: str) -> Runs:
        """Return a function's runs on inputs of sizes to come, none yet."""

        def interpret(buffers: list[Any]) -> list[Any]:
            return _listed(self.started[function](*buffers))

        return Runs(partial(self._recorded, function), self._filled, interpret)

    def _recorded(
        self, function: str, arrays: Sequence[np.ndarray]
    ) -> tuple[list[Any], Replay | None]:
        """Run the machine; return the outputs, and its calls where conditions alone decide them."""
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
            self._kept, self._begun = {}, set()

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


_machines: weakref.WeakSet[ModelMachine] = weakref.WeakSet()


def _after_fork() -> None:
    for machine in _machines:
        machine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
