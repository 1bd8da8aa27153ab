"""Convolutions of volumes as convolutions of images: the depth is a part of the batch.

A volume (n, c, d, h, w) is carried as a batch of its slices, (n * d, c, h, w): everything that
works on images works on it. A kernel deeper than one slice reads

    kd slices side by side as kd * ci channels of one image        (one group)
    kd slices by one operator                                      (depthwise, one volume)
    sum over the kd slices of one convolution of images each       (other groups, several volumes)

The first form copies the input kd times, a pass at the speed of memory beside kh * kw * co
multiplications per copied element, and sums in registers; the last one copies as much, and passes
over the result kd times as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import relax

from tvm_blislike.model.types import INTEGER_FACTORS
from tvm_blislike.operators.volume_convolution import steps_of, volume_convolution
from tvm_blislike.tvm_seams import constant_array, dtype_name, is_constant, static_shape

if TYPE_CHECKING:
    import numpy as np

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Window:
    """How a kernel moves over a volume, per axis (depth, height, width).

    Parameters
    ----------
    stride, dilation : tuple of int
        Steps between outputs and between kernel elements.
    before, after : tuple of int
        Zeros around the volume; where negative, so much of the volume is left out.
    """

    stride: Triple = (1, 1, 1)
    before: Triple = (0, 0, 0)
    after: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)


def convolution(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    batch: int,
    weights: relax.Expr,
    window: Window,
    groups: int,
) -> relax.Var:
    """Emit the convolution of a batch of volumes, carried as slices.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to emit.
    data : relax.Expr
        (batch * d, ci, h, w).
    batch : int
        Number of volumes; with depth 1, of images.
    weights : relax.Expr
        (co, ci / groups, kd, kh, kw), constant or not.
    window : Window
        Strides, padding and dilation.
    groups : int
        Channel groups.

    Returns
    -------
    relax.Var
        (batch * od, co, oh, ow).
    """
    kd, channels = static_shape(weights)[2], static_shape(data)[1]
    padded = min(*window.before, *window.after) >= 0
    if kd > 1 == batch and groups == channels > 1 and padded:
        return builder.emit(_depthwise(data, weights, window))
    return _of_images(builder, data, batch, weights, window, groups)


def lower_volume(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return a depthwise convolution that no implementation computes as ones of images."""
    (data, weights), (strides, dilation, padding) = call.args, steps_of(call)
    window = Window(strides, padding[:3], padding[3:], dilation)
    return _of_images(builder, data, 1, weights, window, int(call.attrs.groups))


def _of_images(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    batch: int,
    weights: relax.Expr,
    window: Window,
    groups: int,
) -> relax.Var:
    data, window = _cropped(builder, data, window)
    kd = static_shape(weights)[2]
    slices = _depth_slices(builder, data, batch, kd, window)
    if groups == 1 or kd == 1:
        joined = slices[0] if kd == 1 else builder.emit(relax.op.concat(slices, axis=1))
        return builder.emit(_conv2d(joined, _depth_in_channels(builder, weights), window, groups))
    parts = [
        builder.emit(_conv2d(part, _at_depth(builder, weights, r), window, groups))
        for r, part in enumerate(slices)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = builder.emit(relax.op.add(part, total))
    return total


def rearranged(
    builder: relax.BlockBuilder, weights: relax.Expr, axes: tuple[int, ...], shape: tuple[int, ...]
) -> relax.Expr:
    """Return weights with their axes permuted and then reshaped; constants now."""
    if is_constant(weights):
        array = constant_array(weights).transpose(axes).reshape(shape)
        return _constant(array)
    if axes != tuple(range(len(axes))):
        weights = builder.emit(relax.op.permute_dims(weights, axes))
    return builder.emit(relax.op.reshape(weights, shape))


def _constant(array: np.ndarray) -> relax.Expr:
    return relax.const(array.copy(order="C"), str(array.dtype))


def _cropped(
    builder: relax.BlockBuilder, data: relax.Expr, window: Window
) -> tuple[relax.Expr, Window]:
    """Take rows and columns of negative padding off the data."""
    axes, begin, end = [], [], []
    for axis in (1, 2):
        before, after = (min(0, pad[axis]) for pad in (window.before, window.after))
        if before or after:
            axes.append(axis + 1)
            begin.append(-before)
            end.append(static_shape(data)[axis + 1] + after)
    if not axes:
        return data, window
    data = builder.emit(relax.op.strided_slice(data, axes, begin, end))
    # Depth is left to `_depth_slices`.
    before, after = (
        (pad[0], max(0, pad[1]), max(0, pad[2])) for pad in (window.before, window.after)
    )
    return data, Window(window.stride, before, after, window.dilation)


def _depth_slices(
    builder: relax.BlockBuilder, data: relax.Expr, batch: int, kd: int, window: Window
) -> list[relax.Expr]:
    """Return, for each depth of the kernel, the slices that it meets, (batch * od, ci, h, w)."""
    slices, *image = static_shape(data)
    depth = slices // batch
    stride, dilation = window.stride[0], window.dilation[0]
    before, after = window.before[0], window.after[0]
    if (kd, stride, before, after) == (1, 1, 0, 0):
        return [data]
    # One volume has no axis of its own: what follows stays a batch of images in any layout.
    axis = 0 if batch == 1 else 1
    volumes = data if batch == 1 else builder.emit(relax.op.reshape(data, (batch, depth, *image)))
    depth += before + after
    if before > 0 or after > 0:
        pads = [0, 0] * (axis + 4)
        pads[2 * axis : 2 * axis + 2] = max(0, before), max(0, after)
        volumes = builder.emit(relax.op.nn.pad(volumes, pads))
    first = max(0, -before)
    od = (depth - dilation * (kd - 1) - 1) // stride + 1
    found = []
    for r in range(kd):
        start = first + r * dilation
        end = start + (od - 1) * stride + 1
        part = builder.emit(relax.op.strided_slice(volumes, [axis], [start], [end], [stride]))
        if batch > 1:
            part = builder.emit(relax.op.reshape(part, (batch * od, *image)))
        found.append(part)
    return found


def _depthwise(data: relax.Expr, weights: relax.Expr, window: Window) -> relax.Call:
    padding = (*window.before, *window.after)
    dtype = _sum_dtype(data)
    return volume_convolution(data, weights, window.stride, padding, window.dilation, dtype)


def _sum_dtype(data: relax.Expr) -> str | None:
    return "int32" if dtype_name(data) in INTEGER_FACTORS else None


def _conv2d(data: relax.Expr, weights: relax.Expr, window: Window, groups: int) -> relax.Call:
    return relax.op.nn.conv2d(
        data,
        weights,
        strides=window.stride[1:],
        padding=(*window.before[1:], *window.after[1:]),
        dilation=window.dilation[1:],
        groups=groups,
        out_dtype=_sum_dtype(data),
    )


def _depth_in_channels(builder: relax.BlockBuilder, weights: relax.Expr) -> relax.Expr:
    co, ci, kd, kh, kw = static_shape(weights)
    return rearranged(builder, weights, (0, 2, 1, 3, 4), (co, kd * ci, kh, kw))


def _at_depth(builder: relax.BlockBuilder, weights: relax.Expr, depth: int) -> relax.Expr:
    co, ci, _, kh, kw = static_shape(weights)
    if is_constant(weights):
        return _constant(constant_array(weights)[:, :, depth])
    part = builder.emit(relax.op.strided_slice(weights, [2], [depth], [depth + 1]))
    return builder.emit(relax.op.reshape(part, (co, ci, kh, kw)))
