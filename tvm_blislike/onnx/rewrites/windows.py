"""Where the windows of ONNX's pooling operators lie, along one axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site


@dataclass(frozen=True)
class Windows:
    """The windows along one axis of an image.

    Parameters
    ----------
    size : int
        Elements of the image.
    kernel, stride, dilation : int
        Elements of a window, the distance of windows, and that of the elements of one.
    begin, end : int
        Elements of padding that the model asks for.
    count : int
        How many windows there are, which may reach beyond the padding.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    count: int

    @property
    def reach(self) -> int:
        """Elements from the first to the last of one window."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def needed_end(self) -> int:
        """The least padding behind the image in which all windows fit."""
        last = (self.count - 1) * self.stride + self.reach
        return max(0, last - self.size - self.begin)

    @property
    def positions(self) -> np.ndarray:
        """Where in the image the elements of each window lie, of shape (count, kernel)."""
        starts = np.arange(self.count) * self.stride - self.begin
        return starts[:, None] + np.arange(self.kernel) * self.dilation

    def elements(self, padding: bool) -> np.ndarray:
        """How many elements of each window lie in the image, or in it and the model's padding."""
        begin, end = (self.begin, self.end) if padding else (0, 0)
        inside = (self.positions >= -begin) & (self.positions < self.size + end)
        return inside.sum(axis=1)


def windows_of(site: Site) -> list[Windows]:
    """Return the windows of a pooling node, for each axis of its images.

    Raises
    ------
    UnsupportedOperatorError
        When a window is larger than the image with its padding, or lies in padding only.
    """
    axes = [_windows(site, *axis) for axis in _axes(site)]
    for axis, windows in enumerate(axes):
        if not windows.elements(padding=False).all():
            site.refuse(f"a window along spatial axis {axis} holds nothing but padding")
    counts, known = tuple(windows.count for windows in axes), site.result_shape()
    if known is not None and known[2:] != counts:
        site.refuse(f"it has {counts} windows, but ONNX infers {known[2:]}")
    return axes


def _axes(site: Site) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield size, kernel, stride, dilation and pads of each axis."""
    kernel = site.attribute("kernel_shape")
    sizes = site.shape()[2:]
    if len(kernel) != len(sizes):
        site.refuse(f"kernel_shape has {len(kernel)} sizes for {len(sizes)} spatial axes")
    ones, zeros = [1] * len(sizes), [0] * len(sizes)
    pads = site.attribute("pads", zeros + zeros)
    strides, dilations = (site.attribute(name, ones) for name in ("strides", "dilations"))
    half = len(sizes)
    return zip(sizes, kernel, strides, dilations, pads[:half], pads[half:], strict=True)


def _windows(
    site: Site, size: int, kernel: int, stride: int, dilation: int, begin: int, end: int
) -> Windows:
    reach = dilation * (kernel - 1) + 1
    auto_pad = site.attribute("auto_pad", "NOTSET")
    if auto_pad.startswith("SAME"):
        count = -(-size // stride)
        pads = max(0, (count - 1) * stride + reach - size)
        begin = pads // 2 if auto_pad == "SAME_UPPER" else pads - pads // 2
        return Windows(size, kernel, stride, dilation, begin, pads - begin, count)
    if auto_pad == "VALID":
        begin = end = 0
    room = size + begin + end - reach
    if room < 0:
        site.refuse(f"its window of {reach} is larger than the padded image of {room + reach}")
    count = room // stride + 1
    # Rounded up there is one more, unless it would begin behind the image.
    if site.attribute("ceil_mode", 0) and room % stride and count * stride < size + begin:
        count += 1
    return Windows(size, kernel, stride, dilation, begin, end, count)
