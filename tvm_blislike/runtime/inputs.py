"""The arrays that a model runs on: given in any order or by name, checked before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvm_blislike.errors import InputError, suggest
from tvm_blislike.model.tensor_spec import TensorSpec
from tvm_blislike.runtime.arrays import array_of

# Arrays of NumPy, or anything with DLPack.
Inputs = Mapping[str, Any] | Sequence[Any] | np.ndarray


def arranged(inputs: Inputs, specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """Return the arrays in the order of what the model takes.

    Raises
    ------
    InputError
        When a name, shape or data type does not fit; the message says what to change.
    """
    expected = f"the model takes {', '.join(map(str, specs)) or 'none'}"
    if hasattr(inputs, "__dlpack__"):
        inputs = [inputs]
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(specs):
            raise InputError(f"{len(inputs)} inputs given; {expected}")
        inputs = {s.name: a for s, a in zip(specs, inputs, strict=True)}
    names = [spec.name for spec in specs]
    for name in inputs:
        if name not in names:
            raise InputError(f"the model has no input named {name!r}", suggest(name, names))
    missing = [name for name in names if name not in inputs]
    if missing:
        raise InputError(f"missing input: {', '.join(missing)}; {expected}")
    return [fitting(spec, inputs[spec.name]) for spec in specs]


def fitting(spec: TensorSpec, value: Any, role: str = "input") -> np.ndarray:
    """Return the array of a value, sharing its memory, when it is what `spec` says.

    Raises
    ------
    InputError
        When it is not, or is no array.
    """
    array = _array(spec.name, value, role)
    verb = "takes" if role == "input" else "returns"
    if array.dtype != np.dtype(spec.dtype):  # its text would be made anew in each run
        raise InputError(
            f"{role} {spec.name} has data type {array.dtype}; the model {verb} {spec.dtype}",
            f"convert the array, for example with .astype({spec.dtype!r})",
        )
    if array.shape != spec.shape:
        given = TensorSpec(spec.name, array.shape, spec.dtype)
        raise InputError(
            f"{role} {spec.name} has shape {given.sizes}; the model was compiled for {spec.sizes}",
            f"pass that shape, or compile again with --shape {spec.name}={given.sizes}",
        )
    return array


def _array(name: str, value: Any, role: str) -> np.ndarray:
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    try:
        return array_of(value)
    except Exception as error:  # each library with DLPack raises its own kind
        raise InputError(f"{role} {name} cannot be used: {str(error).strip()}") from error
