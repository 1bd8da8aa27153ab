"""One layout per image: each convolution gets the layouts of its choice, the rest follows.

Elementwise operators, pooling, spatial means, concatenation of channels, padding and slicing are
computed in the layout in which their input lies; any other operator gets NCHW. Where a reader
wants another layout than the writer left, one transform is put, and shared by all who want the
same.

TVM's own ConvertLayout is not used: it takes two layouts of equal rank for permutations of each
other (NHWC of 24 channels beside NCHW16c) and cannot mix blocks in one graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.adapter import (
    constant_array,
    dtype_name,
    functions,
    is_constant,
    op_name,
    static_shape,
)
from tvm_blislike.layouts import block_of, preferred, shape_in, spatial_axis
from tvm_blislike.passes.moves import moved
from tvm_blislike.passes.workloads import conv2d_workload
from tvm_blislike.strategy import Strategy

UNARY = {
    f"relax.{name}"
    for name in (
        "nn.relu nn.silu nn.gelu nn.leakyrelu nn.softplus sigmoid tanh exp log sqrt rsqrt abs "
        "negative clip square floor ceil round erf"
    ).split()
}
BINARY = {f"relax.{name}" for name in "add subtract multiply divide maximum minimum power".split()}
_POOLS = {"relax.nn.max_pool2d", "relax.nn.avg_pool2d"}
_REDUCTIONS = {"relax.mean", "relax.sum", "relax.max", "relax.min"}
_RESHAPES = {"relax.reshape", "relax.squeeze", "relax.flatten"}


def choose_layouts(strategy: Strategy) -> tvm.transform.Pass:
    """Return the pass that converts a module to the layouts of the strategy's choices."""

    @tvm.transform.module_pass(opt_level=0, name="blislike.ChooseLayouts")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = mod.clone()
        for gvar, func in functions(mod):
            result.update_func(gvar, _Layouts(mod, strategy).visit_expr(func))
        return _TIDY(result)

    return run


