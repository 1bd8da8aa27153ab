"""Signals and volumes become images, so that every implementation of conv2d serves them.

    signal  (n, c, w)        carried as (n, c, w, 1), or (n, c, 1, w) where rows must be long, or
                             (n, c, w / d, d) where it is dilated by d (`dilated_rows`)
    volume  (n, c, d, h, w)  carried as (n * d, c, h, w), or (n, c, d, h * w) behind what moves
                             along its depth alone (`folds`)

A value stays in this form through elementwise operators; any other reader gets it back in its own.
Signals lie along the height because direct convolution cuts images into slabs of rows. Depthwise
convolutions and those of few input channels work along a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.choose.strategy import Seconds
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import HALF_KERNELS, KERNELS
from tvm_blislike.model.layouts import with_rank
from tvm_blislike.operators.operator import types_of
from tvm_blislike.passes.dilated_rows import DilatedRows, signal_of
from tvm_blislike.passes.folds import columns_of, slices_of
from tvm_blislike.passes.image_operators import BINARY, REDUCTIONS, UNARY
from tvm_blislike.passes.lookups import is_lookup
from tvm_blislike.passes.padding import PAD
from tvm_blislike.passes.pools import POOLS, is_plain, moves_along, pool_along
from tvm_blislike.passes.resizes import RESIZED_VOLUME, is_by_axes, resize_image
from tvm_blislike.passes.transposed import PhasedAxis, transposed_convolution
from tvm_blislike.passes.volumes import Triple, Window, convolution, rearranged
from tvm_blislike.tvm_seams import (
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
)

# Operator: spatial axes, and whether it is transposed.
CONVOLUTIONS = {
    "relax.nn.conv1d": (1, False),
    "relax.nn.conv3d": (3, False),
    "relax.nn.conv1d_transpose": (1, True),
    "relax.nn.conv2d_transpose": (2, True),
    "relax.nn.conv3d_transpose": (3, True),
}
_LAYOUTS = {1: ("NCW", "OIW", "IOW"), 2: ("NCHW", "", "IOHW"), 3: ("NCDHW", "OIDHW", "IODHW")}
# Data types of which some core has micro-kernels.
_FLOATS = {kernel.types.a for kernel in (*KERNELS, *HALF_KERNELS)}
# Fewer input channels than this are read along rows (`cost_models.conv2d_direct.candidates`).
_FEW_CHANNELS = 8


# Height and width.
Pixels = tuple[int, int]


@dataclass(frozen=True)
class Planar:
    """A signal, image or volume in the form of a batch of images.

    Parameters
    ----------
    var : relax.Expr
        The batch of images.
    shape : tuple of int
        Its own shape, of rank 3, 4 or 5.
    """

    var: relax.Expr
    shape: tuple[int, ...]

    @property
    def of_channels(self) -> tuple[int, ...] | None:
        """Shape of a number for each channel; None of several volumes whose slices are a batch."""
        images = static_shape(self.var)[0]
        if self.shape[0] not in (1, images):
            return None
        return (*self.shape[:2], *(1 for _ in self.shape[2:]))

    @property
    def pixels(self) -> Pixels:
        """Height and width of the images."""
        height, width = static_shape(self.var)[2:]
        return height, width

    @property
    def is_of_columns(self) -> bool:
        """Whether these are volumes whose depth is the height of an image."""
        depth, *pixels = self.shape[2:]
        return len(pixels) == 2 and self.pixels == (depth, math.prod(pixels))


@mutator
class ToImages(PyExprMutator):
    """Rewrite the convolutions of signals and volumes, and transposed ones.

    Parameters
    ----------
    mod, func : IRModule, relax.Function
        What is rewritten.
    core : Core
        The target.
    threads : int
        Threads of one inference.
    seconds : callable, optional
        Predicts a layer's time. Without it no signal lies in rows for its dilation.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        _func: relax.Function,
        core: Core,
        threads: int,
        seconds: Seconds | None,
    ) -> None:
        super().__init__(mod)
        self.core, self.threads, self.seconds = core, threads, seconds
        self.planes: dict[relax.Var, Planar] = {}
        self.order: dict[Planar, int] = {}
        self.restored: dict[relax.Var, relax.Expr] = {}
        self.made: dict[tuple[relax.Var, Pixels], Planar] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        """Begin anew."""
        # What is emitted in one block cannot be read in another.
        self.planes, self.restored, self.made = {}, {}, {}
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Emit what is computed on images as such."""
        call, var = binding.value, binding.var
        planar = None
        if isinstance(call, relax.Call) and self.builder_.current_block_is_dataflow():
            planar = self._planar_result(call)
        if planar is None:
            super().visit_var_binding_(binding)
            return
        self.planes[var] = planar
        self.order[planar] = len(self.order)
        if not isinstance(var, relax.DataflowVar):
            value = self._restore(planar)
            self.set_var_remap(var, self.builder_.emit_output(value))

    def visit_dataflow_var_(self, var: relax.Var) -> relax.Expr:
        """Return its own form to any reader that does not know of this one."""
        if var not in self.planes:
            return super().visit_dataflow_var_(var)
        if var not in self.restored:
            self.restored[var] = self.builder_.emit(self._restore(self.planes[var]))
        return self.restored[var]

    def _planar_result(self, call: relax.Call) -> Planar | None:
        name = op_name(call)
        if name in CONVOLUTIONS:
            return self._convolution(call, *CONVOLUTIONS[name])
        if is_lookup(call) and call.args[1] in self.planes:
            source = self.planes[call.args[1]]
            result = relax.Call(call.op, [call.args[0], source.var], call.attrs)
            return Planar(self.builder_.emit(result), source.shape)
        if name in UNARY and call.args[0] in self.planes:
            source = self.planes[call.args[0]]
            rest = [self.visit_expr(arg) for arg in call.args[1:]]
            result = relax.Call(call.op, [source.var, *rest], call.attrs)
            return Planar(self.builder_.emit(result), source.shape)
        if name == "relax.concat":
            return self._concatenated(call)
        if name in self.OF_ONE and call.args[0] in self.planes:
            return self.OF_ONE[name](self, call, self.planes[call.args[0]])
        return self._binary(call) if name in BINARY else None

    def _channels(self, call: relax.Call, source: Planar) -> Planar | None:
        """Return some channels."""
        if [int(axis) for axis in call.args[1].fields] != [1]:
            return None
        sliced = relax.Call(call.op, [source.var, *call.args[1:]], call.attrs)
        return Planar(self.builder_.emit(sliced), static_shape(call))

    def _of_channels(self, call: relax.Call, source: Planar) -> Planar | None:
        """Return a reduction of a whole signal, image or volume to a number for each channel."""
        rank, attrs = len(source.shape), call.attrs
        axes = sorted(int(axis) % rank for axis in attrs.axis) if attrs.axis else []
        if axes != list(range(2, rank)) or not attrs.keepdims:
            return None
        whole = self._columns(call.args[0]) if rank == 5 else source
        operator = getattr(relax.op, op_name(call).removeprefix("relax."))
        result = self.builder_.emit(operator(whole.var, axis=[2, 3], keepdims=True))
        return Planar(result, static_shape(call))

    def _pool(self, call: relax.Call, source: Planar) -> Planar | None:
        """Return a pool of a signal or a volume."""
        if not is_plain(call):
            return None
        shape = static_shape(call)
        if len(shape) == 3:
            line = self._line(call.args[0], source)
            axes = (0, None) if line.pixels[1] == 1 else (None, 0)
            return Planar(self.builder_.emit(pool_along(call, line.var, axes)), shape)
        if moves_along(call, 1) or moves_along(call, 2):
            slices = self._slices(call.args[0])
            pooled = self.builder_.emit(pool_along(call, slices.var, (1, 2)))
            source = Planar(pooled, (*source.shape[:3], *shape[3:]))
        if not moves_along(call, 0):
            return source
        columns = self._in_form(source, (source.shape[2], math.prod(source.shape[3:])))
        return Planar(self.builder_.emit(pool_along(call, columns.var, (0, None))), shape)

    def _padded(self, call: relax.Call, source: Planar) -> Planar | None:
        """Return a signal or volume with more around it, as bytes have whose zero is a step."""
        shape, rank = source.shape, len(source.shape)
        width = [int(each) for each in call.attrs.pad_width]
        if rank == 4 or any(width[:4]) or str(call.attrs.pad_mode) != "constant":
            return None
        pairs = [(width[axis], width[axis + 1]) for axis in range(4, 2 * rank, 2)]

        def padded(planar: Planar, *around: tuple[int, int]) -> relax.Var:
            widths = [0, 0, 0, 0, *around[0], *around[1]]
            attrs = call.attrs
            pad = op.nn.pad(planar.var, widths, str(attrs.pad_mode), float(attrs.pad_value))
            return self.builder_.emit(pad)

        if rank == 3:
            line = self._line(call.args[0], source)
            around = (pairs[0], (0, 0)) if line.pixels[1] == 1 else ((0, 0), pairs[0])
            return Planar(padded(line, *around), static_shape(call))
        depth, *pixels = pairs
        if any(depth):
            columns = self._in_form(source, (shape[2], math.prod(shape[3:])))
            deeper = (*shape[:2], shape[2] + sum(depth), *shape[3:])
            source = Planar(padded(columns, depth, (0, 0)), deeper)
        if any(map(any, pixels)):
            slices = self._in_form(source, source.shape[3:])
            source = Planar(padded(slices, *pixels), static_shape(call))
        return source

    def _resized(self, call: relax.Call, source: Planar) -> Planar | None:
        """Return resized volumes."""
        shape = static_shape(call)
        if not is_by_axes(call) or shape is None:
            return None
        _, _, depth, *pixels = shape
        if source.shape[3:] != (*pixels,):
            slices = self._slices(call.args[0])
            resized = self.builder_.emit(resize_image(call, slices.var, (*pixels,)))
            source = Planar(resized, (*source.shape[:3], *pixels))
        if source.shape[2] == depth:
            return source
        columns = self._in_form(source, (source.shape[2], math.prod(pixels)))
        resized = resize_image(call, columns.var, (depth, math.prod(pixels)))
        deeper = Planar(self.builder_.emit(resized), shape)
        # Most that reads it moves along its slices.
        return self._in_form(deeper, (*pixels,))

    # Operators of one value that is carried as images.
    OF_ONE: ClassVar[dict[str, Callable[[ToImages, relax.Call, Planar], Planar | None]]] = {
        "relax.strided_slice": _channels,
        **dict.fromkeys(REDUCTIONS, _of_channels),
        **dict.fromkeys(POOLS, _pool),
        PAD: _padded,
        RESIZED_VOLUME: _resized,
    }

    def _concatenated(self, call: relax.Call) -> Planar | None:
        """Return the channels of several signals or volumes side by side."""
        shape = static_shape(call)
        parts = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
        found = [self.planes[part] for part in parts if part in self.planes]
        if not found or shape is None or len(shape) == 4 or int(call.attrs.axis or 0) != 1:
            return None
        pixels = self._last(found).pixels
        joined = [self._planar(part, pixels).var for part in parts]
        return Planar(self.builder_.emit(relax.op.concat(joined, 1)), shape)

    def _binary(self, call: relax.Call) -> Planar | None:
        shape = static_shape(call)
        found = [self.planes[arg] for arg in call.args if arg in self.planes]
        alike = [planar for planar in found if planar.shape == shape]
        if not alike:
            return None
        # The layer that was computed last ends in this operator: what it adds takes its form.
        like = self._last(alike)
        operands = [self._operand(arg, like) for arg in call.args]
        if any(operand is None for operand in operands):
            return None
        return Planar(self.builder_.emit(relax.Call(call.op, operands, call.attrs)), shape)

    def _operand(self, arg: relax.Expr, like: Planar) -> relax.Expr | None:
        """Return an operand in the form of `like`, None when it cannot be had."""
        shape = static_shape(arg)
        if is_constant(arg):
            return _constant_like(arg, like)
        if shape not in (like.shape, like.of_channels) or not isinstance(arg, relax.Var):
            return None
        return self._planar(arg, like.pixels if shape == like.shape else (1, 1)).var

    def _planar(self, value: relax.Expr, pixels: Pixels) -> Planar:
        """Return any value as a batch of images, a signal's of these; the same one for all."""
        key = (value, pixels)
        if not isinstance(value, relax.Var):
            return self._turned(value, pixels)
        if key not in self.made:
            self.made[key] = self._turned(value, pixels)
        return self.made[key]

    def _turned(self, value: relax.Expr, pixels: Pixels) -> Planar:
        shape = static_shape(value)
        known = self.planes.get(value) if isinstance(value, relax.Var) else None
        if len(shape) == 3:
            turned = (*shape[:2], *pixels)
            if known is not None and static_shape(known.var) == turned:
                return known
            plain = known.var if known is not None else self.visit_expr(value)
            return Planar(self.builder_.emit(relax.op.reshape(plain, turned)), shape)
        if len(shape) == 4:
            return known or Planar(self.visit_expr(value), shape)
        if known is not None:
            return self._in_form(known, pixels)
        n, c, d, h, w = shape
        plain = self.visit_expr(value)
        if pixels == (d, h * w):
            return Planar(self.builder_.emit(relax.op.reshape(plain, (n, c, *pixels))), shape)
        if c > 1 and d > 1:
            plain = self.builder_.emit(relax.op.permute_dims(plain, (0, 2, 1, 3, 4)))
        return Planar(self.builder_.emit(relax.op.reshape(plain, (n * d, c, h, w))), shape)

    def _line(self, value: relax.Expr, source: Planar) -> Planar:
        """Return a signal as a row or a column of an image, in whichever form it is carried."""
        return source if 1 in source.pixels else self._planar(value, (source.shape[2], 1))

    def _slices(self, value: relax.Expr) -> Planar:
        """Return volumes as a batch of their slices."""
        return self._planar(value, static_shape(value)[3:])

    def _columns(self, value: relax.Expr) -> Planar:
        """Return volumes as images of their columns."""
        _, _, d, h, w = static_shape(value)
        return self._planar(value, (d, h * w))

    def _in_form(self, planar: Planar, pixels: Pixels) -> Planar:
        """Return volumes that are carried already as images of these pixels."""
        if planar.pixels == pixels:
            return planar
        depth, *slice_pixels = planar.shape[2:]
        if pixels == tuple(slice_pixels):
            fold = slices_of(planar.var, pixels[1])
        else:
            fold = columns_of(planar.var, depth)
        return Planar(self.builder_.emit(fold), planar.shape)

    def _last(self, planes: list[Planar]) -> Planar:
        """Return the one that was computed last."""
        return max(planes, key=self.order.__getitem__)

    def _restore(self, planar: Planar) -> relax.Expr:
        """Return the expression of a value in its own form."""
        if len(planar.shape) == 4:
            return planar.var
        if len(planar.shape) == 3 or 1 in planar.shape[1:3] or planar.is_of_columns:
            return relax.op.reshape(planar.var, planar.shape)
        n, c, d, h, w = planar.shape
        volumes = self.builder_.emit(relax.op.reshape(planar.var, (n, d, c, h, w)))
        return relax.op.permute_dims(volumes, (0, 2, 1, 3, 4))

    def _convolution(self, call: relax.Call, spatial: int, transposed: bool) -> Planar | None:
        attrs, shape = call.attrs, static_shape(call)
        size, kernel = (static_shape(arg) for arg in call.args)
        weights = call.args[1]
        if not _is_plain(call, spatial, transposed) or None in (shape, size, kernel):
            return None
        if 0 in (*shape, *size, *kernel):  # nothing to compute, and no slices to divide by
            return None
        groups = int(attrs.groups)
        # A depthwise convolution keeps several pixels of a row in registers.
        along_row = size[1] < _FEW_CHANNELS or groups == size[1]
        if spatial == 1 and not (along_row or transposed):
            found = self._in_rows(call)
            if found is not None:
                return found
        if spatial < 3:
            pixels = (1, size[-1]) if along_row else (size[-1], 1)
            axes = (None, None, 0) if along_row else (None, 0, None)
            axes = (None, 0, 1) if spatial == 2 else axes
        elif not transposed and self._is_of_columns(call):
            pixels, axes = (size[2], size[3] * size[4]), (None, 0, None)
        else:
            pixels, axes = size[3:], (0, 1, 2)
        source = self._planar(call.args[0], pixels)

        def three(values: Sequence[int], fill: int) -> Triple:
            depth, height, width = (fill if at is None else int(values[at]) for at in axes)
            return depth, height, width

        padding = list(attrs.padding)
        before, after = three(padding[:spatial], 0), three(padding[spatial:], 0)
        stride, dilation = three(attrs.strides, 1), three(attrs.dilation, 1)
        taps = three(kernel[2:], 1)
        identity = tuple(range(len(kernel)))
        weights = rearranged(
            self.builder_, self.visit_expr(weights), identity, (*kernel[:2], *taps)
        )
        if not transposed:
            window = Window(stride, before, after, dilation)
            result = convolution(self.builder_, source.var, size[0], weights, window, groups)
            return Planar(result, shape)
        sizes, out = three(size[2:], 1), three(shape[2:], 1)
        axes = tuple(map(PhasedAxis, sizes, out, taps, stride, dilation, before))
        lanes = self.core.lanes(dtype_name(call))
        result = transposed_convolution(
            self.builder_, source.var, size[0], weights, axes, groups, lanes
        )
        return Planar(result, shape)

    def _is_of_columns(self, call: relax.Call) -> bool:
        """Whether a convolution of volumes moves along their depth alone."""
        attrs, kernel = call.attrs, static_shape(call.args[1])
        strides, padding = ([int(v) for v in values] for values in (attrs.strides, attrs.padding))
        if (*kernel[3:], *strides[1:]) != (1, 1, 1, 1) or any((*padding[1:3], *padding[4:])):
            return False
        if (kernel[2], strides[0], padding[0], padding[3]) != (1, 1, 0, 0):
            return True
        # A product of pixels: either form will do.
        known = self.planes.get(call.args[0]) if isinstance(call.args[0], relax.Var) else None
        return known is not None and known.is_of_columns

    def _in_rows(self, call: relax.Call) -> Planar | None:
        """Return a dilated convolution as one of an image; None where that is slower."""
        emit, shape = self.builder_.emit, static_shape(call)
        signal = signal_of(call)
        rows = DilatedRows.of(signal)
        if self.seconds is None or rows is None or types_of(call).a not in _FLOATS:
            return None
        if not rows.is_sooner(signal, self.seconds, self.core, self.threads):
            return None
        n, ci, (height, width) = signal.n, signal.ci, (rows.rows, rows.dilation)
        if rows.added:
            column = self._planar(call.args[0], (signal.h, 1)).var
            filled = emit(op.nn.pad(column, [0, 0, 0, 0, 0, rows.added, 0, 0]))
            image = emit(op.reshape(filled, (n, ci, height, width)))
        else:
            image = self._planar(call.args[0], (height, width)).var
        weights = emit(op.expand_dims(self.visit_expr(call.args[1]), 3))
        padding = (rows.before, 0, rows.after, 0)
        made = emit(op.nn.conv2d(image, weights, padding=padding, out_dtype=call.attrs.out_dtype))
        if rows.left:
            made = emit(op.reshape(made, (n, signal.co, rows.outputs * width, 1)))
            made = emit(op.strided_slice(made, [2], [0], [signal.oh]))
        return Planar(made, shape)


