"""The sizes that a library takes: one of its functions for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_blislike.model.tensor_spec import TensorSpec

# The function of the largest sizes, or of the only ones.
MAIN = "main"


@dataclass(frozen=True)
class Variant:
    """A function of a library, and what goes in and out.

    Parameters
    ----------
    function : str
        Its name: `MAIN` for the largest sizes.
    inputs, outputs : tuple of TensorSpec
        In the order of its arguments and results.
    """

    function: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Variant:
        """Return what `dataclasses.asdict` wrote."""
        inputs, outputs = (
            tuple(map(TensorSpec.from_dict, fields[key])) for key in ("inputs", "outputs")
        )
        return Variant(fields["function"], inputs, outputs)


@dataclass(frozen=True)
class Batches:
    """The smaller batches that a model is to take as well.

    Parameters
    ----------
    smaller : tuple of int
        Numbers of images.
    inputs : tuple of int
        Which inputs hold images, along their first axis.
    """

    smaller: tuple[int, ...]
    inputs: tuple[int, ...]


def function_name(number: int) -> str:
    """Return the name of the function of the sizes of a number, which are not the largest."""
    return f"{MAIN}_{number}"


def spanned(variants: Sequence[Variant]) -> tuple[TensorSpec, ...]:
    """Return the inputs of all sizes together: an open size is its values, such as 1..8."""
    return _each_spanned([variant.inputs for variant in variants])


def spanned_outputs(variants: Sequence[Variant]) -> tuple[TensorSpec, ...]:
    """Return the outputs of all sizes together, likewise."""
    return _each_spanned([variant.outputs for variant in variants])


def _each_spanned(specs: Sequence[Sequence[TensorSpec]]) -> tuple[TensorSpec, ...]:
    return tuple(map(_spanned, zip(*specs, strict=True)))


def _spanned(specs: Sequence[TensorSpec]) -> TensorSpec:
    shape = tuple(_values(sizes) for sizes in zip(*(spec.shape for spec in specs), strict=True))
    return TensorSpec(specs[-1].name, shape, specs[-1].dtype)


def _values(sizes: Sequence[int | None]) -> int | str | None:
    """Return the one value of a size, or all as they are written, 1..8, 32..96:32 or 16/24/64."""
    values = sorted(set(sizes))
    if len(values) == 1:
        return values[0]
    step = values[1] - values[0]
    if values != list(range(values[0], values[-1] + 1, step)) or (len(values) == 2 and step > 1):
        return "/".join(map(str, values))
    return f"{values[0]}..{values[-1]}" + (f":{step}" if step > 1 else "")
