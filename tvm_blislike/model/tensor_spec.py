"""What a model takes and gives: one tensor's name, shape and data type."""

from __future__ import annotations

from dataclasses import dataclass


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
        return "x".join("?" if size is None else str(size) for size in self.shape) or "scalar"

    def __str__(self) -> str:
        return f"{self.name} {self.sizes} {self.dtype}"
