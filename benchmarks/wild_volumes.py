"""Networks of volumes: video of torchvision and pytorchvideo, medical images of MONAI.

They need these packages beside torch; weights are random, of the seed of `wild_exports.save`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Made = tuple[Any, tuple[Any, ...]]


def _frames(count: int, size: int) -> tuple[Any, ...]:
    import torch

    return (torch.randn(1, 3, count, size, size),)


def _video(name: str, size: int) -> Callable[[], Made]:
    """A network of torchvision for 16 frames."""

    def make() -> Made:
        from torchvision import models

        return getattr(models.video, name)(weights=None), _frames(16, size)

    return make


def _x3d() -> Made:
    from pytorchvideo.models.x3d import create_x3d

    return create_x3d(input_clip_length=13, input_crop_size=160), _frames(13, 160)


def _csn() -> Made:
    """Channel-separated: all kernels of several pixels are depthwise."""
    from pytorchvideo.models.csn import create_csn

    return create_csn(), _frames(8, 128)


def _medical(name: str, *numbers: int, **options: object) -> Callable[[], Made]:
    """A network of MONAI for a cube of one channel."""

    def make() -> Made:
        import torch
        from monai.networks import nets

        return getattr(nets, name)(*numbers, **options), (torch.randn(1, 1, 64, 64, 64),)

    return make


EXPORTS: dict[str, Callable[[], Made]] = {
    "s3d": _video("s3d", 224),
    "r3d_18": _video("r3d_18", 112),
    "mc3_18": _video("mc3_18", 112),
    "r2plus1d_18": _video("r2plus1d_18", 112),
    "swin3d_t": _video("swin3d_t", 112),
    "x3d_s": _x3d,
    "csn": _csn,
    "unet3d": _medical(
        "UNet",
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        channels=(16, 32, 64, 128, 256),
        strides=(2, 2, 2, 2),
        num_res_units=2,
    ),
    "segresnet": _medical(
        "SegResNet", spatial_dims=3, in_channels=1, out_channels=2, init_filters=16
    ),
    "vnet": _medical("VNet", spatial_dims=3),
    "densenet121_3d": _medical("DenseNet121", 3, 1, 2),
}
