"""The choices of `conv3d_depthwise`."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.cost_models.conv2d_depthwise.config import DepthwiseConfig


@dataclass(frozen=True, kw_only=True)
class VolumeConfig(DepthwiseConfig):
    """Which tile of outputs stays in registers: the choices of `conv2d_depthwise`."""

    implementation: str = "conv3d_depthwise"
