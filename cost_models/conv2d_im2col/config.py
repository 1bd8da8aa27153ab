"""The choices of `conv2d_im2col`."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.model.config import KernelConfig


@dataclass(frozen=True, kw_only=True)
class Im2colConfig(KernelConfig):
    """How a convolution becomes a matrix product, on NCHW images.

    Parameters
    ----------
    mc, kc : int
        Filters and steps of k that stay in a cache; 0: all of them.
    loop_order : str
        What stays: "IS" for the windows, "WS" for the filters.
    columns : str
        "filters" computes blocks of mr pixels by nr filters, "" of mr filters by nr pixels.
    packing : str
        "shift" packs windows of stride 1 by shifts of vectors in registers, "" by one unaligned
        load each; without effect on other strides and on kernels one column wide. Windows of one
        pixel of stride 1: "in place" reads them where they are, "tile" packs each tile when the
        first product needs it, in loop order "IS" with one set of channels.
    oh_block : int
        Output rows whose windows are packed together.
    parallel : str
        What threads divide: "batch", "pixels" or "filters"; "" for what gives them the most equal
        parts.
    """

    data_layout = out_layout = "NCHW"

    implementation: str = "conv2d_im2col"
    mc: int = 0
    kc: int = 0
    loop_order: str = ""
    columns: str = ""
    packing: str = ""
    oh_block: int = 0
    parallel: str = ""
