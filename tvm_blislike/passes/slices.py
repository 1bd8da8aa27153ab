"""What slices of images keep of their channels."""

from __future__ import annotations

from tvm import relax

from tvm_blislike.tvm_seams import static_shape

SLICE = "relax.strided_slice"


def kept_channels(call: relax.Call) -> range:
    """Return the channels of an image in NCHW that a slice of it keeps."""
    channels = range(static_shape(call.args[0])[1])
    axes, begin, end, *strides = ([int(v) for v in arg.fields] for arg in call.args[1:])
    steps = strides[0] if strides else [1] * len(axes)
    cuts = zip(axes, map(slice, begin, end, steps), strict=True)
    return next((channels[cut] for axis, cut in cuts if axis % 4 == 1), channels)


def is_of_channels(call: relax.Call) -> bool:
    """Whether a slice keeps all images, rows and columns."""
    return [int(axis) % 4 for axis in call.args[1].fields] == [1]
