"""A model ready to run: checked inputs, named outputs, per-layer times, export and load."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_blislike.errors import UsageError
from tvm_blislike.model.tensor_spec import TensorSpec
from tvm_blislike.model.variant import MAIN, Variant
from tvm_blislike.runtime import library
from tvm_blislike.runtime.inputs import Inputs, Taken
from tvm_blislike.runtime.machine import ModelMachine
from tvm_blislike.runtime.runner import Runner
from tvm_blislike.runtime.threads import use_threads

if TYPE_CHECKING:
    from tvm.runtime import Executable, Module

    from tvm_blislike.export.bundle import Bundle
    from tvm_blislike.model.report import Report
    from tvm_blislike.tvm_seams.loaded import Weights


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
    """A compiled model, of one size of its inputs or of several.

    One model may be used from several Python threads; its runs then follow one another, those of
    runners of their own (`runner`) do not.

    Parameters
    ----------
    executable : tvm.runtime.Executable or tvm.runtime.Module
        What `tvm.compile` returned, or a loaded library.
    inputs, outputs : sequence of TensorSpec
        In the order of `main`'s arguments and results; of the largest sizes.
    target : mapping
        Configuration of the `tvm.target.Target` it was compiled for.
    report : Report
        What was decided for each layer, and why; its threads are those the model runs with.
    exportable : callable, optional
        Makes an executable of the same for `export`, where `executable` takes weights, or is not as
        it was any more once it has run.
    again : callable, optional
        Compiles the model again, for a model that was kept: `executable` then only runs, and what
        needs more of it, such as `export`, calls this first.
    variants : sequence of Variant
        Of the other sizes that it takes.
    weights : mapping of str to sequence of Tensor
        What functions of `executable` take behind the inputs.

    Attributes
    ----------
    inputs, outputs : tuple of TensorSpec
        As above.
    variants : tuple of Variant
        Of all sizes, the largest last.
    threads : int
        Threads of the next run; may be changed.
    """

    _again: Callable[[], CompiledModel] | None = None
    _exportable: Callable[[], Executable] | None = None

    def __init__(
        self,
        executable: Executable | Module,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        target: Mapping[str, Any],
        report: Report,
        exportable: Callable[[], Executable] | None = None,
        again: Callable[[], CompiledModel] | None = None,
        variants: Sequence[Variant] = (),
        weights: Weights | None = None,
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.variants = (*variants, Variant(MAIN, self.inputs, self.outputs))
        self._taken = Taken(self.variants)
        self.threads = report.threads
        self._target = dict(target)
        self._executable = executable
        self._machine = ModelMachine(executable, self.inputs, self._target, weights or {})
        self._report = report
        self._again, self._exportable = again, exportable

    @property
    def about(self) -> library.About:
        """What its library says of it."""
        report, others = self._report.to_json(), self.variants[:-1]
        return library.About(self.inputs, self.outputs, self._target, report, others)

    @property
    def executable(self) -> Executable | Module:
        """What `tvm.compile` returned, or a loaded library."""
        if self._again is not None:
            self._executable, self._again = self._again().executable, None
        elif self._exportable is not None:
            self._executable, self._exportable = self._exportable(), None
        return self._executable

    @property
    def running(self) -> tuple[Executable | Module, Weights]:
        """What runs, and what its functions take behind the inputs."""
        return self._machine.executable, self._machine.weights

    def run_linked(self, kernels: Module) -> None:
        """Run its kernels out of a library of them from now on, instead of having TVM link them."""
        self._machine.run_linked(kernels)

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

        return executables.functions_of_python(self.executable)

    @property
    def needs_extras(self) -> bool:
        """Whether it sorts or draws random numbers, which is in TVM's second runtime library."""
        from tvm_blislike.tvm_seams import executables, llvm_text

        return bool(llvm_text.calls_of_extras(executables.code_of(self.executable) or ""))

    def run(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """Run the model once.

        Parameters
        ----------
        inputs : mapping of str to array, or sequence of arrays
            One array per input, with exactly its shape and data type, or one of the shapes that
            `variants` names: of NumPy, or anything with DLPack in the memory of the CPU, such as a
            torch tensor. What is contiguous and aligned to 64 bytes is read where it lies.

        Returns
        -------
        dict of str to array
            The outputs by name, with memory of their own, aligned to 64 bytes.

        Raises
        ------
        InputError
            When a name, shape or data type does not fit; the message says what to change.
        TargetError
            When the model was compiled for another kind of processor.
        """
        variant, arrays = self._taken.arranged(inputs)
        use_threads(self.threads)
        results = self._machine.run(arrays, variant.function)
        return dict(zip([spec.name for spec in self.outputs], results, strict=True))

    def variant_of(self, sizes: Mapping[str, Sequence[int]]) -> Variant:
        """Return the sizes that some inputs' shapes mean; the largest that they leave open.

        Parameters
        ----------
        sizes : mapping of str to sequence of int
            Shapes by input.

        Raises
        ------
        InputError
            When the model takes none like that.
        """
        return self._taken.variant_of(sizes)

    def runner(
        self,
        outputs: Mapping[str, Any] | None = None,
        sizes: Mapping[str, Sequence[int]] | None = None,
    ) -> Runner:
        """Return what runs the model for one thread, in fixed memory; see `Runner`.

        Parameters
        ----------
        outputs : mapping of str to array, optional
            What runs write; by default arrays of the runner's own.
        sizes : mapping of str to sequence of int, optional
            Shapes of inputs, for a model that takes several; by default the largest.

        Raises
        ------
        InputError, UsageError
            As of `Runner`.
        """
        return Runner(self._machine, self.variant_of(sizes or {}), lambda: self.threads, outputs)

    def check(self, inputs: Inputs) -> None:
        """Raise InputError unless `run` would accept these inputs."""
        self._taken.arranged(inputs)

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
        variant, arrays = self._taken.arranged(inputs)
        use_threads(self.threads)
        return self._machine.timed(arrays, repeat, variant.function)

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

        found = executables.code_of(self.executable, "asm")
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
        library.write(self.executable, self.about, path, cc)

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
        report, variants = Report.from_json(about.report), about.variants
        return CompiledModel(
            module, about.inputs, about.outputs, about.target, report, variants=variants
        )
