"""TVM's virtual machine with the buffers of a model's inputs: one run at a time."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_blislike.runtime import huge_pages, instruments
from tvm_blislike.runtime.runnable import require_runnable

if TYPE_CHECKING:
    from tvm.runtime import Executable, Module

    from tvm_blislike.model.tensor_spec import TensorSpec


class ModelMachine:
    """Runs an executable, from several Python threads one after the other.

    Parameters
    ----------
    executable : tvm.runtime.Executable or tvm.runtime.Module
        What `tvm.compile` returned, or a loaded library.
    inputs : sequence of TensorSpec
        In the order of `main`'s arguments.
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
        self._buffers: list[Any] = []
        self._views: list[np.ndarray | None] = []
        self._lock = threading.Lock()
        _machines.add(self)

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once on arrays that are what the inputs say; return the outputs.

        Raises
        ------
        TargetError
            When the executable is for another kind of processor.
        """
        with self._lock:
            result = self._run_on(arrays)
            values = [result] if hasattr(result, "numpy") else result
            return [_copied(value) for value in values]

    def run_linked(self, kernels: Module) -> None:
        """Take kernels out of a library, before the first run."""
        from tvm_blislike.tvm_seams import executables

        with self._lock:
            self._executable = executables.with_kernels(self._executable, kernels)

    def timed(self, arrays: Sequence[np.ndarray], repeat: int) -> list[dict[str, list[float]]]:
        """Run once, then `repeat` times; return the seconds of each call of each kernel of these.

        Raises
        ------
        TargetError
            As of `run`.
        """
        clock = instruments.KernelClock()
        with self._lock:
            self._run_on(arrays)
            with instruments.attached(self.started, clock):
                for _ in range(repeat):
                    clock.start_run()
                    self.started["main"](*self._buffers)
        return clock.runs

    def _run_on(self, arrays: Sequence[np.ndarray]) -> Any:
        """Run on new inputs, which stay in the buffers."""
        # The machine's first run allocates all that later ones use.
        settled = self._start() if self.started is None else contextlib.nullcontext()
        # Own buffers: kernels may count on TVM's alignment, which numpy does not promise.
        for buffer, view, array in zip(self._buffers, self._views, arrays, strict=True):
            if view is None:
                buffer.copyfrom(array)
            else:
                np.copyto(view, array)
        with settled:
            return self.started["main"](*self._buffers)

    def _start(self) -> contextlib.AbstractContextManager[None]:
        """Load the executable and return the context of its first run."""
        import tvm
        from tvm import relax

        require_runnable(self._target)
        machine = relax.VirtualMachine(self._executable, tvm.cpu())
        self._buffers = [tvm.runtime.empty(spec.shape, spec.dtype) for spec in self._inputs]
        self._views = [_view(buffer) for buffer in self._buffers]
        # Last: whatever fails before, the next run starts anew.
        self.started = machine
        return huge_pages.moved(machine)

    def after_fork(self) -> None:
        """Forget a run of another thread, which is not in this process and never ends its run."""
        if self._lock.locked():
            self.started = None
            self._lock = threading.Lock()


def _view(tensor: Any) -> np.ndarray | None:
    """Return the elements of a tensor where they are, None of a type that NumPy lacks.

    NumPy copies through it in 0.3 microseconds, `copyfrom` and `numpy` take 4.7: as long as a small
    layer.
    """
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError):  # as versions of NumPy say it
        return None


def _copied(tensor: Any) -> np.ndarray:
    view = _view(tensor)
    return tensor.numpy() if view is None else view.copy()


_machines: weakref.WeakSet[ModelMachine] = weakref.WeakSet()


def _after_fork() -> None:
    for machine in _machines:
        machine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
