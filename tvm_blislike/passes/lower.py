"""Emit a module as it was planned (`plan`): implementations' calls, and images in their layouts.

Where a reader wants another layout than the writer left, one transform is put, and shared by all
who want the same.

TVM's own ConvertLayout is not used: it takes two layouts of equal rank for permutations of each
other (NHWC of 24 channels beside NCHW16c) and cannot mix blocks in one graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.model.choice import Choice
from tvm_blislike.model.layouts import NCHW, Layout, with_rank
from tvm_blislike.model.marks import WORDS_OF_SIGNS
from tvm_blislike.operators import operator_of
from tvm_blislike.passes.binary.operators import words_along
from tvm_blislike.passes.constants import TIDY
from tvm_blislike.passes.definitions import Definitions, definitions
from tvm_blislike.passes.image_operators import (
    BINARY,
    POOLS,
    REDUCTIONS,
    UNARY,
    image_inputs,
    is_flattening,
    moved,
    place,
)
from tvm_blislike.passes.legalize import emit_call, reshaped
from tvm_blislike.passes.lookups import is_lookup
from tvm_blislike.passes.plan import Plan
from tvm_blislike.passes.shuffles import joined_for_turns, shuffle_of, shuffled
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    functions,
    is_constant,
    op_name,
    static_shape,
)


def lower(mod: tvm.IRModule, plan: Plan) -> tvm.IRModule:
    """Return the module whose planned layers are calls of PrimFuncs, in the planned layouts."""
    with definitions(mod, plan) as made:
        lowering = _Lowering(mod, plan, made)
        for gvar, func in functions(mod):
            lowering.builder_.update_func(gvar, lowering.visit_expr(func))
    return TIDY(lowering.builder_.get())


@dataclass(frozen=True)
class LaidOut:
    """A value that lies in memory in another layout than NCHW.

    Parameters
    ----------
    var : relax.Var
        The value in that layout.
    layout : Layout
        Where its elements lie.
    sizes : tuple of int
        (n, c, h, w).
    """

    var: relax.Var
    layout: Layout
    sizes: tuple[int, int, int, int]


@mutator
class _Lowering(PyExprMutator):
    """Re-emit each binding as it was planned."""

    def __init__(self, mod: tvm.IRModule, plan: Plan, definitions: Definitions) -> None:
        super().__init__(mod)
        self.plan, self.definitions = plan, definitions
        self.images: dict[relax.Var, LaidOut] = {}
        self.made: dict[tuple[relax.Var, Layout], relax.Var] = {}
        self.joined: dict[relax.Var, list[relax.Expr]] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        # What is emitted in one block cannot be read in another.
        self.images, self.made = {}, {}
        self.joined = joined_for_turns(block.bindings)
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        emitted = self._emit(binding)
        if emitted is None:
            super().visit_var_binding_(binding)
            return
        var, is_image = binding.var, isinstance(emitted, LaidOut)
        if is_image:
            self.images[var] = emitted
        if not isinstance(var, relax.DataflowVar):
            # Outside the block nobody knows of layouts.
            value = self._converted(var, NCHW) if is_image else emitted
            dataflow = self.builder_.current_block_is_dataflow()
            self.set_var_remap(var, self.builder_.emit_output(value) if dataflow else value)
        elif not is_image:
            self.set_var_remap(var, emitted)

    def visit_dataflow_var_(self, var: relax.Var) -> relax.Expr:
        """Return NCHW to any reader that does not know of layouts."""
        if var in self.images:
            return self._converted(var, NCHW)
        return super().visit_dataflow_var_(var)

    def _emit(self, binding: relax.VarBinding) -> LaidOut | relax.Var | None:
        call, layout = binding.value, self.plan.layouts.get(binding.var)
        if binding.var in self.plan.choices:
            choice = self.plan.choices[binding.var]
            return (
                self._on_images(binding, choice)
                if choice.workload.images
                else self._plain(binding, choice)
            )
        if layout is None or layout == NCHW:
            return self._flattened(call) if is_flattening(call) else None
        images = image_inputs(call)
        sources = {image: self._converted(image, layout) for image in images}
        result = self._in_layout(call, sources, layout)
        sizes = static_shape(call)
        return None if result is None else LaidOut(self.builder_.emit(result), layout, sizes)

    def _on_images(self, layer: relax.VarBinding, choice: Choice) -> LaidOut | relax.Var:
        """Emit a layer that reads an image and makes one."""
        call = layer.value
        reads, writes = map(Layout, choice.layouts)
        given, wanted = Layout(call.attrs.data_layout), Layout(call.attrs.out_layout)
        source, operand = call.args
        sizes, result_sizes = choice.workload.images
        if given == NCHW:
            data = self._converted(source, reads)
        else:
            data = self._moved(LaidOut(self.visit_expr(source), given, sizes), reads)
        result = self._called(choice, data, self.visit_expr(operand), layer)
        image = LaidOut(self.builder_.emit(result), writes, result_sizes)
        return image if wanted == NCHW else self._moved(image, wanted)

    def _plain(self, layer: relax.VarBinding, choice: Choice) -> relax.Var:
        """Emit a layer whose operands have no layouts."""
        builder, call = self.builder_, layer.value
        data, operand = map(self.visit_expr, call.args)
        shapes = operator_of(choice.workload).call_shapes(choice.workload)
        data, operand = map(partial(reshaped, builder), (data, operand), shapes)
        result = self._called(choice, data, operand, layer)
        return builder.emit(reshaped(builder, builder.normalize(result), static_shape(call)))

    def _called(
        self, choice: Choice, data: relax.Expr, operand: relax.Expr, layer: relax.VarBinding
    ) -> relax.Expr:
        packed = self.definitions.packed(self.builder_, layer.var, choice, operand)
        func = self.definitions.primfunc(choice, static_shape(data), packed)
        name = f"{choice.config.implementation}_{op_name(layer.value).rpartition('.')[2]}"
        return emit_call(self.builder_, func, name, data, packed, choice.workload.types.out)

    def _moved(self, image: LaidOut, layout: Layout) -> relax.Var:
        if image.layout == layout:
            return image.var
        return self.builder_.emit(transformed(image, layout))

    def _flattened(self, call: relax.Call) -> relax.Var | None:
        """A 1x1 image becomes a vector: all layouts have the same order in memory."""
        source = self.images.get(call.args[0])
        if source is None:
            return None
        return self.builder_.emit(relax.op.reshape(source.var, static_shape(call)))

    def _in_layout(
        self, call: relax.Call, sources: dict[relax.Expr, relax.Expr], layout: Layout
    ) -> relax.Expr | None:
        """Return the call on images in another layout; None where it cannot be had."""
        name = op_name(call)
        if name in UNARY or name in BINARY:
            args = [sources[a] if a in sources else self._other(a, layout) for a in call.args]
            return relax.Call(call.op, args, call.attrs)
        if name == "relax.concat":
            parts = [sources[field] for field in call.args[0].fields]
            axis = place(int(call.attrs.axis or 0), layout)
            return relax.op.concat(parts, axis=layout.channel_axis if axis is None else axis)
        if is_lookup(call):
            return relax.Call(call.op, [call.args[0], sources[call.args[1]]], call.attrs)
        source = sources[call.args[0]]
        if shuffle_of(call) is not None:
            parts = self._parts(call.args[0], layout)
            return shuffled(self.builder_, call, parts or [source], layout)
        if name == WORDS_OF_SIGNS:
            return words_along(call, source, layout.channel_axis)
        if name in POOLS:
            return _pool(call, source, layout)
        if name in REDUCTIONS:
            first = layout.height_axis
            operator = getattr(relax.op, name.removeprefix("relax."))
            return operator(source, axis=[first, first + 1], keepdims=True)
        return moved(call, source, layout)

    def _parts(self, image: relax.Expr, layout: Layout) -> list[relax.Expr]:
        """Return what a shuffled image is joined of, in a layout; nothing where it is to be had."""
        parts = self.joined.get(image, [])
        if any(static_shape(part)[1] % (layout.block or 1) for part in parts):
            return []
        return [self._converted(part, layout) for part in parts]

    def _other(self, arg: relax.Expr, layout: Layout) -> relax.Expr:
        """Return an operand that is no image: a constant, or an argument of the operator."""
        return _constant_like(arg, layout) if is_constant(arg) else self.visit_expr(arg)

    def _converted(self, value: relax.Expr, layout: Layout) -> relax.Expr:
        """Return a value in a layout, through one transform that later readers share."""
        image = self.images.get(value) if isinstance(value, relax.Var) else None
        if image is None:
            plain = self.visit_expr(value)
            if layout == NCHW:
                return plain
            image = LaidOut(plain, NCHW, static_shape(value))
        if image.layout == layout:
            return image.var
        key = (value, layout)
        if key not in self.made:
            self.made[key] = self.builder_.emit(transformed(image, layout))
        return self.made[key]


def _pool(call: relax.Call, source: relax.Expr, layout: str) -> relax.Expr:
    operator = getattr(relax.op.nn, op_name(call).removeprefix("relax.nn."))
    attrs = call.attrs
    return operator(
        source,
        pool_size=attrs.pool_size,
        strides=attrs.strides,
        padding=attrs.padding,
        dilation=attrs.dilation,
        ceil_mode=attrs.ceil_mode,
        count_include_pad=attrs.count_include_pad,
        layout=layout,
    )


def transformed(image: LaidOut, layout: Layout) -> relax.Expr:
    """Return the expression that moves an image into another layout."""
    source, (_, c, h, w) = image.layout, image.sizes
    if h == w == 1 or c == 1:
        return relax.op.reshape(image.var, layout.shape(*image.sizes))
    if not source.block and not layout.block:
        return relax.op.permute_dims(image.var, layout.ordered(*source.in_nchw(0, 1, 2, 3)))
    moved_to = tvm.tirx.IndexMap.from_func(
        lambda *index: layout.index(*source.element(*index)), source.rank
    )
    return relax.op.layout_transform(image.var, moved_to)


def _constant_like(arg: relax.Expr, layout: Layout) -> relax.Expr:
    """Return a constant of at most 4 axes that broadcasts against an image in a layout."""
    array, dtype = constant_array(arg), dtype_name(arg)
    if array.size == 1:
        return constant(array.reshape(()), dtype)
    nchw = with_rank(array, 4)
    # One number for all channels has no blocks.
    whole = layout.block and nchw.shape[1] == 1
    return constant(nchw[..., None] if whole else layout.packed(nchw), dtype)
