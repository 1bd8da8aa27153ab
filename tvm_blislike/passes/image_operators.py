"""Operators that are computed in any layout of images, the same for input and result.

Elementwise ones, lookups, pools and reductions take it as an argument or do not care; these move
parts of an image about:

    strided_slice    of the batch, rows or columns, and of whole blocks of channels
    pad              likewise
    resize2d         rows and columns
    interleave       phases of a transposed convolution: from channels to batch, rows and columns
    fold             volumes as slices and as columns (`folds`)
    reshape          of the image to another height and width, or of a 1x1 image to a vector
    take             of channels, where that is a shuffle (`shuffles`)

The interleave is written as `relax.layout_transform` with an index map that nobody else writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import relax, te, tirx

from tvm_blislike.model.layouts import NCHW, NHWC, Layout
from tvm_blislike.model.marks import WORDS_OF_SIGNS
from tvm_blislike.passes.binary.operators import CODES
from tvm_blislike.passes.folds import fold_in
from tvm_blislike.passes.lookups import is_lookup
from tvm_blislike.passes.resizes import resize_image
from tvm_blislike.passes.shuffles import shuffle_of
from tvm_blislike.passes.slices import SLICE, kept_channels
from tvm_blislike.tvm_seams import constant_array, is_constant, op_name, static_shape

Steps = tuple[int, int, int]
UNARY = {
    f"relax.{name}"
    for name in (
        "nn.relu nn.silu nn.gelu nn.leakyrelu nn.softplus sigmoid tanh exp log sqrt rsqrt abs "
        "negative clip square floor ceil round erf astype"
    ).split()
}
BINARY = {f"relax.{name}" for name in "add subtract multiply divide maximum minimum power".split()}
BINARY |= {*CODES}
POOLS = {"relax.nn.max_pool2d", "relax.nn.avg_pool2d"}
REDUCTIONS = {f"relax.{name}" for name in ("mean", "variance", "sum", "max", "min")}
RESIZED = "relax.image.resize2d"
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
        return parts if parts and all(map(is_image, parts)) else None
    if is_lookup(call):
        return [call.args[1]]
    if shuffle_of(call) is not None:
        return [call.args[0]]
    if not call.args or not is_image(call.args[0]) or is_constant(call.args[0]):
        return None
    if name in UNARY or name in POOLS or name == WORDS_OF_SIGNS:
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
    """Whether a call leaves each pixel's channels together: `moved` has it in any layout."""
    name, before, after = op_name(call), static_shape(call.args[0]), static_shape(call)
    if name == "relax.reshape":
        return before[:2] == after[:2]
    if name == SLICE:
        return kept_channels(call).step == 1
    if name == "relax.nn.pad":
        width = [int(w) for w in call.attrs.pad_width]
        return width[2:4] == [0, 0]
    if name == RESIZED:
        return str(call.attrs.layout) == NCHW
    return True


def may_lie(call: relax.Call, layout: Layout) -> bool:
    """Whether the images of an operator other than a convolution may have this layout.

    Their channels fill its blocks.
    """
    shuffle = shuffle_of(call)
    if shuffle is not None:
        return shuffle.fits(layout)
    if layout.block and op_name(call) == SLICE:
        kept = kept_channels(call)
        return kept.step == 1 and kept.start % layout.block == 0
    return not layout.block or op_name(call) != WORDS_OF_SIGNS


def convolved_like(
    call: relax.Call, data: relax.Expr, weights: relax.Expr, **changed: Any
) -> relax.Call:
    """Return a `conv2d` of other operands, with the attributes of a call on NCHW but some."""
    names = ("strides", "padding", "dilation", "groups", "out_dtype")
    attrs = {name: getattr(call.attrs, name) for name in names}
    return relax.op.nn.conv2d(data, weights, **(attrs | changed))


def moved(call: relax.Call, source: relax.Expr, layout: Layout) -> relax.Expr | None:
    """Return a call on an image that lies in another layout, the result in that layout as well.

    Parameters
    ----------
    call : relax.Call
        On NCHW.
    source : relax.Expr
        Its first argument, in `layout`.
    layout : Layout
        Of both.

    Returns
    -------
    relax.Expr or None
        None where the result of the call cannot have this layout.
    """
    move = _MOVES.get(op_name(call))
    return move(call, source, layout) if move else None


def interleaved(builder: relax.BlockBuilder, phases: relax.Expr, steps: Steps) -> relax.Expr:
    """Emit the interleaving of the channels' leading factors.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to emit.
    phases : relax.Expr
        (n, sd * sh * sw * c, h, w).
    steps : tuple of int
        (sd, sh, sw).

    Returns
    -------
    relax.Expr
        (n * sd, c, h * sh, w * sw).
    """
    if steps == (1, 1, 1):
        return phases
    sizes = static_shape(phases)
    return builder.emit(relax.op.layout_transform(phases, _interleaving(sizes[1], steps)))


