"""The layers of `calibration.py`: of networks, and of odd sizes that occur in none of them."""

from __future__ import annotations

from tvm_blislike import Conv2dWorkload, GemmWorkload, Workload


def conv(ci: int, size: int, kernel: int, co: int, stride: int = 1, groups: int = 1) -> Workload:
    """Return a convolution of a square image, padded by half of its kernel."""
    pad = kernel // 2
    return Conv2dWorkload(
        1,
        ci,
        size,
        size,
        co,
        kernel,
        kernel,
        stride=(stride, stride),
        padding=(pad, pad, pad, pad),
        groups=groups,
    )


def depthwise(channels: int, size: int, kernel: int, stride: int = 1) -> Workload:
    """Return a depthwise convolution of a square image."""
    return conv(channels, size, kernel, channels, stride, channels)


# In turn of resnet50, mobilenet_v2, googlenet, vgg16 and of none, so that any few are diverse.
LAYERS: tuple[Workload, ...] = (
    conv(64, 56, 3, 64),
    depthwise(32, 112, 3),
    conv(192, 28, 1, 64),
    conv(128, 112, 3, 128),
    conv(50, 61, 3, 70),
    conv(256, 56, 1, 64),
    depthwise(96, 112, 3, 2),
    conv(16, 28, 5, 32),
    conv(512, 28, 3, 512),
    depthwise(72, 45, 5),
    conv(3, 224, 7, 64, 2),
    conv(24, 56, 1, 144),
    conv(480, 14, 1, 192),
    conv(3, 224, 3, 64),
    conv(36, 97, 1, 100),
    conv(512, 7, 3, 512),
    depthwise(384, 14, 3),
    conv(112, 14, 3, 224),
    GemmWorkload(1, 4096, 4096),
    conv(300, 19, 3, 90),
    conv(1024, 14, 1, 256),
    depthwise(576, 14, 3, 2),
    conv(832, 7, 1, 256),
    conv(256, 56, 3, 256),
    GemmWorkload(197, 333, 777),
    conv(128, 56, 3, 128, 2),
    conv(960, 7, 1, 320),
    GemmWorkload(384, 1024, 1024),
    conv(20, 33, 9, 44, 2),
    GemmWorkload(64, 64, 512, batch=12, constant_b=False),
)
