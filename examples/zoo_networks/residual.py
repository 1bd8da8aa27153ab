"""ResNet (He et al. 2015, table 1) and its version 1.5."""

from __future__ import annotations

from collections.abc import Callable

from .net import Net, Tensor

Block = Callable[[Net, Tensor, int, int], Tensor]

BRANCH_SCALE = 0.3  # gamma of the last normalisation of a branch: the sum grows 9 % per block


def _shortcut(net: Net, x: Tensor, channels: int, stride: int) -> Tensor:
    if stride == 1 and x.channels == channels:
        return x
    return net.conv_bn(x, channels, 1, stride=stride)


def _join(net: Net, x: Tensor, branch: Tensor, channels: int, stride: int) -> Tensor:
    shortcut = _shortcut(net, x, channels, stride)
    branch = net.batch_norm(branch, BRANCH_SCALE)
    return net.relu_of_sum(x, branch) if shortcut is x else net.relu(net.add(shortcut, branch))


def basic_block(net: Net, x: Tensor, width: int, stride: int) -> Tensor:
    """Append two 3x3 convolutions and the shortcut."""
    y = net.relu(net.conv_bn(x, width, 3, stride=stride, padding=1))
    y = net.conv(y, width, 3, padding=1, bias=False)
    return _join(net, x, y, width, stride)


def _bottleneck(net: Net, x: Tensor, width: int, first: int, second: int) -> Tensor:
    y = net.relu(net.conv_bn(x, width, 1, stride=first))
    y = net.relu(net.conv_bn(y, width, 3, stride=second, padding=1))
    y = net.conv(y, 4 * width, 1, bias=False)
    return _join(net, x, y, 4 * width, first * second)


def bottleneck_v1(net: Net, x: Tensor, width: int, stride: int) -> Tensor:
    """Append 1x1, 3x3, 1x1 with the stride in the first 1x1, as in the paper."""
    return _bottleneck(net, x, width, stride, 1)


def bottleneck_v1_5(net: Net, x: Tensor, width: int, stride: int) -> Tensor:
    """Append 1x1, 3x3, 1x1 with the stride in the 3x3, as torchvision and MLPerf have it."""
    return _bottleneck(net, x, width, 1, stride)


def resnet(net: Net, block: Block, depths: tuple[int, int, int, int]) -> Tensor:
    """Append a whole ResNet with `depths` blocks in its four stages."""
    x = net.relu(net.conv_bn(net.input, 64, 7, stride=2, padding=3))
    x = net.max_pool(x, 3, 2, padding=1)
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            x = block(net, x, 64 << stage, stride)
    return net.classify(x)
