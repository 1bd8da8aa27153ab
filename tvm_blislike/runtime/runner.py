"""A model's runs in one thread: fixed memory for inputs and outputs, nothing allocated between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_blislike.errors import InputError, UsageError, suggest
from tvm_blislike.runtime.arrays import aligned
from tvm_blislike.runtime.inputs import Inputs, arranged, fitting
from tvm_blislike.runtime.threads import use_threads

if TYPE_CHECKING:
    from tvm_blislike.model.variant import Variant
    from tvm_blislike.runtime.machine import ModelMachine, Recorded


class Runner:
    """Runs a model for one thread, which shares the weights of the model and nothing else.

    Parameters
    ----------
    machine : ModelMachine
        The model's.
    variant : Variant
        One of its sizes.
    threads : callable
        Returns the threads of the next run.
    outputs : mapping of str to array, optional
        What runs write, NumPy arrays or anything with DLPack; the others get memory of their own.

    Raises
    ------
    InputError
        When there is no such output, or it has another shape or data type.
    UsageError
        When the size of an input or output is known at run time only.

    Attributes
    ----------
    inputs : dict of str to array
        Aligned memory to fill in place: what is read there is not copied.
    outputs : dict of str to array
        What each run overwrites: what was given, where it was given.
    """

    def __init__(
        self,
        machine: ModelMachine,
        variant: Variant,
        threads: Callable[[], int],
        outputs: Mapping[str, Any] | None = None,
    ) -> None:
        self._machine, self._threads = machine, threads
        self._inputs, results, self._function = variant.inputs, variant.outputs, variant.function
        unknown = [spec.name for spec in (*self._inputs, *results) if None in spec.shape]
        if unknown:
            raise UsageError(f"the size of {unknown[0]} is known at run time only", "use model.run")
        self.inputs = {spec.name: aligned(spec.shape, spec.dtype) for spec in self._inputs}
        given, names = dict(outputs or {}), [spec.name for spec in results]
        for name in given:
            if name not in names:
                raise InputError(f"the model has no output named {name!r}", suggest(name, names))
        self._given = tuple(self.inputs.values())
        self._written = tuple(
            fitting(spec, given[spec.name], "output")
            if spec.name in given
            else aligned(spec.shape, spec.dtype)
            for spec in results
        )
        for spec, array in zip(results, self._written, strict=True):
            if not array.flags.writeable:
                raise InputError(f"output {spec.name} cannot be written")
        self.outputs = {
            spec.name: given.get(spec.name, array)
            for spec, array in zip(results, self._written, strict=True)
        }
        self._recorded: Recorded | None = None

    def run(self, inputs: Inputs | None = None) -> dict[str, Any]:
        """Run the model once and return `outputs`, which the next run overwrites.

        Parameters
        ----------
        inputs : mapping of str to array, or sequence of arrays, optional
            As of `CompiledModel.run`; by default what `Runner.inputs` holds.

        Raises
        ------
        InputError, TargetError
            As of `CompiledModel.run`; also when an output lies in the memory of an input.
        """
        arrays = self._given if inputs is None else arranged(inputs, self._inputs)
        self.run_on(arrays, self._written)
        return self.outputs

    def run_on(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run on arrays of the model's sizes and types, in its order, without looking at them."""
        use_threads(self._threads())
        if self._recorded is None:
            self._recorded = self._machine.recorded(inputs, outputs, self._function)
        else:
            self._recorded.run(inputs, outputs)

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> bool:
        """Run on memory at addresses, contiguous as the model's arrays; see `Replay.run_at`.

        Returns
        -------
        bool
            False where `run_on` has to: in the first run at least.
        """
        use_threads(self._threads())
        return self._recorded is not None and self._recorded.run_at(inputs, outputs)
