"""TVM's virtual machine for the first run of a model, and its calls of kernels for all others."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_blislike.model.variant import MAIN
from tvm_blislike.runtime.interpreter import Interpreter, Key, key_of
from tvm_blislike.runtime.runs import Runs, copy

if TYPE_CHECKING:
    from tvm.runtime import Executable, Module

    from tvm_blislike.model.tensor_spec import TensorSpec
    from tvm_blislike.tvm_seams.loaded import Weights

# Sizes whose calls are kept: each has memory of its own.
_MOST_SIZES = 64


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
    weights : mapping of str to sequence of Tensor
        What functions take behind the inputs.

    Attributes
    ----------
    executable, weights
        As above.
    started : Interpreter or None
        None before the first run.
    """

    def __init__(
        self,
        executable: Executable | Module,
        inputs: Sequence[TensorSpec],
        target: Mapping[str, Any],
        weights: Weights,
    ) -> None:
        self.started: Interpreter | None = None
        self.executable, self.weights, self._target = executable, weights, target
        # The one that ran last comes last.
        self._kept: dict[Key, Runs] = {}
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
            interpreter = self._interpreter()
            key = key_of(function, arrays)
            runs = self._kept.pop(key, None) or Runs(function)
            self._kept[key] = runs
            if len(self._kept) > _MOST_SIZES:
                del self._kept[next(iter(self._kept))]
            return runs.results(arrays, interpreter)

    def recorded(
        self,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        function: str = MAIN,
    ) -> Recorded:
        """Run a function into arrays, and return what does so again, with memory of its own.

        What it returns may run beside others; where sizes depend on values, or a condition turns
        out as in none of its runs before, runs follow one another.

        Raises
        ------
        TargetError
            When the executable is for another kind of processor.
        """
        recorded = Recorded(Runs(function), self._anew)
        recorded.run(inputs, outputs)
        return recorded

    def _anew(
        self, runs: Runs, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        with self._lock:
            copy(runs.anew(inputs, self._interpreter()), outputs)

    def run_linked(self, kernels: Module) -> None:
        """Take kernels out of a library, before the first run."""
        from tvm_blislike.tvm_seams import executables

        with self._lock:
            self.executable = executables.with_kernels(self.executable, kernels)

    def timed(
        self, arrays: Sequence[np.ndarray], repeat: int, function: str = MAIN
    ) -> list[dict[str, list[float]]]:
        """Run a function once, then `repeat` times; return each kernel's seconds of each call.

        Raises
        ------
        TargetError
            As of `run`.
        """
        with self._lock:
            interpreter = self._interpreter()
            # The machine shall have the memory that runs had.
            self._kept.pop(key_of(function, arrays), None)
            return interpreter.timed(function, arrays, repeat)

    def _interpreter(self) -> Interpreter:
        """Return the executable's interpreter, started unless it is; no run is kept then."""
        if self.started is None:
            self.started = Interpreter(
                self.executable, self._target, self._may_record, self.weights
            )
            self._kept = {}
        return self.started

    def after_fork(self) -> None:
        """Forget a run of another thread, which is not in this process and never ends its run."""
        if self._lock.locked():
            self.started = None
            self._lock = threading.Lock()


class Recorded:
    """Runs a function again.

    Parameters
    ----------
    runs : Runs
        Its runs so far.
    anew : callable
        Makes one that is unlike all of them, from arrays into arrays.
    """

    def __init__(
        self,
        runs: Runs,
        anew: Callable[[Runs, Sequence[np.ndarray], Sequence[np.ndarray]], None],
    ) -> None:
        self.runs, self._anew = runs, anew
        self.run_at = runs.run_at

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run once, from arrays into arrays."""
        if not self.runs.run(inputs, outputs):
            self._anew(self.runs, inputs, outputs)


_machines: weakref.WeakSet[ModelMachine] = weakref.WeakSet()


def _after_fork() -> None:
    for machine in _machines:
        machine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
