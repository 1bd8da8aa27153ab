"""The choices of `conv2d_strassen`."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.cost_models.gemm_strassen.config import StrassenConfig


@dataclass(frozen=True, kw_only=True)
class ConvStrassenConfig(StrassenConfig):
    """How the seven products of a 1x1 convolution are blocked: pixels are rows.

    Parameters
    ----------
    data_layout, out_layout : str
        Layouts of the input and output images, both blocked (see `tvm_blislike.model.layouts`).
    """

    implementation: str = "conv2d_strassen"
    data_layout: str = ""
    out_layout: str = ""
