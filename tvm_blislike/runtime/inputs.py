"""The arrays that a model runs on: given in any order or by name, checked before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tvm_blislike.errors import InputError, suggest
from tvm_blislike.model.tensor_spec import TensorSpec, rendered
from tvm_blislike.model.variant import Variant, spanned
from tvm_blislike.runtime.arrays import array_of

# Arrays of NumPy, or anything with DLPack.
Inputs = Mapping[str, Any] | Sequence[Any] | np.ndarray
# Whether an input may have a shape.
IsTaken = Callable[[TensorSpec, tuple[int, ...]], bool]


def arranged(
    inputs: Inputs, specs: Sequence[TensorSpec], is_taken: IsTaken | None = None
) -> list[np.ndarray]:
    """Return the arrays in the order of what the model takes.

    Parameters
    ----------
    inputs : mapping of str to array, or sequence of arrays
        By name or in order.
    specs : sequence of TensorSpec
        What the model takes.
    is_taken : callable, optional
        Whether an input may have a shape; by default the one that its `specs` says.

    Raises
    ------
    InputError
        When a name, shape or data type does not fit; the message says what to change.
    """
    if hasattr(inputs, "__dlpack__"):
        inputs = [inputs]
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(specs):
            raise InputError(f"{len(inputs)} inputs given; the model takes {_listed(specs)}")
        inputs = {s.name: a for s, a in zip(specs, inputs, strict=True)}
    names = [spec.name for spec in specs]
    _require_inputs(inputs, names)
    missing = [name for name in names if name not in inputs]
    if missing:
        text = f"missing input: {', '.join(missing)}; the model takes {_listed(specs)}"
        raise InputError(text)
    return [fitting(spec, inputs[spec.name], is_taken=is_taken) for spec in specs]


class Taken:
    """What a model takes: inputs of one size, or of several.

    Parameters
    ----------
    variants : sequence of Variant
        At least one, the largest last.
    """

    def __init__(self, variants: Sequence[Variant]) -> None:
        self._largest = variants[-1]
        self._specs = spanned(variants)
        self._by_shapes = {tuple(s.shape for s in v.inputs): v for v in variants}
        shapes = list(zip(*self._by_shapes, strict=True))
        self._of_each = {s.name: set(each) for s, each in zip(self._specs, shapes, strict=True)}

    def arranged(self, inputs: Inputs) -> tuple[Variant, list[np.ndarray]]:
        """Return the sizes of inputs, and the arrays in the order of what the model takes.

        Raises
        ------
        InputError
            As of the function `arranged`; also when the sizes of several inputs do not go together.
        """
        if len(self._by_shapes) == 1:
            return self._largest, arranged(inputs, self._specs)
        arrays = arranged(inputs, self._specs, self._is_taken)
        variant = self._by_shapes.get(tuple(array.shape for array in arrays))
        if variant is None:
            given = zip(self._specs, arrays, strict=True)
            listed = ", ".join(f"{spec.name} {rendered(array.shape)}" for spec, array in given)
            raise InputError(
                f"these sizes do not go together: {listed}",
                f"the model takes {_listed(self._specs)}, an open size with one value in all "
                "inputs",
            )
        return variant, arrays

    def variant_of(self, sizes: Mapping[str, Sequence[int]]) -> Variant:
        """Return the largest sizes of which inputs have these shapes.

        Raises
        ------
        InputError
            When there are none.
        """
        wanted = {name: tuple(shape) for name, shape in sizes.items()}
        _require_inputs(wanted, [spec.name for spec in self._specs])
        for variant in reversed(self._by_shapes.values()):
            if all(wanted.get(spec.name, spec.shape) == spec.shape for spec in variant.inputs):
                return variant
        given = ", ".join(f"{name} {rendered(shape)}" for name, shape in wanted.items())
        raise InputError(f"the model takes no {given}", f"it takes {_listed(self._specs)}")

    def _is_taken(self, spec: TensorSpec, shape: tuple[int, ...]) -> bool:
        return shape in self._of_each[spec.name]


def _require_inputs(given: Iterable[str], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise InputError(f"the model has no input named {name!r}", suggest(name, names))


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(map(str, specs)) or "none"


def fitting(
    spec: TensorSpec, value: Any, role: str = "input", is_taken: IsTaken | None = None
) -> np.ndarray:
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
    if array.shape != spec.shape and not (is_taken and is_taken(spec, array.shape)):
        sizes = rendered(array.shape)
        raise InputError(
            f"{role} {spec.name} has shape {sizes}; the model was compiled for {spec.sizes}",
            f"pass that shape, or compile again with --shape {spec.name}={sizes}",
        )
    return array


def _array(name: str, value: Any, role: str) -> np.ndarray:
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    try:
        return array_of(value)
    except Exception as error:  # each library with DLPack raises its own kind
        raise InputError(f"{role} {name} cannot be used: {str(error).strip()}") from error
