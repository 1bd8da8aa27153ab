"""`ConvTranspose` with pads in numbers, and `Col2Im`, which is one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site


def conv_transpose(site: Site) -> Sequence[str] | None:
    """Write `auto_pad` and `output_shape` as pads.

    ONNX, ConvTranspose: total padding = stride (size - 1) + output padding + reach - output size.
    """
    auto_pad = site.attribute("auto_pad", "NOTSET")
    wanted = site.attribute("output_shape")
    if not wanted and not auto_pad.startswith("SAME"):
        return None
    sizes, kernel = site.shape()[2:], site.shape(1)[2:]
    ones, zeros = [1] * len(sizes), [0] * len(sizes)
    strides, dilations = (site.attribute(name, ones) for name in ("strides", "dilations"))
    more = site.attribute("output_padding", zeros)
    # Some exporters write all of the shape.
    outputs = wanted[-len(sizes) :] if wanted else _times(sizes, strides)
    axes = zip(sizes, kernel, strides, dilations, more, outputs, strict=True)
    totals = [s * (n - 1) + m + d * (k - 1) + 1 - o for n, k, s, d, m, o in axes]
    if any(total < 0 for total in totals):
        asked = f"{'output_shape' if wanted else auto_pad} {'x'.join(map(str, outputs))}"
        site.refuse(
            f"{asked} is larger than its kernel reaches",
            "ONNX Runtime and ONNX's reference differ there; say pads and output_padding instead",
        )
    halves = [total // 2 for total in totals]
    rests = [total - half for total, half in zip(totals, halves, strict=True)]
    begins, ends = (halves, rests) if auto_pad == "SAME_UPPER" else (rests, halves)
    return [
        site.add(
            "ConvTranspose",
            *site.node.input,
            kernel_shape=list(kernel),
            strides=list(strides),
            dilations=list(dilations),
            group=site.attribute("group", 1),
            pads=[*begins, *ends],
            output_padding=list(more),
        )
    ]


def _times(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    return [size * stride for size, stride in zip(sizes, strides, strict=True)]


def col2im(site: Site) -> Sequence[str]:
    """Write `Col2Im` as a transposed convolution whose filters put each element at its place.

    ONNX, Col2Im-18: what overlaps is added.
    """
    image, block = ([int(size) for size in site.value(index)] for index in (1, 2))
    batch, columns, blocks = site.shape()
    rank, taps = len(image), math.prod(block)
    if rank != len(block) or columns % taps:
        site.refuse(f"its {columns} columns are no blocks of {'x'.join(map(str, block))}")
    channels = columns // taps
    strides = site.attribute("strides", [1] * rank)
    dilations = site.attribute("dilations", [1] * rank)
    pads = site.attribute("pads", [0] * 2 * rank)
    axes = list(zip(image, block, strides, dilations, pads[:rank], pads[rank:], strict=True))
    free = [i + b + e - d * (k - 1) - 1 for i, k, _, d, b, e in axes]
    steps = [room // s + 1 for room, s in zip(free, strides, strict=True)]
    if min(free) < 0 or math.prod(steps) != blocks:
        site.refuse(f"its image has room for {'x'.join(map(str, steps))} blocks, not {blocks}")
    filters = np.eye(taps, dtype=site.dtype()).reshape(taps, 1, *block)
    data = site.reshaped(site.node.input[0], [batch * channels, taps, *steps])
    result = site.add(
        "ConvTranspose",
        data,
        site.constant(filters),
        kernel_shape=block,
        strides=list(strides),
        dilations=list(dilations),
        pads=list(pads),
        output_padding=[room % s for room, s in zip(free, strides, strict=True)],
    )
    return [site.reshaped(result, [batch, channels, *image])]
