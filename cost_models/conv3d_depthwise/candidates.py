"""Configurations of the depthwise convolution of volumes: tiles of a slice in registers."""

from __future__ import annotations

from tvm_blislike.cost_models.conv2d_depthwise import candidates as of_images
from tvm_blislike.cost_models.conv3d_depthwise.config import VolumeConfig
from tvm_blislike.hardware import Core
from tvm_blislike.model.workload import Conv3dWorkload, Workload


def applies(workload: Workload, core: Core) -> str:
    """Return "" for depthwise convolutions of volumes, else the reason why not."""
    return of_images.applies(workload, core)


def configs(workload: Conv3dWorkload, core: Core, threads: int) -> list[VolumeConfig]:
    """Return the tiles of the best predicted time, best first."""
    return of_images.configs(workload, core, threads, VolumeConfig)
