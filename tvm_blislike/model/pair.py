"""Two convolutions one behind the other, the second of which alone reads the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload, Workload


@dataclass(frozen=True)
class PairWorkload(Workload):
    """A depthwise convolution with what follows it, then a 1x1 convolution of its result.

    Parameters
    ----------
    depthwise, pointwise : Conv2dWorkload
        The layers. The result of the first is the image of the second.
    """

    kind: ClassVar[str] = "conv2d pair"
    depthwise: Conv2dWorkload
    pointwise: Conv2dWorkload

    @property
    def types(self) -> Types:
        """Those of the second layer; the first one has the same."""
        return self.pointwise.types

    @property
    def operands(self) -> dict[str, tuple[int, ...]]:
        """The image NCHW and the weights OIHW of both layers."""
        first, second = self.depthwise.operands, self.pointwise.operands
        return {**first, "pointwise weights": second["weights"]}

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The image NCHW."""
        return self.pointwise.result_shape

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations of both."""
        return self.depthwise.macs + self.pointwise.macs

    @property
    def extents(self) -> dict[str, int]:
        """See `Workload.extents`; the depth is that of the second layer."""
        return self.pointwise.extents

    def __str__(self) -> str:
        return f"{self.depthwise}, 1x1 -> {self.pointwise.co}{_suffix(self.pointwise)}"


def _suffix(workload: Conv2dWorkload) -> str:
    return "" if workload.types == Types() else f" {workload.types}"
