"""Networks of many concatenated branches: DenseNet, Inception-v2 and Inception-v3."""

from __future__ import annotations

from .net import Net, Padding, Pair, Tensor

# 1x1; 1x1 before 3x3, 3x3; 1x1 before the two 3x3, each of these; 1x1 after pooling (Ioffe and
# Szegedy 2015, figure 5; 4c and 4d end in 128 channels as released, the figure has 96). Without the
# first and the last: a module of stride 2.
INCEPTION_V2 = {
    "3a": (64, 64, 64, 64, 96, 32),
    "3b": (64, 64, 96, 64, 96, 64),
    "3c": (0, 128, 160, 64, 96, 0),
    "4a": (224, 64, 96, 96, 128, 128),
    "4b": (192, 96, 128, 96, 128, 128),
    "4c": (160, 128, 160, 128, 160, 128),
    "4d": (96, 128, 192, 160, 192, 128),
    "4e": (0, 128, 192, 192, 256, 0),
    "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}


def _dense_layer(net: Net, x: Tensor, growth: int) -> Tensor:
    y = net.conv(net.relu(net.batch_norm(x)), 4 * growth, 1, bias=False)
    y = net.conv(net.relu(net.batch_norm(y)), growth, 3, padding=1, bias=False)
    return net.concat([x, y])


def _transition(net: Net, x: Tensor) -> Tensor:
    x = net.conv(net.relu(net.batch_norm(x)), x.channels // 2, 1, bias=False)
    return net.average_pool(x, 2, 2)


def densenet121(net: Net) -> Tensor:
    """Append DenseNet-121 with growth rate 32 (Huang et al. 2016, table 1)."""
    x = net.relu(net.conv_bn(net.input, 64, 7, stride=2, padding=3))
    x = net.max_pool(x, 3, 2, padding=1)
    for index, layers in enumerate((6, 12, 24, 16)):
        if index:
            x = _transition(net, x)
        for _ in range(layers):
            x = _dense_layer(net, x, 32)
    return net.classify(net.relu(net.batch_norm(x)))


def _unit(
    net: Net, x: Tensor, channels: int, kernel: Pair, stride: int = 1, padding: Padding = 0
) -> Tensor:
    return net.relu(net.conv_bn(x, channels, kernel, stride=stride, padding=padding))


def _inception_v2(net: Net, x: Tensor, widths: tuple[int, ...], pooled_by_maximum: bool) -> Tensor:
    one, before_three, three, before_double, double, pooled = widths
    stride = 1 if one else 2
    twice = _unit(net, _unit(net, x, before_double, 1), double, 3, padding=1)
    branches = [
        _unit(net, _unit(net, x, before_three, 1), three, 3, stride, padding=1),
        _unit(net, twice, double, 3, stride, padding=1),
    ]
    if stride == 2:
        return net.concat([*branches, net.max_pool(x, 3, 2, ceil=True)])
    pool = net.max_pool if pooled_by_maximum else net.average_pool
    last = _unit(net, pool(x, 3, 1, padding=1), pooled, 1)
    return net.concat([_unit(net, x, one, 1), *branches, last])


def inception_v2(net: Net) -> Tensor:
    """Append the GoogLeNet of the paper on batch normalisation: BN-Inception, no side heads."""
    x = _unit(net, net.input, 64, 7, stride=2, padding=3)
    x = _unit(net, net.max_pool(x, 3, 2, ceil=True), 64, 1)
    x = net.max_pool(_unit(net, x, 192, 3, padding=1), 3, 2, ceil=True)
    for module, widths in INCEPTION_V2.items():
        x = _inception_v2(net, x, widths, pooled_by_maximum=module == "5b")
    return net.classify(x)


def _inception_a(net: Net, x: Tensor, pooled: int) -> Tensor:
    """Append 1x1, 5x5, double 3x3 and pooling branches (figure 5)."""
    three = _unit(net, _unit(net, x, 64, 1), 96, 3, padding=1)
    return net.concat(
        [
            _unit(net, x, 64, 1),
            _unit(net, _unit(net, x, 48, 1), 64, 5, padding=2),
            _unit(net, three, 96, 3, padding=1),
            _unit(net, net.average_pool(x, 3, 1, padding=1), pooled, 1),
        ]
    )


def _reduce_a(net: Net, x: Tensor) -> Tensor:
    three = _unit(net, _unit(net, x, 64, 1), 96, 3, padding=1)
    return net.concat(
        [
            _unit(net, x, 384, 3, stride=2),
            _unit(net, three, 96, 3, stride=2),
            net.max_pool(x, 3, 2),
        ]
    )


def _inception_b(net: Net, x: Tensor, width: int) -> Tensor:
    """Append branches of 1x7 and 7x1 convolutions (figure 6)."""
    row, column = ((1, 7), (0, 3)), ((7, 1), (3, 0))

    def chain(widths: tuple[int, ...], *kernels: tuple[tuple[int, int], tuple[int, int]]) -> Tensor:
        y = _unit(net, x, width, 1)
        for channels, (kernel, padding) in zip(widths, kernels, strict=True):
            y = _unit(net, y, channels, kernel, padding=padding)
        return y

    return net.concat(
        [
            _unit(net, x, 192, 1),
            chain((width, 192), row, column),
            chain((width, width, width, 192), column, row, column, row),
            _unit(net, net.average_pool(x, 3, 1, padding=1), 192, 1),
        ]
    )


def _reduce_b(net: Net, x: Tensor) -> Tensor:
    seven = _unit(net, _unit(net, x, 192, 1), 192, (1, 7), padding=(0, 3))
    seven = _unit(net, seven, 192, (7, 1), padding=(3, 0))
    return net.concat(
        [
            _unit(net, _unit(net, x, 192, 1), 320, 3, stride=2),
            _unit(net, seven, 192, 3, stride=2),
            net.max_pool(x, 3, 2),
        ]
    )


def _inception_c(net: Net, x: Tensor) -> Tensor:
    """Append branches whose last layers are 1x3 and 3x1 side by side (figure 7)."""

    def fork(y: Tensor) -> list[Tensor]:
        return [
            _unit(net, y, 384, (1, 3), padding=(0, 1)),
            _unit(net, y, 384, (3, 1), padding=(1, 0)),
        ]

    return net.concat(
        [
            _unit(net, x, 320, 1),
            *fork(_unit(net, x, 384, 1)),
            *fork(_unit(net, _unit(net, x, 448, 1), 384, 3, padding=1)),
            _unit(net, net.average_pool(x, 3, 1, padding=1), 192, 1),
        ]
    )


def inception_v3(net: Net) -> Tensor:
    """Append Inception-v3 for 299 x 299 images (Szegedy et al. 2015, table 1), no side head."""
    x = _unit(net, net.input, 32, 3, stride=2)
    x = _unit(net, _unit(net, x, 32, 3), 64, 3, padding=1)
    x = _unit(net, net.max_pool(x, 3, 2), 80, 1)
    x = net.max_pool(_unit(net, x, 192, 3), 3, 2)
    for pooled in (32, 64, 64):
        x = _inception_a(net, x, pooled)
    x = _reduce_a(net, x)
    for width in (128, 160, 160, 192):
        x = _inception_b(net, x, width)
    x = _reduce_b(net, x)
    for _ in range(2):
        x = _inception_c(net, x)
    return net.classify(x)
