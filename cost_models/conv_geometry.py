"""What convolutions by tiles of outputs have in common: choices, and the sizes that follow."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm_blislike.model.config import Config
from tvm_blislike.model.derived import derived
from tvm_blislike.model.workload import Conv2dWorkload


@dataclass(frozen=True, kw_only=True)
class TiledConfig(Config):
    """The choices of a convolution that computes tiles of outputs.

    Parameters
    ----------
    data_layout, out_layout : str
        Layouts of the input and output images (see `tvm_blislike.model.layouts`).
    tile_h, tile_w : int
        Output rows and columns of one tile.
    """

    data_layout: str = ""
    out_layout: str = ""
    tile_h: int = 1
    tile_w: int = 0

    @derived
    def kind(self) -> tuple[str | int, ...]:
        """See `Config.kind`."""
        return (*super().kind, self.tile_h, self.tile_w)


@dataclass(frozen=True)
class ConvGeometry:
    """Sizes that follow from a workload and a config: groups, tiles of outputs, padding."""

    workload: Conv2dWorkload
    config: TiledConfig

    @derived
    def ci_group(self) -> int:
        """Input channels of one group."""
        return self.workload.ci // self.workload.groups

    @derived
    def co_group(self) -> int:
        """Output channels of one group."""
        return self.workload.co // self.workload.groups

    @derived
    def tiles_h(self) -> int:
        """Tiles of `tile_h` output rows, the last one perhaps cut."""
        return math.ceil(self.workload.oh / self.config.tile_h)

    @derived
    def tiles_w(self) -> int:
        """Tiles of `tile_w` output columns, the last one perhaps cut."""
        return math.ceil(self.workload.ow / self.config.tile_w)

    @derived
    def padded_size(self) -> tuple[int, int]:
        """Height and width of the padded input, without rows and columns that no output reads."""
        w = self.workload
        return (
            (w.oh - 1) * w.stride[0] + (w.kh - 1) * w.dilation[0] + 1,
            (w.ow - 1) * w.stride[1] + (w.kw - 1) * w.dilation[1] + 1,
        )


def read_beyond(workload: Conv2dWorkload, _config: TiledConfig) -> tuple[int, int]:
    """Return the rows and columns beyond an image that its last outputs read, zeros or not."""
    (dh, dw), (_, _, bottom, right) = workload.dilation, workload.padding
    return max((workload.kh - 1) * dh, bottom), max((workload.kw - 1) * dw, right)