_TIDY = tvm.transform.Sequential(
    [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
)


@dataclass(frozen=True)
class Image:
    """A value that lies in memory in another layout than NCHW.

    Parameters
    ----------
    var : relax.Var
        The value in that layout.
    layout : str
        See `tvm_blislike.layouts`.
    sizes : tuple of int
        (n, c, h, w).
    """

    var: relax.Var
    layout: str
    sizes: tuple[int, int, int, int]


@mutator
class _Layouts(PyExprMutator):
    """Re-emit each binding in the layout of its choice or of its input."""

    def __init__(self, mod: tvm.IRModule, strategy: Strategy) -> None:
        super().__init__(mod)
        self.strategy = strategy
        self.images: dict[relax.Var, Image] = {}
        self.made: dict[tuple[relax.Var, str], relax.Var] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        # What is emitted in one block cannot be read in another.
        self.images, self.made = {}, {}
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call = binding.value
        emitted = None
        if isinstance(call, relax.Call) and self.builder_.current_block_is_dataflow():
            emitted = self._emit(call)
        if emitted is None:
            super().visit_var_binding_(binding)
            return
        var, is_image = binding.var, isinstance(emitted, Image)
        if is_image:
            self.images[var] = emitted
        if not isinstance(var, relax.DataflowVar):
            # Outside the block nobody knows of layouts.
            value = self._converted(var, "NCHW") if is_image else emitted
            self.set_var_remap(var, self.builder_.emit_output(value))
        elif not is_image:
            self.set_var_remap(var, emitted)

    def visit_dataflow_var_(self, var: relax.Var) -> relax.Expr:
        """Return NCHW to any reader that does not know of layouts."""
        if var in self.images:
            return self._converted(var, "NCHW")
        return super().visit_dataflow_var_(var)

    def _emit(self, call: relax.Call) -> Image | relax.Var | None:
        name = op_name(call)
        if name == "relax.nn.conv2d":
            return self._conv2d(call)
        if name in UNARY and call.args[0] in self.images:
            return self._unary(call)
        if name in BINARY:
            return self._binary(call)
        if name in _POOLS and call.args[0] in self.images:
            return self._pool(call)
        if name in _REDUCTIONS and call.args[0] in self.images:
            return self._reduction(call)
        if name == "relax.concat":
            return self._concat(call)
        if not call.args or call.args[0] not in self.images:
            return None
        return self._move(call) or (self._reshape(call) if name in _RESHAPES else None)

    def _conv2d(self, call: relax.Call) -> Image | None:
        workload = conv2d_workload(call)
        config = self.strategy.choose(workload).config if workload is not None else None
        if config is None or call.attrs.data_layout != "NCHW" or call.attrs.out_layout != "NCHW":
            return None
        attrs = call.attrs
        result = relax.op.nn.conv2d(
            self._converted(call.args[0], config.data_layout),
            self.visit_expr(call.args[1]),
            strides=attrs.strides,
            padding=attrs.padding,
            dilation=attrs.dilation,
            groups=attrs.groups,
            data_layout=config.data_layout,
            kernel_layout=attrs.kernel_layout,
            out_layout=config.out_layout,
        )
        sizes = (workload.n, workload.co, workload.oh, workload.ow)
        return Image(self.builder_.emit(result), config.out_layout, sizes)

    def _unary(self, call: relax.Call) -> Image:
        source = self.images[call.args[0]]
        rest = [self.visit_expr(arg) for arg in call.args[1:]]
        result = relax.Call(call.op, [source.var, *rest], call.attrs)
        return Image(self.builder_.emit(result), source.layout, source.sizes)

    def _binary(self, call: relax.Call) -> Image | None:
        found = [self.images[arg] for arg in call.args if arg in self.images]
        sizes = static_shape(call)
        if not found or sizes is None or len(sizes) != 4:
            return None
        like = max(found, key=lambda image: int(np.prod(image.sizes)))
        if like.sizes[1] != sizes[1]:
            return None
        operands = [self._operand(arg, like) for arg in call.args]
        if any(operand is None for operand in operands):
            return None
        result = relax.Call(call.op, operands, call.attrs)
        return Image(self.builder_.emit(result), like.layout, sizes)

    def _operand(self, arg: relax.Expr, like: Image) -> relax.Expr | None:
        """Return an operand in the layout of `like`, None when it cannot be had."""
        if is_constant(arg):
            return _constant_like(arg, like)
        shape = static_shape(arg)
        if shape is None or len(shape) != 4 or shape[1] != like.sizes[1]:
            return None
        return self._converted(arg, like.layout)

    def _pool(self, call: relax.Call) -> Image | None:
        source, attrs = self.images[call.args[0]], call.attrs
        operator = getattr(relax.op.nn, op_name(call).removeprefix("relax.nn."))
        result = operator(
            source.var,
            pool_size=attrs.pool_size,
            strides=attrs.strides,
            padding=attrs.padding,
            dilation=attrs.dilation,
            ceil_mode=attrs.ceil_mode,
            count_include_pad=attrs.count_include_pad,
            layout=source.layout,
        )
        return Image(self.builder_.emit(result), source.layout, static_shape(call))

    def _reduction(self, call: relax.Call) -> Image | None:
        """Spatial means: the axes move with the layout, the channels stay."""
        source = self.images[call.args[0]]
        axes = sorted(int(axis) % 4 for axis in call.attrs.axis) if call.attrs.axis else []
        if axes != [2, 3] or not call.attrs.keepdims:
            return None
        first = spatial_axis(source.layout)
        operator = getattr(relax.op, op_name(call).removeprefix("relax."))
        result = operator(source.var, axis=[first, first + 1], keepdims=True)
        return Image(self.builder_.emit(result), source.layout, static_shape(call))

    def _move(self, call: relax.Call) -> Image | None:
        source = self.images[call.args[0]]
        result = moved(call, source.var, source.layout)
        if result is None:
            return None
        return Image(self.builder_.emit(result), source.layout, static_shape(call))

    def _reshape(self, call: relax.Call) -> relax.Var | None:
        """Flattening a 1x1 image: all layouts have the same order in memory."""
        source, shape = self.images[call.args[0]], static_shape(call)
        if shape is None or source.sizes[2:] != (1, 1):
            return None
        return self.builder_.emit(relax.op.reshape(source.var, shape))

    def _concat(self, call: relax.Call) -> Image | None:
        fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
        shapes = [static_shape(field) for field in fields]
        is_images = bool(fields) and all(s is not None and len(s) == 4 for s in shapes)
        axis = int(call.attrs.axis)
        if not is_images or axis not in (0, 1):
            return None
        if not any(field in self.images for field in fields):
            return None
        lanes = self.strategy.core.lanes(dtype_name(call))
        kept = {preferred(shape[1], 1, lanes) for shape in shapes}
        layout = kept.pop() if len(kept) == 1 else "NHWC"
        parts = [self._converted(field, layout) for field in fields]
        place = 3 if axis == 1 and layout == "NHWC" else axis
        result = relax.op.concat(parts, axis=place)
        return Image(self.builder_.emit(result), layout, static_shape(call))

    def _converted(self, value: relax.Expr, layout: str) -> relax.Expr:
        """Return a value in a layout, through one transform that later readers share."""
        image = self.images.get(value) if isinstance(value, relax.Var) else None
        if image is None:
            plain = self.visit_expr(value)
            if layout == "NCHW":
                return plain
            image = Image(plain, "NCHW", static_shape(value))
        if image.layout == layout:
            return image.var
        key = (value, layout)
        if key not in self.made:
            self.made[key] = self.builder_.emit(transformed(image, layout))
        return self.made[key]


def transformed(image: Image, layout: str) -> relax.Expr:
    """Return the expression that moves an image into another layout."""
    n, c, h, w = image.sizes
    if h == w == 1 or c == 1:
        return relax.op.reshape(image.var, shape_in(layout, n, c, h, w))
    if not block_of(image.layout) and not block_of(layout):
        axes = (0, 2, 3, 1) if layout == "NHWC" else (0, 3, 1, 2)
        return relax.op.permute_dims(image.var, axes)
    return relax.op.layout_transform(image.var, _index_map(image.layout, layout))


def _index_map(source: str, target: str) -> tvm.tirx.IndexMap:
    block = block_of(source)

    def move(n: object, *index: object) -> tuple[object, ...]:
        if block:
            outer, y, x, inner = index
            return _place(n, outer * block + inner, y, x, target)
        y, x, c = index if source == "NHWC" else (*index[1:], index[0])
        return _place(n, c, y, x, target)

    # The number of source axes must be readable from the signature.
    if block:
        return tvm.tirx.IndexMap.from_func(lambda n, a, b, c, d: move(n, a, b, c, d))
    return tvm.tirx.IndexMap.from_func(lambda n, a, b, c: move(n, a, b, c))


def _place(n: object, c: object, y: object, x: object, layout: str) -> tuple[object, ...]:
    block = block_of(layout)
    if block:
        return (n, c // block, y, x, c % block)
    return (n, y, x, c) if layout == "NHWC" else (n, c, y, x)


def _constant_like(arg: relax.Expr, like: Image) -> relax.Expr | None:
    """Return a constant that broadcasts against `like` in its layout."""
    array = constant_array(arg)
    if array.size == 1:
        return relax.const(array.reshape(()), dtype_name(arg))
    if array.ndim > 4:
        return None
    nchw = array.reshape((1,) * (4 - array.ndim) + array.shape)
    n, c, h, w = nchw.shape
    if c not in (1, like.sizes[1]):
        return None
    if like.layout == "NCHW":
        return relax.const(nchw)
    if like.layout == "NHWC":
        return relax.const(np.ascontiguousarray(nchw.transpose(0, 2, 3, 1)))
    block = block_of(like.layout)
    if c == 1:
        return relax.const(nchw.reshape(n, 1, h, w, 1))
    blocks = nchw.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2)
    return relax.const(np.ascontiguousarray(blocks))
