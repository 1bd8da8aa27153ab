"""What a model takes and gives: one tensor's name, shape and data type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and data type of a model's input or output.

    Parameters
    ----------
    name : str
        The name in the ONNX graph.
    shape : tuple of int or None
        Sizes; None where a size is known at run time only (outputs such as NonZero). Text such as
        `1..8` or `16/32` where a model takes several.
    dtype : str
        NumPy name of the element type.
    """

    name: str
    shape: tuple[int | str | None, ...]
    dtype: str

    @property
    def sizes(self) -> str:
        """The shape as written on the command line, `1x3x224x224`."""
        return rendered(self.shape)

    def __str__(self) -> str:
        return f"{self.name} {self.sizes} {self.dtype}"

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> TensorSpec:
        """Return what `dataclasses.asdict` made of one, also by way of JSON."""
        return TensorSpec(fields["name"], tuple(fields["shape"]), fields["dtype"])


def rendered(shape: Sequence[int | str | None]) -> str:
    """Return a shape as written on the command line; a size that is not known is `?`."""
    return "x".join("?" if size is None else str(size) for size in shape) or "scalar"
