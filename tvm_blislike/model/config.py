"""How a workload is computed: every choice a schedule template takes, in one record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Config:
    """The choices for one layer. Fields that an implementation does not use stay at 0 or "".

    Parameters
    ----------
    implementation : str
        Name in the registry, such as "conv2d_direct".
    mr, nr : int
        Micro-kernel block; `mr` is `tile_h * tile_w` in convolutions.
    unroll : int
        k steps per iteration of the micro-kernel's loop.
    mc, nc, kc : int
        Cache blocking of `gemm`.
    loop_order : str
        `gemm`: "B3A2C0" and its siblings; `conv2d_direct`: "rows" or "channels", the outer loop.
    columns : str
        `conv2d_im2col`: "filters" computes blocks of mr pixels by nr filters, "" of mr filters by
        nr pixels.
    packing : str
        `conv2d_im2col`: "shift" packs windows of stride 1 by shifts of vectors in registers, "" by
        one unaligned load each; without effect on other strides and on kernels one column wide.
        Windows of one pixel of stride 1: "in place" reads them where they are, "tile" packs each
        tile when the first product needs it, in loop order "IS" with one set of channels.
    data_layout, out_layout : str
        Layouts of the input and output images (see `tvm_blislike.model.layouts`).
    tile_h, tile_w : int
        Output rows and columns of one block of C.
    oh_block : int
        Tiles (of `tile_h` rows) that share one padded slab of the input.
    prefetch : int
        1 to prefetch the next panel of the packed operand during the present one.
    prefetch_bytes : int
        `gemm`: with `prefetch`, how far ahead of their use panels that pass by are asked for; 0:
        8192 bytes.
    parallel : str
        What threads divide: "b", "ic" or "jc" (`gemm`), "batch", "pixels" or "filters"
        (`conv2d_im2col`); "" for what gives them the most equal parts.
    ring : int
        `conv2d_winograd_1d`: blocks in a strip, whose transformed rows lie in a ring; 0: no ring.
    transform : str
        `conv2d_winograd`: "flat" transforms patches in one pass, "" rows and columns one by one.
    """

    implementation: str
    mr: int = 0
    nr: int = 0
    unroll: int = 4
    mc: int = 0
    nc: int = 0
    kc: int = 0
    loop_order: str = ""
    columns: str = ""
    packing: str = ""
    data_layout: str = ""
    out_layout: str = ""
    tile_h: int = 1
    tile_w: int = 0
    oh_block: int = 0
    prefetch: int = 0
    ring: int = 0
    transform: str = ""
    prefetch_bytes: int = 0
    parallel: str = ""

    def to_json(self) -> str:
        """Return this record as one line of JSON with sorted keys."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Config:
        """Return the record that `to_json` wrote.

        Raises
        ------
        TypeError
            When `text` has a field that `Config` does not have.
        """
        return Config.of_fields(json.loads(text))

    @staticmethod
    def of_fields(fields: Mapping[str, Any]) -> Config:
        """Return the record with these fields, of which older ones may call `unroll` kr."""
        return Config(**{"unroll" if name == "kr" else name: v for name, v in fields.items()})

    def with_fields(self, **fields: int | str) -> Config:
        """Return a copy with some fields replaced (how users pin a choice)."""
        return dataclasses.replace(self, **fields)
