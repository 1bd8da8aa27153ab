"""Networks without batch normalisation: AlexNet, VGG, SqueezeNet, GoogLeNet."""

from __future__ import annotations

from .net import Net, Tensor

# Channels of the 3x3 convolutions, one tuple per stage (Simonyan and Zisserman 2014, table 1).
VGG_STAGES = {
    11: ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    13: ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512)),
    16: ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
}

# 1x1; 1x1 before 3x3, 3x3; 1x1 before 5x5, 5x5; 1x1 after pooling (Szegedy et al. 2014, table 1).
INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def _conv_relu(net: Net, x: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
    return net.relu(net.conv(x, channels, kernel, stride=stride, padding=kernel // 2))


def alexnet(net: Net) -> Tensor:
    """Append AlexNet with one tower (Krizhevsky 2014), as torchvision has it."""
    x = net.relu(net.conv(net.input, 64, 11, stride=4, padding=2))
    x = _conv_relu(net, net.max_pool(x, 3, 2), 192, 5)
    x = net.max_pool(x, 3, 2)
    for channels in (384, 256, 256):
        x = _conv_relu(net, x, channels, 3)
    return _three_linear(net, net.max_pool(x, 3, 2))


def _three_linear(net: Net, x: Tensor) -> Tensor:
    """Append the head of AlexNet and VGG; its first layer follows the image size."""
    x = net.flatten(x)
    for _ in range(2):
        x = net.relu(net.linear(x, 4096))
    return net.linear(x, 1000)


def vgg(net: Net, depth: int) -> Tensor:
    """Append VGG; the first linear layer follows the image size, as in the paper."""
    x = net.input
    for stage in VGG_STAGES[depth]:
        for channels in stage:
            x = _conv_relu(net, x, channels, 3)
        x = net.max_pool(x, 2, 2)
    return _three_linear(net, x)


def _fire(net: Net, x: Tensor, squeeze: int, expand: int) -> Tensor:
    x = _conv_relu(net, x, squeeze, 1)
    return net.concat([_conv_relu(net, x, expand, 1), _conv_relu(net, x, expand, 3)])


def squeezenet(net: Net, channels: int, kernel: int, pools_before: tuple[int, ...]) -> Tensor:
    """Append SqueezeNet (Iandola et al. 2016).

    `channels` and `kernel` are those of the first convolution; a further pooling stands before each
    fire module in `pools_before` (counted from 2, as in the paper).
    """
    x = net.relu(net.conv(net.input, channels, kernel, stride=2))
    x = net.max_pool(x, 3, 2, ceil=True)
    for module, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64), start=2):
        if module in pools_before:
            x = net.max_pool(x, 3, 2, ceil=True)
        x = _fire(net, x, squeeze, 4 * squeeze)
    return net.flatten(net.global_average_pool(_conv_relu(net, x, 1000, 1)))


def _inception(net: Net, x: Tensor, widths: tuple[int, ...]) -> Tensor:
    one, before_three, three, before_five, five, pooled = widths
    return net.concat(
        [
            _conv_relu(net, x, one, 1),
            _conv_relu(net, _conv_relu(net, x, before_three, 1), three, 3),
            _conv_relu(net, _conv_relu(net, x, before_five, 1), five, 5),
            _conv_relu(net, net.max_pool(x, 3, 1, padding=1), pooled, 1),
        ]
    )


def googlenet(net: Net) -> Tensor:
    """Append GoogLeNet as in the paper: response normalisation, 5x5 branches, no side heads."""
    x = net.max_pool(_conv_relu(net, net.input, 64, 7, stride=2), 3, 2, ceil=True)
    x = _conv_relu(net, net.local_response_norm(x), 64, 1)
    x = net.local_response_norm(_conv_relu(net, x, 192, 3))
    x = net.max_pool(x, 3, 2, ceil=True)
    for module, widths in INCEPTION.items():
        if module in ("4a", "5a"):
            x = net.max_pool(x, 3, 2, ceil=True)
        x = _inception(net, x, widths)
    return net.classify(x)