def lower_interleave(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Return the TE definition of an interleave, None for any other layout transform.

    It is computed output by output (TVM's own runs over the inputs), so that what is fused around
    it needs no copy.
    """
    layout = _layout_of(call)
    if layout is None:
        return None
    result = layout.sizes(static_shape(call))
    sd, sh, sw = _steps(layout.sizes(static_shape(call.args[0])), result)
    channels = result[1] // (layout.block or 1)

    def define(data: te.Tensor) -> te.Tensor:
        def value(*index: Any) -> Any:
            n, c, y, x, *lane = layout.in_nchw(*index)
            phase = (n % sd * sh + y % sh) * sw + x % sw
            outer = phase * channels + c
            return data[layout.ordered(n // sd, outer, y // sh, x // sw, *lane)]

        return te.compute(layout.shape(*result), value, name="interleave")

    return builder.call_te(define, call.args[0], primfunc_name_hint="interleave")


def _interleaving(channels: int, steps: Steps, layout: Layout = NCHW) -> tirx.IndexMap:
    """Return the index map of an interleave of `channels` channels (blocks of them)."""
    sd, sh, sw = steps
    kept = channels // (sd * sh * sw)

    def place(*index: Any) -> tuple[Any, ...]:
        n, c, y, x, *lane = layout.in_nchw(*index)
        phase = c // kept
        row, column = y * sh + phase // sw % sh, x * sw + phase % sw
        return layout.ordered(n * sd + phase // (sh * sw), c % kept, row, column, *lane)

    return tirx.IndexMap.from_func(place, layout.rank)


def _steps(sizes: tuple[int, ...], result: tuple[int, ...]) -> Steps:
    return result[0] // sizes[0], result[2] // sizes[2], result[3] // sizes[3]


def _layout_of(call: relax.Call) -> Layout | None:
    """Return the layout in which a call interleaves phases, None when it does something else."""
    source, result = static_shape(call.args[0]), static_shape(call)
    if source is None or result is None or len(source) != len(result) or len(source) < 4:
        return None
    layouts = [Layout.blocked(source[-1])] if len(source) == 5 else [NCHW, NHWC]
    for layout in layouts:
        before, after = layout.sizes(source), layout.sizes(result)
        steps = _steps(before, after)
        if before[1] != after[1] * steps[0] * steps[1] * steps[2] or steps == (1, 1, 1):
            continue
        expected = _interleaving(before[1] // (layout.block or 1), steps, layout)
        if tvm_ffi.structural_equal(call.attrs.index_map, expected):
            return layout
    return None


def _transformed(call: relax.Call, source: relax.Expr, layout: Layout) -> relax.Expr | None:
    if _layout_of(call) != NCHW:
        return fold_in(call, source, layout)
    before, after = static_shape(call.args[0]), static_shape(call)
    block = layout.block or 1
    if after[1] % block:
        return None
    steps = _steps(before, after)
    return relax.op.layout_transform(source, _interleaving(before[1] // block, steps, layout))


def _slice(call: relax.Call, source: relax.Expr, layout: Layout) -> relax.Expr | None:
    axes, begin, end, *strides = ([int(v) for v in arg.fields] for arg in call.args[1:])
    places = [layout.channel_axis if axis % 4 == 1 else place(axis, layout) for axis in axes]
    if layout.block and layout.channel_axis in places:
        kept = kept_channels(call)
        if kept.step != 1 or kept.start % layout.block or kept.stop % layout.block:
            return None
        at = places.index(layout.channel_axis)
        begin[at], end[at] = kept.start // layout.block, kept.stop // layout.block
    return relax.op.strided_slice(source, places, begin, end, *strides)


def _resized(call: relax.Call, source: relax.Expr, layout: Layout) -> relax.Expr:
    roi = [float(each) for each in call.attrs.roi]
    return resize_image(call, source, call.args[1], layout=layout, roi=roi)


def _pad(call: relax.Call, source: relax.Expr, layout: Layout) -> relax.Expr | None:
    width = [int(w) for w in call.attrs.pad_width]
    pairs = list(zip(width[::2], width[1::2], strict=True))
    rank = len(static_shape(source))
    moved_width = [0, 0] * rank
    for axis, pair in enumerate(pairs):
        at = place(axis, layout)
        if at is None and any(pair):
            return None
        if at is not None:
            moved_width[2 * at : 2 * at + 2] = pair
    attrs = call.attrs
    return relax.op.nn.pad(source, moved_width, str(attrs.pad_mode), float(attrs.pad_value))


def place(axis: int, layout: Layout) -> int | None:
    """Return where an axis of NCHW lies in a layout, None for channels."""
    first = layout.height_axis
    return {0: 0, 2: first, 3: first + 1}.get(axis % 4)


def _reshape(call: relax.Call, source: relax.Expr, layout: Layout) -> relax.Expr | None:
    """Images of the same channels: the order in memory stays, whatever the layout."""
    before, after = static_shape(call.args[0]), static_shape(call)
    if after is None or len(after) != 4 or before[:2] != after[:2]:
        return None
    return relax.op.reshape(source, layout.shape(*after))


_MOVES: dict[str, Callable[[relax.Call, relax.Expr, Layout], relax.Expr | None]] = {
    SLICE: _slice,
    "relax.nn.pad": _pad,
    "relax.layout_transform": _transformed,
    "relax.reshape": _reshape,
    RESIZED: _resized,
}
