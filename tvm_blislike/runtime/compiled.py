"""A model ready to run: checked inputs, named outputs, per-layer times, export and load."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_blislike.errors import InputError, UsageError, suggest
from tvm_blislike.model.tensor_spec import TensorSpec
from tvm_blislike.runtime import huge_pages, instruments, library
from tvm_blislike.runtime.runnable import require_runnable
from tvm_blislike.runtime.threads import use_threads

if TYPE_CHECKING:
    from tvm.runtime import Executable, Module

    from tvm_blislike.export.bundle import Bundle
    from tvm_blislike.model.report import Report

Inputs = Mapping[str, np.ndarray] | Sequence[np.ndarray] | np.ndarray


@dataclass(frozen=True)
class LayerTime:
    """Measured time of one kernel of the model.

    Parameters
    ----------
    name : str
        The kernel's name, as in `explain`.
    ms : float
        Median over the profiled runs of the time of all its calls in one run, in milliseconds.
    calls : int
        Calls in one run.
    """

    name: str
    ms: float
    calls: int


class CompiledModel:
    """A compiled model with fixed input shapes.

    One model may be used from several Python threads; its runs then follow one another.

    Parameters
    ----------
    executable : tvm.runtime.Executable or tvm.runtime.Module
        What `tvm.compile` returned, or a loaded library.
    inputs, outputs : sequence of TensorSpec
        In the order of `main`'s arguments and results.
    target : mapping
        Configuration of the `tvm.target.Target` it was compiled for.
    report : Report
        What was decided for each layer, and why; its threads are those the model runs with.
    runnable : tvm.runtime.Executable, optional
        Runs in place of `executable`, which then stays as it is for `export`.

    Attributes
    ----------
    inputs, outputs : tuple of TensorSpec
        As above.
    threads : int
        Threads of the next run; may be changed.
    """

    def __init__(
        self,
        executable: Executable | Module,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        target: Mapping[str, Any],
        report: Report,
        runnable: Executable | None = None,
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.threads = report.threads
        self._target = dict(target)
        self._executable = executable
        self._runnable = runnable or executable
        self._report = report
        self._machine: Any = None
        self._buffers: list[Any] = []
        self._lock = threading.Lock()
        _models.add(self)

    @property
    def core(self) -> str:
        """Name of the core it was compiled for."""
        return self._report.core

    @property
    def target(self) -> dict[str, Any]:
        """Configuration of the `tvm.target.Target` it was compiled for."""
        return dict(self._target)

    @property
    def functions_of_python(self) -> list[str]:
        """What it calls that TVM has in Python only, such as `nonzero`; no bundle can run that."""
        from tvm_blislike.tvm_seams import executables

        return executables.functions_of_python(self._executable)

    @property
    def needs_extras(self) -> bool:
        """Whether it sorts or draws random numbers, which is in TVM's second runtime library."""
        from tvm_blislike.tvm_seams import executables, llvm_text

        return bool(llvm_text.calls_of_extras(executables.code_of(self._executable) or ""))

    def run(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """Run the model once.

        Parameters
        ----------
        inputs : mapping of str to array, or sequence of arrays
            One array per input, with exactly its shape and data type.

        Returns
        -------
        dict of str to array
            The outputs by name.

        Raises
        ------
        InputError
            When a name, shape or data type does not fit; the message says what to change.
        TargetError
            When the model was compiled for another kind of processor.
        """
        arrays = self._checked(inputs)
        with self._lock:
            use_threads(self.threads)
            return self._named(self._run_on(arrays))

    def check(self, inputs: Inputs) -> None:
        """Raise InputError unless `run` would accept these inputs."""
        self._checked(inputs)

    def profile(self, inputs: Inputs, repeat: int = 10) -> list[LayerTime]:
        """Run the model and return the time of each kernel, in order of execution.

        Parameters
        ----------
        inputs : as for `run`
            The inputs.
        repeat : int
            Timed runs, after one that is not counted.

        Raises
        ------
        InputError
            As for `run`.
        """
        runs = self.profile_runs(inputs, repeat)
        return [
            LayerTime(name, median(sum(run[name]) for run in runs) * 1e3, len(runs[0][name]))
            for name in runs[0]
        ]

    def profile_runs(self, inputs: Inputs, repeat: int = 10) -> list[dict[str, list[float]]]:
        """Run the model and return, for each run, the seconds of each call of each kernel.

        Parameters
        ----------
        inputs, repeat
            As for `profile`.

        Raises
        ------
        InputError
            As for `run`.
        """
        arrays, clock = self._checked(inputs), instruments.KernelClock()
        with self._lock:
            use_threads(self.threads)
            self._run_on(arrays)
            with instruments.attached(self._machine, clock):
                for _ in range(repeat):
                    clock.start_run()
                    self._machine["main"](*self._buffers)
        return clock.runs

    def explain(self) -> Report:
        """Return what was chosen for each layer, and why."""
        return self._report

    def assembly(self) -> str:
        """Return the machine code of all kernels as text.

        Raises
        ------
        UsageError
            When the model was loaded from a library, which holds no text.
        """
        from tvm_blislike.tvm_seams import executables

        found = executables.code_of(self._executable, "asm")
        if found is None:
            raise UsageError(
                "a compiled library holds no assembly text", "explain the ONNX model it was made of"
            )
        return found

    def export(self, path: str | os.PathLike[str], cc: str | None = None) -> None:
        """Write the model as one shared library that `load` and TVM can open.

        Names, shapes, thread count and the report travel inside it.

        Parameters
        ----------
        path : path
            The library to write. An existing file is replaced only by a complete one.
        cc : str, optional
            Command of a compiler for the model's target, to link with; by default a system
            compiler or, for other architectures too, the linker of the package ziglang.

        Raises
        ------
        OutputError
            When `path` cannot be written.
        ToolchainError
            When there is no C compiler to link with, or it fails.
        """
        about = library.About(self.inputs, self.outputs, self._target, self._report.to_json())
        library.write(self._executable, about, path, cc)

    def bundle(self, folder: str | os.PathLike[str], cc: str | None = None) -> Bundle:
        """Write a folder with all that a Linux board needs to run the model.

        See `tvm_blislike.export.bundle.write`.

        Parameters
        ----------
        folder : path
            A new or empty folder, or an older bundle, which is replaced unless somebody added or
            changed files in it.
        cc : str, optional
            As of `export`.

        Raises
        ------
        OutputError, TargetError, ToolchainError, UnsupportedOperatorError
            As of `tvm_blislike.export.bundle.write`.
        """
        from tvm_blislike.export import bundle

        return bundle.write(self, folder, cc)

    @staticmethod
    def load(path: str | os.PathLike[str], verify: bool = True) -> CompiledModel:
        """Open a library that `export` wrote.

        Parameters
        ----------
        path : path
            The library.
        verify : bool
            Whether to compare it with its checksum before any of its code is loaded; see
            `tvm_blislike.runtime.library.read`.

        Raises
        ------
        ModelError
            When the file is missing, truncated, damaged, or was not written by `export`.
        """
        from tvm_blislike.model.report import Report

        module, about = library.read(path, verify)
        report = Report.from_json(about.report)
        return CompiledModel(module, about.inputs, about.outputs, about.target, report)

    def _run_on(self, arrays: list[np.ndarray]) -> Any:
        """Run the model once on new inputs, which stay in its buffers."""
        # The machine's first run allocates all that later ones use.
        settled = self._start() if self._machine is None else contextlib.nullcontext()
        # Own buffers: kernels may count on TVM's alignment, which numpy does not promise.
        for buffer, array in zip(self._buffers, arrays, strict=True):
            buffer.copyfrom(array)
        with settled:
            return self._machine["main"](*self._buffers)

    def _start(self) -> contextlib.AbstractContextManager[None]:
        """Load the model and return the context of its machine's first run."""
        import tvm
        from tvm import relax

        require_runnable(self._target)
        machine = relax.VirtualMachine(self._runnable, tvm.cpu())
        self._buffers = [self._empty(spec) for spec in self.inputs]
        # Last: whatever fails before, the next run starts anew.
        self._machine = machine
        return huge_pages.moved(machine)

    def _after_fork(self) -> None:
        """Forget a run of another thread, which is not in this process and never ends its run."""
        if self._lock.locked():
            self._machine = None
            self._lock = threading.Lock()

    def _empty(self, spec: TensorSpec) -> Any:
        import tvm

        return tvm.runtime.empty(spec.shape, spec.dtype)

    def _named(self, result: Any) -> dict[str, np.ndarray]:
        values = [result] if hasattr(result, "numpy") else list(result)
        return {s.name: v.numpy() for s, v in zip(self.outputs, values, strict=True)}

    def _checked(self, inputs: Inputs) -> list[np.ndarray]:
        """Return the arrays in the order of `main`'s arguments."""
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(self.inputs):
                raise InputError(f"{len(inputs)} inputs given; {self._expected()}")
            inputs = {s.name: a for s, a in zip(self.inputs, inputs, strict=True)}
        names = [spec.name for spec in self.inputs]
        for name in inputs:
            if name not in names:
                raise InputError(f"the model has no input named {name!r}", suggest(name, names))
        missing = [name for name in names if name not in inputs]
        if missing:
            raise InputError(f"missing input: {', '.join(missing)}; {self._expected()}")
        return [_fitting(spec, np.asarray(inputs[spec.name])) for spec in self.inputs]

    def _expected(self) -> str:
        return f"the model takes {', '.join(map(str, self.inputs)) or 'none'}"


_models: weakref.WeakSet[CompiledModel] = weakref.WeakSet()


def _after_fork() -> None:
    for model in _models:
        model._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _fitting(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    """Return `array` unchanged when it is what `spec` says."""
    if str(array.dtype) != spec.dtype:
        raise InputError(
            f"input {spec.name} has data type {array.dtype}; the model takes {spec.dtype}",
            f"convert the array, for example with .astype({spec.dtype!r})",
        )
    if array.shape != spec.shape:
        given = TensorSpec(spec.name, array.shape, spec.dtype)
        raise InputError(
            f"input {spec.name} has shape {given.sizes}; the model was compiled for {spec.sizes}",
            f"pass that shape, or compile again with --shape {spec.name}={given.sizes}",
        )
    return array
