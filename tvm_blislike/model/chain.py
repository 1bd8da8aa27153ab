"""Convolutions one behind the other, each of which alone reads the one before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload, Workload


@dataclass(frozen=True)
class ChainWorkload(Workload):
    """Depthwise and 1x1 convolutions with what follows each of them, in turn.

    Parameters
    ----------
    layers : tuple of Conv2dWorkload
        Two or more. The result of each one is the image of the next.
    """

    kind: ClassVar[str] = "conv2d chain"
    layers: tuple[Conv2dWorkload, ...]

    @property
    def types(self) -> Types:
        """Those of the last layer; the others have the same."""
        return self.layers[-1].types

    @property
    def operands(self) -> dict[str, tuple[int, ...]]:
        """The image NCHW and the weights OIHW of all layers."""
        first, *later = self.layers
        weights = {f"weights {n}": w.operands["weights"] for n, w in enumerate(later, 2)}
        return {**first.operands, **weights}

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The image NCHW."""
        return self.layers[-1].result_shape

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations of all layers."""
        return sum(layer.macs for layer in self.layers)

    @property
    def extents(self) -> dict[str, int]:
        """See `Workload.extents`; the depth is that of the last layer."""
        return self.layers[-1].extents

    def __str__(self) -> str:
        return ", ".join((str(self.layers[0]), *map(_further, self.layers[1:])))


def _further(workload: Conv2dWorkload) -> str:
    """Return what a layer does with the image that the one before has made."""
    w = workload
    if not w.is_depthwise:
        return f"1x1 -> {w.co}" + ("" if w.types == Types() else f" {w.types}")
    return f"{w.kh}x{w.kw}" + (f" s{w.stride[0]}" if w.stride[0] > 1 else "")