def _is_plain(call: relax.Call, spatial: int, transposed: bool) -> bool:
    """Whether layouts are those of the importer and the product is of one floating type, or bytes.

    Transposed convolutions of bytes are none: what lies between their pixels is no zero point.
    """
    attrs = call.attrs
    data, forward, backward = _LAYOUTS[spatial]
    layouts = (str(attrs.data_layout), str(attrs.out_layout), str(attrs.kernel_layout))
    dtypes = {dtype_name(expr) for expr in (*call.args, call)}
    usual = layouts == (data, data, backward if transposed else forward)
    of_bytes = not transposed and types_of(call).is_integer_dot
    return usual and (of_bytes or (len(dtypes) == 1 and dtypes <= _FLOATS))


def _constant_like(arg: relax.Expr, like: Planar) -> relax.Expr | None:
    """Return a constant that broadcasts against `like` in its form."""
    array = constant_array(arg)
    rank = len(like.shape)
    if array.ndim > rank:
        return None
    full = with_rank(array, rank)
    if rank == 3:
        pixels = like.pixels if full.shape[2] > 1 else (1, 1)
        full = full.reshape(*full.shape[:2], *pixels)
    elif rank == 5 and like.is_of_columns:
        n, c, d, h, w = full.shape
        if h * w > 1:
            h, w = like.shape[3:]
        full = np.broadcast_to(full, (n, c, d, h, w)).reshape(n, c, d, h * w)
    elif rank == 5:
        n, c, d, h, w = full.shape
        if (n, d) not in ((1, 1), (like.shape[0], like.shape[2])):
            return None  # Volumes and slices are one axis there.
        full = full.transpose(0, 2, 1, 3, 4).reshape(n * d, c, h, w)
    return relax.const(np.ascontiguousarray(full), dtype_name(arg))
