"""Where the images of a batch lie in the result of an operator, if it keeps them apart.

Images lie along one axis of a tensor: of a size of `images * k`, whose i-th k elements belong to
image i. An operator keeps them apart where the part of its result that belongs to an image follows
from the parts of its operands that do, in the same way for all images. Each rule here says so of
operators that it knows, by their attributes; of all others nothing is known, and they are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvm_blislike.passes.open_sizes import are_same
from tvm_blislike.tvm_seams import constant_array, is_constant, op_name, permuted_axes, static_shape

# The result has the shape of the first operand, each element of it follows from one of each operand
# (broadcast like NumPy's).
_ELEMENTWISE = {
    f"relax.{name}"
    for name in (
        "abs acos acosh asin asinh atan atanh bitwise_not ceil clip cos cosh erf exp floor "
        "isfinite isinf isnan log logical_not negative round rsqrt sigmoid sign sin sinh sqrt "
        "square tan tanh trunc astype nn.relu nn.relu6 nn.leakyrelu nn.gelu nn.gelu_tanh nn.selu "
        "nn.silu nn.softplus add subtract multiply divide floor_divide mod floor_mod power maximum "
        "minimum equal not_equal less less_equal greater greater_equal logical_and logical_or "
        "logical_xor bitwise_and bitwise_or bitwise_xor where"
    ).split()
}
# Of images along the first axis, whose layout begins with N.
_ON_IMAGES = {
    f"relax.nn.{name}"
    for name in (
        "conv1d conv2d conv3d conv1d_transpose conv2d_transpose conv3d_transpose max_pool1d "
        "max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
        "adaptive_avg_pool2d adaptive_avg_pool3d"
    ).split()
} | {"relax.image.resize2d", "relax.image.resize3d"}
_REDUCTIONS = {f"relax.{name}" for name in "mean sum max min prod std variance".split()}
RESHAPES = {
    f"relax.{name}" for name in "reshape flatten squeeze expand_dims nn.batch_flatten".split()
}
# Along an axis that must not be that of the images.
_ALONG_AXIS = {"relax.nn.softmax", "relax.nn.log_softmax", "relax.cumsum", "relax.cumprod"}
_PLACES = {"relax.argmax", "relax.argmin"}


class ImagesMeet(Exception):
    """An operator brings images together, or is not known to keep them apart; the text says why."""


@dataclass(frozen=True)
class Operand:
    """A tensor that an operator reads.

    Parameters
    ----------
    expr : relax.Expr
        The tensor.
    shape : tuple of int
        Its shape.
    axis : int or None
        Where its images are; None for one that all of them share.
    """

    expr: relax.Expr
    shape: tuple[int, ...]
    axis: int | None


def axis_of_result(call: relax.Call, operands: Sequence[Operand], images: int) -> int | None:
    """Return where the images are in the result of a call, or in each of several results.

    Parameters
    ----------
    call : relax.Call
        An operator.
    operands : sequence of Operand
        The tensors that it reads, in order, those in tuples too.
    images : int
        How many there are, at least 2.

    Returns
    -------
    int or None
        None where the result is the same for all images.

    Raises
    ------
    ImagesMeet
        Unless the operator is known to keep them apart.
    """
    name = op_name(call)
    if name == "relax.broadcast_to":
        return _broadcast(call, operands, images)
    if all(operand.axis is None for operand in operands):
        return None
    for names, rule in _RULES:
        if name in names:
            axis = rule(call, operands, images)
            _check_size(call, axis, images)
            return axis
    raise ImagesMeet(f"{name or 'a kernel'} is not known to keep them apart")


def shape_with(shape: Sequence[int], axis: int | None, images: int, some: int) -> list[int]:
    """Return the shape of a tensor of `images` images for `some` of them."""
    result = [int(size) for size in shape]
    if axis is not None:
        result[axis] = result[axis] // images * some
    return result


def one_piece(array: np.ndarray, axis: int, images: int) -> np.ndarray | None:
    """Return the part of an image in a constant that is the same for each; None where it is not."""
    if array.shape[axis] % images:
        return None
    parts = np.split(array, images, axis)
    return parts[0] if are_same(parts) else None


def aligned(shape: Sequence[int], rank: int, axis: int) -> int:
    """Return the axis of an operand that broadcasts to `axis` of a result; negative for none."""
    return axis - (rank - len(shape))


def axis_of_constant(call: relax.Call, operand: relax.Expr, axis: int) -> int | None:
    """Return along which axis a constant has a part for each image; None where all share it.

    Parameters
    ----------
    call : relax.Call
        `axis_of_result` has passed it.
    operand : relax.Expr
        One of its operands.
    axis : int
        Where the images are in the result.
    """
    name, shape = op_name(call), static_shape(operand)
    if name != "relax.concat" and name not in _ELEMENTWISE | {"relax.matmul"}:
        return None
    rank = len(static_shape(call))
    at = aligned(shape, rank, axis)
    shared = at < 0 or shape[at] == 1 or (name == "relax.matmul" and axis >= rank - 2)
    return None if shared else at


def _check_size(call: relax.Call, axis: int | None, images: int) -> None:
    shape = static_shape(call)
    if shape is not None and axis is not None and shape[axis] % images:
        raise ImagesMeet(f"{op_name(call)} makes {shape[axis]} of them along its axis {axis}")


def _elementwise(call: relax.Call, operands: Sequence[Operand], images: int) -> int:
    rank = len(static_shape(call))
    found = {o.axis + rank - len(o.shape) for o in operands if o.axis is not None}
    if len(found) > 1:
        raise ImagesMeet(f"{op_name(call)} reads them along different axes")
    (axis,) = found
    for operand in operands:
        _require_shared(call, operand, aligned(operand.shape, rank, axis), images)
    return axis


def _require_shared(call: relax.Call, operand: Operand, axis: int, images: int) -> None:
    """Require that an operand without images is the same for each of them."""
    if operand.axis is not None or axis < 0 or operand.shape[axis] == 1:
        return
    if is_constant(operand.expr):
        if one_piece(constant_array(operand.expr), axis, images) is not None:
            return
    raise ImagesMeet(f"{op_name(call)} reads other numbers for each of them")


def _on_images(call: relax.Call, operands: Sequence[Operand], _images: int) -> int:
    layout = getattr(call.attrs, "data_layout", None) or getattr(call.attrs, "layout", "N")
    data, *others = operands
    if data.axis != 0 or not str(layout).startswith("N"):
        raise ImagesMeet(f"{op_name(call)} reads them along another axis than its first")
    if any(other.axis is not None for other in others):
        raise ImagesMeet(f"weights of {op_name(call)} are not the same for all of them")
    return 0


def _normalization(call: relax.Call, operands: Sequence[Operand], _images: int) -> int:
    """Take batch, group and instance normalization of constant statistics, and those of rows."""
    data, *others = operands
    if any(other.axis is not None for other in others):
        raise ImagesMeet(f"parameters of {op_name(call)} are not the same for all of them")
    attrs, name = call.attrs, op_name(call)
    if name == "relax.nn.batch_norm":
        axes = [0] if attrs.training else [attrs.axis]
    elif name in ("relax.nn.group_norm", "relax.nn.instance_norm"):
        axes = [*attrs.axes, *([attrs.channel_axis] if hasattr(attrs, "channel_axis") else [1])]
    else:
        axes = attrs.axes
    if data.axis in {int(axis) % len(data.shape) for axis in axes}:
        raise ImagesMeet(f"{name} takes statistics over them")
    return data.axis


def _reduction(call: relax.Call, operands: Sequence[Operand], _images: int) -> int:
    (data,) = operands
    axes = call.attrs.axis
    axes = [axes] if isinstance(axes, int) else axes or []
    axes = sorted(int(axis) % len(data.shape) for axis in axes) or range(len(data.shape))
    if data.axis in axes:
        raise ImagesMeet(f"{op_name(call)} goes over all of them")
    return data.axis if call.attrs.keepdims else data.axis - sum(a < data.axis for a in axes)


def _along_axis(call: relax.Call, operands: Sequence[Operand], _images: int) -> int:
    (data,) = operands
    if call.attrs.axis is None or int(call.attrs.axis) % len(data.shape) == data.axis:
        raise ImagesMeet(f"{op_name(call)} goes along all of them")
    return data.axis


def _concat(call: relax.Call, operands: Sequence[Operand], images: int) -> int:
    axes = {operand.axis for operand in operands if operand.axis is not None}
    joined = int(call.attrs.axis or 0) % len(operands[0].shape)
    if len(axes) > 1 or joined in axes:
        raise ImagesMeet("relax.concat joins them along their axis")
    (axis,) = axes
    for operand in operands:
        if operand.axis is None and operand.shape[axis] == 1:
            raise ImagesMeet("relax.concat joins them with something else")
        _require_shared(call, operand, axis, images)
    return axis


def _split(call: relax.Call, operands: Sequence[Operand], _images: int) -> int:
    (data,) = operands
    if int(call.attrs.axis) % len(data.shape) == data.axis:
        raise ImagesMeet("relax.split parts them along their axis")
    return data.axis


def _slice(call: relax.Call, operands: Sequence[Operand], _images: int) -> int:
    (data,) = operands
    if data.axis in {int(axis) % len(data.shape) for axis in call.args[1].fields}:
        raise ImagesMeet("relax.strided_slice takes some of them")
    return data.axis


def _take(call: relax.Call, operands: Sequence[Operand], _images: int) -> int:
    data, indices = operands
    axis = call.attrs.axis
    if data.axis is not None and indices.axis is not None:
        raise ImagesMeet("relax.take looks up in each of them by numbers of its own")
    if data.axis is None:
        return (0 if axis is None else int(axis) % len(data.shape)) + indices.axis
    if axis is None or int(axis) % len(data.shape) == data.axis:
        raise ImagesMeet("relax.take takes some of them")
    before = int(axis) % len(data.shape) > data.axis
    return data.axis if before else data.axis - 1 + len(indices.shape)


def _permute(call: relax.Call, operands: Sequence[Operand], _images: int) -> int:
    (data,) = operands
    return permuted_axes(call).index(data.axis)


def _reshape(call: relax.Call, operands: Sequence[Operand], images: int) -> int:
    """Find the axis that begins where that of the images began, and holds whole ones."""
    data, shape = operands[0], static_shape(call)
    before = math.prod(data.shape[: data.axis])
    for axis, size in enumerate(shape):
        if math.prod(shape[:axis]) == before and size % images == 0 and size:
            return axis
    raise ImagesMeet(f"{op_name(call)} makes {_text(shape)} of {_text(data.shape)}")


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _pad(call: relax.Call, operands: Sequence[Operand], _images: int) -> int:
    data = operands[0]
    width = [int(each) for each in call.attrs.pad_width]
    if any(width[2 * data.axis : 2 * data.axis + 2]):
        raise ImagesMeet("relax.nn.pad adds others")
    return data.axis


def _matmul(call: relax.Call, operands: Sequence[Operand], images: int) -> int:
    a, b = operands
    if min(len(a.shape), len(b.shape)) < 2:
        raise ImagesMeet("relax.matmul of a vector is not known to keep them apart")
    rank = max(len(a.shape), len(b.shape))
    if a.axis == len(a.shape) - 1 or b.axis == len(b.shape) - 2:
        raise ImagesMeet("relax.matmul sums over them")
    found = {o.axis + rank - len(o.shape) for o in operands if o.axis is not None}
    if len(found) > 1 or (a.axis is not None and b.axis is not None and max(found) >= rank - 2):
        raise ImagesMeet("relax.matmul multiplies each of them with all")
    (axis,) = found
    if axis < rank - 2:
        for operand in operands:
            _require_shared(call, operand, aligned(operand.shape, rank, axis), images)
    return axis


def _quantization(call: relax.Call, operands: Sequence[Operand], _images: int) -> int:
    data, *others = operands
    alone = all(other.axis is None and math.prod(other.shape) == 1 for other in others)
    if any(o.axis is not None for o in others):
        raise ImagesMeet(f"parameters of {op_name(call)} are not the same for all of them")
    if not alone and int(call.attrs.axis) % len(data.shape) == data.axis:
        raise ImagesMeet(f"{op_name(call)} has other parameters for each of them")
    return data.axis


def _broadcast(call: relax.Call, operands: Sequence[Operand], images: int) -> int | None:
    """Take copies for each image as images, where the first axis is what they are along."""
    (data,), shape = operands, static_shape(call)
    if shape is None:
        raise ImagesMeet("sizes are known at run time only")
    if data.axis is not None:
        return data.axis + len(shape) - len(data.shape)
    if shape[:1] != (images,):
        return None
    at = aligned(data.shape, len(shape), 0)
    return 0 if at < 0 or data.shape[at] == 1 else None


_Rule = Callable[[relax.Call, Sequence[Operand], int], int]
_RULES: tuple[tuple[set[str], _Rule], ...] = (
    (_ELEMENTWISE, _elementwise),
    (_ON_IMAGES, _on_images),
    (
        {f"relax.nn.{name}_norm" for name in ("batch", "group", "instance", "layer", "rms")},
        _normalization,
    ),
    (_REDUCTIONS | _PLACES, _reduction),
    (_ALONG_AXIS, _along_axis),
    ({"relax.concat"}, _concat),
    ({"relax.split"}, _split),
    ({"relax.strided_slice"}, _slice),
    ({"relax.take"}, _take),
    ({"relax.permute_dims"}, _permute),
    (RESHAPES, _reshape),
    ({"relax.nn.pad"}, _pad),
    ({"relax.matmul"}, _matmul),
    ({"relax.quantize", "relax.dequantize"}, _quantization),
)
