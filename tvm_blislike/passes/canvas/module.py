"""One module for images of every height and width of some ranges.

A model goes up to fused kernels on a canvas, the largest sizes or somewhat larger ones: there each
height and width that follows from the image's has a number of its own. `main` copies the image onto
the canvas, calls the kernels, which are told all extents, and copies results off it. What lies on
the canvas beyond an image is whatever memory has, but for the margins that a kernel reads.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.errors import SizesMeetError
from tvm_blislike.model.canvas import OnCanvas
from tvm_blislike.model.marks import CANVAS
from tvm_blislike.model.variant import MAIN
from tvm_blislike.passes.canvas import borders
from tvm_blislike.passes.canvas.axes import OpenAxes, OpenKernel
from tvm_blislike.passes.canvas.choices import suited
from tvm_blislike.passes.canvas.conditions import with_open_counts, with_open_ends
from tvm_blislike.passes.canvas.extents import Clash, Extents, OpenSize, enter_extents
from tvm_blislike.passes.canvas.kernels import Kernel, Kernels
from tvm_blislike.passes.canvas.margins import may_be_on_canvas, pads_what_it_makes
from tvm_blislike.passes.open_sizes import Choose, Fuse, allowing, require_straight
from tvm_blislike.passes.plan import Plan
from tvm_blislike.passes.schedule import note_in
from tvm_blislike.tvm_seams import bindings, dtype_name, op_name, static_shape
from tvm_blislike.tvm_seams.relax_ir import UPPER_BOUNDS

# Canvases that are tried, each a step larger than the one before.
_CANVASES = 12


@dataclass(frozen=True)
class Images:
    """Sizes of images that stay open.

    Parameters
    ----------
    values : sequence of sequence of int
        Of each open size, the values that it takes, in order.
    load : callable
        (a value of each size) to the imported module.
    """

    values: Sequence[Sequence[int]]
    load: Callable[[Sequence[int]], tvm.IRModule]

    def combinations(self) -> Iterator[dict[str, int]]:
        """Yield the values of all variables of `main`, the largest last."""
        for chosen in itertools.product(*self.values):
            yield {_variable(number): value for number, value in enumerate(chosen)}


def of_images(
    images: Images, strategy: Strategy, choose: Choose, fuse: Fuse
) -> tuple[tvm.IRModule, Plan]:
    """Return the module of fused kernels whose `main` takes images of any size, and its plan.

    Parameters
    ----------
    choose : callable
        Returns the plan of an imported module.
    fuse : callable
        Returns fused kernels, reshapes of which are views, and their plan.

    Raises
    ------
    SizesMeetError
        When a part of the model cannot have open sizes; the text says which.
    """
    sizes = [_open_size(number, values) for number, values in enumerate(images.values)]
    load = functools.cache(images.load)
    strategy = allowing(strategy, may_be_on_canvas)
    clash: Clash | None = None
    for samples in _samples(images.values, sizes):
        extents = Extents(sizes, samples)
        try:
            mods = [load(sample) for sample in samples]
            enter_extents(mods, extents)
            smaller = [{n[0]: n[1:] for n in found} for found in extents.found]
            suiting = suited(strategy, choose(mods[1], strategy), smaller, extents.kinds)
            fused, plan = fuse(mods[0], suiting)
            most = [values[-1] for values in images.values]
            mod = _OnCanvas(fused, plan, extents, most, strategy.threads).made()
        except Clash as error:
            clash = error
            continue
        return mod, replace(plan, notes=(*plan.notes, _note(images.values, samples[0])))
    raise SizesMeetError(f"no canvas tells all sizes apart: {clash}")


def _open_size(number: int, values: Sequence[int]) -> OpenSize:
    step = math.gcd(*(later - one for one, later in itertools.pairwise(values)))
    return OpenSize(_variable(number), values[0] % step, step)


def _variable(number: int) -> str:
    return f"size{number}"


def _samples(
    values: Sequence[Sequence[int]], sizes: Sequence[OpenSize]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield canvases, each with two other sizes: those of several axes differ as far as may be."""
    for number in range(_CANVASES):
        each = []
        for place, (known, size) in enumerate(zip(values, sizes, strict=True)):
            canvas = known[-1] + size.step * (number * (place + 1) + place)
            others = (known[len(known) // 2], known[0])
            apart = [*dict.fromkeys((canvas, *others, canvas + size.step, canvas + 2 * size.step))]
            each.append(apart[:3])
        yield tuple(zip(*each, strict=True))


def _note(values: Sequence[Sequence[int]], canvas: Sequence[int]) -> str:
    listed = " x ".join(f"{each[0]} to {each[-1]}" for each in values)
    return (
        f"images of {listed}: one function and kernels for all of them, which leave out tiles "
        f"beyond the image at run time (memory is that of {'x'.join(map(str, canvas))})"
    )


@dataclass
class _OnCanvas:
    """A module of fused kernels that becomes one of open sizes.

    Parameters
    ----------
    fused : IRModule
        Of the canvas.
    most : sequence of int
        The largest values that come.
    """

    fused: tvm.IRModule
    plan: Plan
    extents: Extents
    most: Sequence[int]
    threads: int
    builder: relax.BlockBuilder = field(default_factory=relax.BlockBuilder)
    values: dict[relax.Var, relax.Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_straight(self.fused)
        self.main = self.fused[MAIN]
        self.axes = OpenAxes.of_extents(self.extents)
        self.kernels = Kernels(self.fused, self.plan, self.axes)
        self.variables = [tirx.Var(size.name, "int64") for size in self.extents.sizes]
        self.by_number = self.extents.by_number(self.variables)
        # The place of each number among all extents.
        pairs = [(size, at) for size, found in enumerate(self.by_number) for at in found]
        self.places = {pair: place for place, pair in enumerate(pairs)}

    def made(self) -> tvm.IRModule:
        """Return the module."""
        params = [self._param(param) for param in self.main.params]
        bounds = dict(zip((v.name for v in self.variables), self.most, strict=True))
        attrs = {**dict(self.main.attrs), UPPER_BOUNDS: bounds}
        with self.builder.function(MAIN, params, attrs=attrs):
            with self.builder.dataflow():
                self._enter(params)
                for binding in bindings(self.main):
                    self.values[binding.var] = self.builder.emit(self._value(binding.value))
                results = self._results(self.main.body.body)
                results = self.builder.emit_output(results)
            self.builder.emit_func_output(results)
        return self.builder.get()

    def _param(self, param: relax.Var) -> relax.Var:
        """Return an input of open sizes; what else it has is as it was."""
        shape = static_shape(param)
        found = self.axes.of(shape)
        sizes = [
            self.variables[found[axis][0]] if axis in found else extent
            for axis, extent in enumerate(shape)
        ]
        return relax.Var(param.name, relax.TensorType(sizes, dtype_name(param)))

    def _enter(self, params: Sequence[relax.Var]) -> None:
        """Emit the extents and the copies of inputs onto the canvas."""
        pairs = list(zip(self.main.params, params, strict=True))
        images = [(old, new) for old, new in pairs if static_shape(new) is None]
        extents = [self.by_number[size][at] for size, at in self.places]
        buffers = [self._buffer(new) for _, new in images]
        func = borders.counted(buffers, extents)
        out = relax.TensorType([len(extents)], "int32")
        self.sizes = self._call(func, "extents", [new for _, new in images], out)
        for (old, new), buffer in zip(images, buffers, strict=True):
            shape = static_shape(old)
            axes = {axis: self.places[found] for axis, found in self.axes.of(shape).items()}
            margin = self.kernels.margin_of_input(old)
            func = borders.onto(buffer, shape, axes, len(extents), margin, self.threads)
            out = relax.TensorType(shape, dtype_name(old))
            self.values[old] = self._call(func, "onto_canvas", [new, self.sizes], out)
        self.values.update({old: new for old, new in pairs if static_shape(new) is not None})

    def _call(
        self, func: tirx.PrimFunc, name: str, args: Sequence[relax.Expr], out: Any
    ) -> relax.Var:
        gvar = self.builder.add_func(func, name)
        return self.builder.emit(relax.call_tir(gvar, list(args), out))

    def _buffer(self, var: relax.Var) -> tirx.Buffer:
        """Return a buffer for a tensor of open sizes, whose variables are its own."""
        return tirx.decl_buffer(list(var.ty.shape.values), dtype_name(var), var.name)

    def _value(self, value: relax.Expr) -> relax.Expr:
        if op_name(value) != "relax.call_tir":
            return (
                self._operand(value)
                if not isinstance(value, relax.Call)
                else relax.Call(
                    value.op, [self._operand(arg) for arg in value.args], value.attrs, value.ty_args
                )
            )
        name = value.args[0].name_hint
        kernel = self.kernels.known[name]
        args = [self._operand(arg) for arg in value.args[1].fields]
        gvar = self._added(name, kernel, len(args))
        return relax.call_tir(gvar, [*args, self.sizes] if kernel.is_open else args, value.ty)

    def _added(self, name: str, kernel: Kernel, inputs: int) -> tvm.ir.GlobalVar:
        if not kernel.is_open:
            return self.builder.add_func(kernel.func, name)
        sizes = tirx.decl_buffer((len(self.places),), "int32", "sizes")
        axes = [{axis: self.places[found] for axis, found in each.items()} for each in kernel.axes]
        axes.insert(inputs, {})
        margins = [self.kernels.margin(kernel, place) for place in range(len(kernel.axes))]
        margins.insert(inputs, None)
        canvas = OnCanvas(inputs, tuple(axes), tuple(margins), kernel.near)
        func = self._asking(kernel.opened, sizes)
        params = list(func.params)
        params.insert(inputs, sizes)
        made = tirx.PrimFunc(params, func.body, func.ret_type, func.attrs)
        return self.builder.add_func(made.with_attr(CANVAS, canvas.to_json()), name)

    def _asking(self, kernel: OpenKernel, sizes: tirx.Buffer) -> tirx.PrimFunc:
        """Return the function of a kernel with what it asks of an image at run time."""
        numbers, is_layer = self._places_by_number(), note_in(kernel.func) is not None
        if not is_layer:
            kernel = replace(kernel, func=with_open_counts(kernel, sizes, numbers))
        if is_layer or pads_what_it_makes(kernel):
            kernel = replace(kernel, func=with_open_ends(kernel, sizes, numbers))
        return kernel.func

    def _places_by_number(self) -> list[dict[int, int]]:
        places = enumerate(self.by_number)
        return [{at: self.places[size, at] for at in found} for size, found in places]

    def _operand(self, expr: relax.Expr) -> relax.Expr:
        if isinstance(expr, relax.Var):
            return self.values[expr]
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._operand(part) for part in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._operand(expr.tuple_value), expr.index)
        return expr

    def _results(self, expr: relax.Expr) -> relax.Expr:
        """Return what comes out, copied off the canvas."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._results(part) for part in expr.fields])
        value, shape = self._operand(expr), static_shape(expr)
        found = self.axes.of(shape) if shape is not None else {}
        if not found:
            return value
        sizes = [
            self.by_number[found[axis][0]][found[axis][1]] if axis in found else extent
            for axis, extent in enumerate(shape)
        ]
        own = [
            tirx.Var(f"n{axis}", "int64") if axis in found else e for axis, e in enumerate(shape)
        ]
        func = borders.off(shape, dtype_name(expr), len(self.places), own, self.threads)
        out = relax.TensorType(sizes, dtype_name(expr))
        return self._call(func, "off_canvas", [value, self.sizes], out)
