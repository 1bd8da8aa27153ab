"""Operators that are computed in any layout of images, the same for input and result."""

from __future__ import annotations

from tvm import relax

from tvm_blislike.tvm_seams import constant_array, is_constant, op_name, static_shape

UNARY = {
    f"relax.{name}"
    for name in (
        "nn.relu nn.silu nn.gelu nn.leakyrelu nn.softplus sigmoid tanh exp log sqrt rsqrt abs "
        "negative clip square floor ceil round erf"
    ).split()
}
BINARY = {f"relax.{name}" for name in "add subtract multiply divide maximum minimum power".split()}
POOLS = {"relax.nn.max_pool2d", "relax.nn.avg_pool2d"}
REDUCTIONS = {"relax.mean", "relax.sum", "relax.max", "relax.min"}
_MOVES = {"relax.strided_slice", "relax.nn.pad", "relax.layout_transform", "relax.reshape"}
_FLATTENINGS = {"relax.reshape", "relax.squeeze", "relax.flatten"}


def image_inputs(call: relax.Call) -> list[relax.Expr] | None:
    """Return the operands that must have the layout of the result; None where NCHW is the only one.

    Parameters
    ----------
    call : relax.Call
        An operator other than a convolution, on NCHW.
    """
    name = op_name(call)
    if not is_image(call):
        return None
    if name in BINARY:
        return _operands(call)
    if name == "relax.concat":
        parts = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
        usable = all(map(is_image, parts)) and int(call.attrs.axis or 0) % 4 in (0, 1)
        return parts if parts and usable else None
    if not call.args or not is_image(call.args[0]) or is_constant(call.args[0]):
        return None
    if name in UNARY or name in POOLS:
        return [call.args[0]]
    if name in REDUCTIONS:
        axes = sorted(int(axis) % 4 for axis in call.attrs.axis) if call.attrs.axis else []
        return [call.args[0]] if axes == [2, 3] and call.attrs.keepdims else None
    return [call.args[0]] if name in _MOVES and _moves_within_channels(call) else None


def is_flattening(call: relax.Expr) -> bool:
    """Whether a call makes a vector of a 1x1 image, whatever the image's layout."""
    if op_name(call) not in _FLATTENINGS or static_shape(call) is None:
        return False
    shape = static_shape(call.args[0])
    return shape is not None and len(shape) == 4 and shape[2:] == (1, 1)


def is_image(expr: relax.Expr) -> bool:
    """Whether an expression is a tensor of four known sizes."""
    shape = static_shape(expr)
    return shape is not None and len(shape) == 4


def _operands(call: relax.Call) -> list[relax.Expr] | None:
    """Return the images of an elementwise operator: all of its channels or a constant."""
    channels = static_shape(call)[1]
    images = []
    for arg in call.args:
        if is_constant(arg):
            shape = constant_array(arg).shape
            if len(shape) > 4 or (len(shape) > 2 and shape[-3] not in (1, channels)):
                return None
        elif not is_image(arg) or static_shape(arg)[1] != channels:
            return None
        else:
            images.append(arg)
    return images or None


def _moves_within_channels(call: relax.Call) -> bool:
    """Whether a call leaves each pixel's channels together: `passes.moves` has it in any layout."""
    name, before, after = op_name(call), static_shape(call.args[0]), static_shape(call)
    if name == "relax.reshape":
        return before[:2] == after[:2]
    if name == "relax.strided_slice":
        return all(int(axis) % 4 != 1 for axis in call.args[1].fields)
    if name == "relax.nn.pad":
        width = [int(w) for w in call.attrs.pad_width]
        return width[2:4] == [0, 0]
    return True
