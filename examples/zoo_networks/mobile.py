"""Depthwise and grouped convolutions: MobileNet 1-3, EfficientNet, MnasNet, ShuffleNet."""

from __future__ import annotations

from collections.abc import Callable

from .net import Net, Padding, Tensor

Activation = Callable[[Tensor], Tensor]

# (expansion, channels, repeats, stride) of the inverted residuals (Sandler et al. 2018, table 2).
MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)

# (kernel, hidden channels, channels, squeeze-excite, hard-swish, stride)
# (Howard et al. 2019, table 1).
MOBILENET_V3_LARGE = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)

# (kernel, expansion, channels, repeats, stride)
# (Tan and Le 2019, table 1; Tan et al. 2018, figure 7).
EFFICIENTNET_B0 = (
    (3, 1, 16, 1, 1),
    (3, 6, 24, 2, 2),
    (5, 6, 40, 2, 2),
    (3, 6, 80, 3, 2),
    (5, 6, 112, 3, 1),
    (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)
MNASNET = (
    (3, 3, 24, 3, 2),
    (5, 3, 40, 3, 2),
    (5, 6, 80, 3, 2),
    (3, 6, 96, 2, 1),
    (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)


def _depthwise(net: Net, x: Tensor, kernel: int, stride: int, padding: Padding) -> Tensor:
    groups = x.channels
    return net.conv_bn(x, groups, kernel, stride=stride, padding=padding, groups=groups)


def mobilenet_v1(net: Net) -> Tensor:
    """Append MobileNet 1.0 (Howard et al. 2017, table 1), padded as TensorFlow's release is."""
    x = net.relu6(net.conv_bn(net.input, 32, 3, stride=2, padding="same"))
    widths = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
    for index, width in enumerate(widths):
        stride = 2 if index in (1, 3, 5, 11) else 1
        x = net.relu6(_depthwise(net, x, 3, stride, "same"))
        x = net.relu6(net.conv_bn(x, width, 1))
    return net.classify(x)


def _squeeze_excite(
    net: Net, x: Tensor, squeezed: int, activation: Activation, gate: Activation
) -> Tensor:
    weights = activation(net.conv(net.global_average_pool(x), squeezed, 1))
    return net.multiply(x, gate(net.conv(weights, x.channels, 1)))


def _inverted_residual(
    net: Net,
    x: Tensor,
    hidden: int,
    channels: int,
    activation: Activation,
    kernel: int = 3,
    stride: int = 1,
    excite: Activation | None = None,
) -> Tensor:
    """Append 1x1 to `hidden`, depthwise, optional squeeze-excite, linear 1x1, and the shortcut."""
    y = x if hidden == x.channels else activation(net.conv_bn(x, hidden, 1))
    y = activation(_depthwise(net, y, kernel, stride, kernel // 2))
    y = net.conv_bn(excite(y) if excite else y, channels, 1)
    return net.add(x, y) if stride == 1 and x.channels == channels else y


def mobilenet_v2(net: Net) -> Tensor:
    """Append MobileNetV2 1.0."""
    x = net.relu6(net.conv_bn(net.input, 32, 3, stride=2, padding=1))
    for expansion, channels, repeats, first_stride in MOBILENET_V2:
        for index in range(repeats):
            stride = 1 if index else first_stride
            hidden = expansion * x.channels
            x = _inverted_residual(net, x, hidden, channels, net.relu6, stride=stride)
    return net.classify(net.relu6(net.conv_bn(x, 1280, 1)))


def _multiple_of_8(channels: float) -> int:
    """Return the nearest multiple of 8, but never less than 90 % of `channels`."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def mobilenet_v3_large(net: Net) -> Tensor:
    """Append MobileNetV3-Large 1.0: hard-swish, squeeze-excite with a hard sigmoid."""
    x = net.hard_swish(net.conv_bn(net.input, 16, 3, stride=2, padding=1))
    for kernel, hidden, channels, excited, swish, stride in MOBILENET_V3_LARGE:

        def excite(y: Tensor) -> Tensor:
            squeezed = _multiple_of_8(y.channels / 4)
            return _squeeze_excite(net, y, squeezed, net.relu, net.hard_sigmoid)

        activation = net.hard_swish if swish else net.relu
        x = _inverted_residual(
            net, x, hidden, channels, activation, kernel, stride, excite if excited else None
        )
    x = net.global_average_pool(net.hard_swish(net.conv_bn(x, 960, 1)))
    return net.linear(net.hard_swish(net.linear(net.flatten(x), 1280)), 1000)


def efficientnet_b0(net: Net) -> Tensor:
    """Append EfficientNet-B0: SiLU, squeeze-excite to a quarter of the block's input channels."""
    x = net.silu(net.conv_bn(net.input, 32, 3, stride=2, padding=1))
    for kernel, expansion, channels, repeats, first_stride in EFFICIENTNET_B0:
        for index in range(repeats):
            squeezed = x.channels // 4

            def excite(y: Tensor, squeezed: int = squeezed) -> Tensor:
                return _squeeze_excite(net, y, squeezed, net.silu, net.sigmoid)

            stride = 1 if index else first_stride
            hidden = expansion * x.channels
            x = _inverted_residual(net, x, hidden, channels, net.silu, kernel, stride, excite)
    return net.classify(net.silu(net.conv_bn(x, 1280, 1)))


def mnasnet(net: Net) -> Tensor:
    """Append MnasNet-B1 1.0."""
    x = net.relu(net.conv_bn(net.input, 32, 3, stride=2, padding=1))
    x = net.conv_bn(net.relu(_depthwise(net, x, 3, 1, 1)), 16, 1)
    for kernel, expansion, channels, repeats, first_stride in MNASNET:
        for index in range(repeats):
            stride = 1 if index else first_stride
            hidden = expansion * x.channels
            x = _inverted_residual(net, x, hidden, channels, net.relu, kernel, stride)
    return net.classify(net.relu(net.conv_bn(x, 1280, 1)))


def _shuffle_unit(net: Net, x: Tensor, channels: int, groups: int, stride: int) -> Tensor:
    """Append grouped 1x1, shuffle, depthwise 3x3, grouped 1x1, and the shortcut."""
    # The first unit sees only 24 channels: its first 1x1 is not grouped (section 3.2).
    first_groups = 1 if x.channels == 24 else groups
    grown = channels - x.channels if stride == 2 else channels
    y = net.relu(net.conv_bn(x, channels // 4, 1, groups=first_groups))
    y = _depthwise(net, net.channel_shuffle(y, groups), 3, stride, 1)
    y = net.conv_bn(y, grown, 1, groups=groups)
    if stride == 1:
        return net.relu_of_sum(x, y)
    return net.relu(net.concat([net.average_pool(x, 3, 2, padding=1), y]))


def shufflenet(net: Net) -> Tensor:
    """Append ShuffleNet 1x with 3 groups (Zhang et al. 2017, table 1)."""
    groups = 3
    x = net.relu(net.conv_bn(net.input, 24, 3, stride=2, padding=1))
    x = net.max_pool(x, 3, 2, padding=1)
    for channels, repeats in ((240, 4), (480, 8), (960, 4)):
        for index in range(repeats):
            x = _shuffle_unit(net, x, channels, groups, 1 if index else 2)
    return net.classify(x)
