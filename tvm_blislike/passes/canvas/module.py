"""One module for images of every height and width of some ranges.

A model goes up to fused kernels on a canvas, the largest sizes or somewhat larger ones: there each
height and width that follows from the image's has a number of its own. `main` copies the image onto
the canvas, calls the kernels, which are told all extents, and copies results off it. What lies on
the canvas beyond an image is whatever memory has, but for the margins that a kernel reads.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.errors import SizesMeetError
from tvm_blislike.model.canvas import LOWEST, ZERO, Margin, OnCanvas
from tvm_blislike.model.marks import CANVAS, CONCAT
from tvm_blislike.model.variant import MAIN
from tvm_blislike.passes.canvas import borders
from tvm_blislike.passes.canvas.axes import open_axes
from tvm_blislike.passes.canvas.choices import Choose, suited
from tvm_blislike.passes.canvas.conditions import require_in_place, with_open_counts, with_open_ends
from tvm_blislike.passes.canvas.extents import Clash, Extents, OpenSize, enter_extents
from tvm_blislike.passes.canvas.margins import (
    Beyond,
    joined,
    may_be_on_canvas,
    of_default,
    of_layer,
    pads_what_it_makes,
)
from tvm_blislike.passes.plan import Plan
from tvm_blislike.passes.schedule import note_in
from tvm_blislike.schedules import all_implementations
from tvm_blislike.schedules.lowering.rewrite import collect
from tvm_blislike.tvm_seams import (
    bindings,
    dtype_name,
    functions,
    is_constant,
    op_name,
    static_shape,
)
from tvm_blislike.tvm_seams.relax_ir import UPPER_BOUNDS

# Rows beyond an image that a kernel reads at most where nothing says otherwise.
_NEAR = 8
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


Fuse = Callable[[tvm.IRModule, Strategy], tuple[tvm.IRModule, Plan]]


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
    strategy = _for_canvas(strategy)
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


def _for_canvas(strategy: Strategy) -> Strategy:
    """Return the strategy without implementations that compute images but need all of them."""
    every = all_implementations()
    kinds = {each.kind for each in every if may_be_on_canvas(each)}
    return strategy.leaving_out(
        each.name for each in every if each.kind in kinds and not may_be_on_canvas(each)
    )


def _open_size(number: int, values: Sequence[int]) -> OpenSize:
    steps = {later - one for one, later in itertools.pairwise(values)}
    step = functools.reduce(_divisor, steps)
    return OpenSize(_variable(number), values[0] % step, step)


def _variable(number: int) -> str:
    return f"size{number}"


def _divisor(one: int, other: int) -> int:
    while other:
        one, other = other, one % other
    return one


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
class _Kernel:
    """A kernel of the canvas.

    Parameters
    ----------
    func : PrimFunc
        Not scheduled.
    axes : list of dict
        For each parameter, open axes to the size that they follow from and their number.
    margins : dict
        By the place of a result, what its readers want beyond it.
    """

    func: tirx.PrimFunc
    axes: list[dict[int, tuple[int, int]]]
    margins: dict[int, list[Beyond | None]] = field(default_factory=lambda: defaultdict(list))

    @property
    def is_open(self) -> bool:
        return any(self.axes)


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
    kernels: dict[str, _Kernel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        main = self.fused[MAIN]
        names = [g.name_hint for g, _ in functions(self.fused)]
        if names != [MAIN] or len(main.body.blocks) != 1:
            raise SizesMeetError("the model has branches, loops or functions")
        self.main = main
        self.variables = [tirx.Var(size.name, "int64") for size in self.extents.sizes]
        self.by_number = self.extents.by_number(self.variables)
        self.numbers = [set(found) for found in self.by_number]
        self.kinds = self.extents.kinds
        self.samples = {numbers[0]: numbers for found in self.extents.found for numbers in found}
        # The place of each number among all extents.
        pairs = [(size, at) for size, found in enumerate(self.by_number) for at in found]
        self.places = {pair: place for place, pair in enumerate(pairs)}

    def made(self) -> tvm.IRModule:
        """Return the module."""
        self._enter_kernels()
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

    def _axes(self, shape: Sequence[int]) -> dict[int, tuple[int, int]]:
        found = open_axes(shape, self.numbers, self.kinds, self.extents.pairs)
        return dict(sorted(found.items()))

    # --- what kernels read ------------------------------------------------------------------

    def _enter_kernels(self) -> None:
        """Find out of each kernel where open sizes stand and what lies beyond its results."""
        makers: dict[relax.Var, tuple[_Kernel, int]] = {}
        self.inputs: dict[relax.Var, list[Beyond | None]] = defaultdict(list)
        for binding in bindings(self.main):
            call = binding.value
            if op_name(call) != "relax.call_tir":
                self._require_settled(call)
                continue
            kernel = self._kernel_of(call)
            if isinstance(binding.var.ty, relax.TupleType) and kernel.is_open:
                raise SizesMeetError(f"{call.args[0].name_hint} has several results")
            for place, operand in enumerate(call.args[1].fields):
                if not kernel.axes[place]:
                    continue
                margin = self._read_beyond(kernel, place, call)
                if operand in makers:
                    maker, result = makers[operand]
                    maker.margins[result].append(margin)
                else:
                    self.inputs[operand].append(margin)
            makers[binding.var] = kernel, len(call.args[1].fields)
        # Parts of a concatenation are written in its place: they have the margins of the whole.
        for binding in reversed(list(bindings(self.main))):
            kernel, result = makers.get(binding.var, (None, 0))
            if kernel is not None and CONCAT in (kernel.func.attrs or {}):
                for operand in binding.value.args[1].fields:
                    if operand in makers:
                        maker, place = makers[operand]
                        maker.margins[place] += kernel.margins[result]
                    else:
                        self.inputs[operand] += kernel.margins[result]

    def _require_settled(self, value: relax.Expr) -> None:
        """Raise where an open size goes through what is no kernel."""
        for expr in (value, *getattr(value, "args", ())):
            shape = static_shape(expr) if isinstance(expr.ty, relax.TensorType) else None
            if shape is not None and not is_constant(expr) and self._axes(shape):
                if not isinstance(value, relax.Var):
                    raise SizesMeetError(f"{op_name(value)} is not known to have open sizes")

    def _kernel_of(self, call: relax.Call) -> _Kernel:
        name = call.args[0].name_hint
        if name not in self.kernels:
            func = self.fused[call.args[0]]
            axes = []
            constants = [is_constant(arg) for arg in call.args[1].fields]
            for param, fixed in itertools.zip_longest(func.params, constants, fillvalue=False):
                shape = [int(size) for size in param.shape]
                if fixed:
                    self._require_no_image(name, shape)
                found = {} if fixed else self._axes(shape)
                if found and str(param.dtype) != "float32":
                    raise SizesMeetError(f"{name} has images of {param.dtype}")
                axes.append(found)
            if any(axes):
                require_in_place(func, name, self.samples)
            self.kernels[name] = _Kernel(func, axes)
        return self.kernels[name]

    def _require_no_image(self, name: str, shape: Sequence[int]) -> None:
        """Raise for a constant that has all open sizes, such as one number for each pixel."""
        image = [max(numbers & set(shape), default=0) for numbers in self.numbers]
        if len(shape) in (4, 5) and all(image) and _has(shape, image):
            raise SizesMeetError(f"{name} has a constant of the size of an image")

    def _read_beyond(self, kernel: _Kernel, place: int, call: relax.Call) -> Beyond | None:
        note = note_in(kernel.func)
        if note is None:
            axes = {axis: self.kinds[size] for axis, (size, _) in kernel.axes[place].items()}
            return of_default(kernel.func, place, axes, self.samples)
        choice = self.plan.noted(note)
        margin = of_layer(choice)
        shape = [int(size) for size in kernel.func.params[place].shape]
        image = [choice.workload.h, choice.workload.w]
        return (
            margin if [shape[axis] for axis in kernel.axes[place]] and _has(shape, image) else None
        )

    # --- the module -------------------------------------------------------------------------

    def _param(self, param: relax.Var) -> relax.Var:
        """Return an input of open sizes; what else it has is as it was."""
        shape = static_shape(param)
        found = self._axes(shape)
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
            axes = {a: self.places[found] for a, found in self._axes(static_shape(old)).items()}
            margin = self._margin(self.inputs[old], self._axes(static_shape(old)))
            shape = static_shape(old)
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
        kernel = self.kernels[name]
        args = [self._operand(arg) for arg in value.args[1].fields]
        gvar = self._added(name, kernel, len(args))
        return relax.call_tir(gvar, [*args, self.sizes] if kernel.is_open else args, value.ty)

    def _added(self, name: str, kernel: _Kernel, inputs: int) -> tvm.ir.GlobalVar:
        if not kernel.is_open:
            return self.builder.add_func(kernel.func, name)
        params = list(kernel.func.params)
        sizes = tirx.decl_buffer((len(self.places),), "int32", "sizes")
        params.insert(inputs, sizes)
        axes = [{axis: self.places[found] for axis, found in each.items()} for each in kernel.axes]
        axes.insert(inputs, {})
        margins = [
            self._margin(kernel.margins.get(place, ()), kernel.axes[place], kernel)
            for place in range(len(kernel.axes))
        ]
        margins.insert(inputs, None)
        canvas = OnCanvas(inputs, tuple(axes), tuple(margins), self._near(kernel))
        func = kernel.func
        made = tirx.PrimFunc(params, func.body, func.ret_type, func.attrs)
        numbers = self._places_by_number()
        if note_in(func) is None:
            made = with_open_counts(made, sizes, numbers)
        if note_in(func) is not None or pads_what_it_makes(func, self.samples):
            made = with_open_ends(made, sizes, numbers)
        return self.builder.add_func(made.with_attr(CANVAS, canvas.to_json()), name)

    def _places_by_number(self) -> list[dict[int, int]]:
        places = enumerate(self.by_number)
        return [{at: self.places[size, at] for at in found} for size, found in places]

    def _near(self, kernel: _Kernel) -> int:
        """Return how far beyond an image a kernel may read what it copies."""
        note = note_in(kernel.func)
        beyond = None if note is None else of_layer(self.plan.noted(note))
        return _NEAR if beyond is None else max(_NEAR, beyond.rows, beyond.columns)

    def _margin(
        self,
        wanted: Sequence[Beyond | None],
        axes: Mapping[int, tuple[int, int]],
        maker: _Kernel | None = None,
    ) -> Margin | None:
        """Return the margin for some readers; zeros are the lowest where nothing is below them."""
        if maker is not None and _is_nonnegative(maker.func):
            wanted = [
                b and replace(b, value=ZERO if b.value == LOWEST else b.value) for b in wanted
            ]
        beyond = joined(wanted)
        if beyond is None:
            return None
        by_kind = (beyond.columns, beyond.rows)
        reach = {axis: by_kind[self.kinds[size]] for axis, (size, _) in axes.items()}
        return Margin(reach, beyond.value)

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
        found = self._axes(shape) if shape is not None else {}
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


def _has(shape: Sequence[int], image: Sequence[int]) -> bool:
    return any(list(shape[at : at + 2]) == list(image) for at in range(len(shape) - 1))


def _is_nonnegative(func: tirx.PrimFunc) -> bool:
    """Whether the last stage of a kernel gives nothing below zero, as ReLU does."""
    stores = collect(func.body, tirx.BufferStore)
    value = stores[-1].value if stores else None
    if not isinstance(value, tirx.Max):
        return False
    return any(isinstance(e, tirx.FloatImm) and float(e.value) >= 0 for e in (value.a, value.b))
