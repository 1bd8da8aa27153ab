"""Builds well-known networks as ONNX files with seeded random weights; nothing is downloaded.

    python examples/zoo.py resnet18 -o resnet18.onnx --batch 3 --image 224
    python examples/zoo.py --list

The layers, sizes and parameter counts are those of the papers, batch normalisation is kept as nodes
of its own as exporters leave it, and the output is logits (no softmax), as torchvision exports it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import onnx
from zoo_networks import branched, mobile, plain, residual
from zoo_networks.net import Net, Tensor

NETWORKS: dict[str, Callable[[Net], Tensor]] = {
    "resnet18": partial(residual.resnet, block=residual.basic_block, depths=(2, 2, 2, 2)),
    "resnet34": partial(residual.resnet, block=residual.basic_block, depths=(3, 4, 6, 3)),
    "resnet50": partial(residual.resnet, block=residual.bottleneck_v1_5, depths=(3, 4, 6, 3)),
    "resnet50_v1": partial(residual.resnet, block=residual.bottleneck_v1, depths=(3, 4, 6, 3)),
    "resnet152": partial(residual.resnet, block=residual.bottleneck_v1_5, depths=(3, 8, 36, 3)),
    "resnet152_v1": partial(residual.resnet, block=residual.bottleneck_v1, depths=(3, 8, 36, 3)),
    "alexnet": plain.alexnet,
    "vgg11": partial(plain.vgg, depth=11),
    "vgg13": partial(plain.vgg, depth=13),
    "vgg16": partial(plain.vgg, depth=16),
    "squeezenet1_0": partial(plain.squeezenet, channels=96, kernel=7, pools_before=(5, 9)),
    "squeezenet1_1": partial(plain.squeezenet, channels=64, kernel=3, pools_before=(4, 6)),
    "googlenet": plain.googlenet,
    "mobilenet_v1": mobile.mobilenet_v1,
    "mobilenet_v2": mobile.mobilenet_v2,
    "mobilenet_v3_large": mobile.mobilenet_v3_large,
    "efficientnet_b0": mobile.efficientnet_b0,
    "mnasnet": mobile.mnasnet,
    "shufflenet": mobile.shufflenet,
    "densenet121": branched.densenet121,
    "inception_v2": branched.inception_v2,
    "inception_v3": branched.inception_v3,
}

DEFAULT_IMAGE = {"inception_v3": 299}  # every other network: 224


def names() -> list[str]:
    """Return the names `build` knows."""
    return list(NETWORKS)


def build(
    name: str, batch: int | str = 1, image: int | None = None, seed: int = 0
) -> onnx.ModelProto:
    """Build a network from "input" (batch, 3, image, image) to "logits" (batch, 1000).

    Parameters
    ----------
    name
        One of `names()`.
    batch
        Batch size; a string makes it a symbolic dimension of that name.
    image
        Height and width in pixels; by default the network's own.
    seed
        Seed of the weights; the same seed gives the same file.

    Raises
    ------
    KeyError
        If there is no network of that name.
    """
    if name not in NETWORKS:
        raise KeyError(f"no network named {name!r}; known: {', '.join(NETWORKS)}")
    net = Net(name, batch, image or DEFAULT_IMAGE.get(name, 224), seed)
    return net.model(NETWORKS[name](net))


def save(
    name: str, path: str | Path, batch: int | str = 1, image: int | None = None, seed: int = 0
) -> Path:
    """Build a network, write it to `path` and return the path."""
    path = Path(path)
    onnx.save(build(name, batch, image, seed), path)
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="?", choices=names(), metavar="NAME")
    parser.add_argument("-o", "--output", type=Path, help="default: NAME.onnx")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dynamic-batch", action="store_true", help="symbolic batch size N")
    parser.add_argument("--image", type=int, help="height and width in pixels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print the names and exit")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(names()))
        return
    if options.name is None:
        parser.error("give the NAME of a network, or --list")
    output = options.output or Path(f"{options.name}.onnx")
    batch = "N" if options.dynamic_batch else options.batch
    print(save(options.name, output, batch, options.image, options.seed))


if __name__ == "__main__":
    main()
