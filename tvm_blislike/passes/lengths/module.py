"""One module for every size of a range.

A model goes up to fused kernels at three sizes (`samples`): two primes, which no other number of
the model equals by chance, and the size that products are scheduled for. Where these differ in
numbers alone that follow from the size, `main` gets a variable for it. Memory is planned for the
largest size. Where few rows and many want other products, each part of the range has a function
(`ranges`), `main` the larger sizes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import tvm
from tvm import relax, tirx

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.attention.blocks import FEW_ROWS, Few, blocks_of
from tvm_blislike.errors import SizesMeetError
from tvm_blislike.model.attention import Attention
from tvm_blislike.model.marks import ATTENTION, DEFAULT_RULE, ROW_AXES
from tvm_blislike.model.variant import MAIN, function_name
from tvm_blislike.passes.lengths.imports import require_alike
from tvm_blislike.passes.lengths.products import (
    Product,
    chosen_at,
    chosen_for,
    opens,
    pinned,
    products_of,
)
from tvm_blislike.passes.lengths.ranges import ranges_of
from tvm_blislike.passes.lengths.rows import by_rows
from tvm_blislike.passes.lengths.samples import Affine, at, data_of, is_open, shape_of
from tvm_blislike.passes.open_sizes import Choose, Fuse, allowing, are_same, require_straight
from tvm_blislike.passes.plan import Plan
from tvm_blislike.passes.schedule import note_in
from tvm_blislike.schedules.attention.kernel import kernel
from tvm_blislike.tvm_seams import (
    bindings,
    constant_array,
    dtype_name,
    functions,
    is_constant,
    op_name,
    static_shape,
)
from tvm_blislike.tvm_seams.relax_ir import UPPER_BOUNDS

# The variable of the size.
SIZE = "size"
# Sizes that a model is compared at.
_PRIMES = (13, 17, 29, 31, 61, 67, 113, 127)


@dataclass(frozen=True)
class Lengths:
    """Sizes that stay open.

    Parameters
    ----------
    least, most : int
        The range.
    load : callable
        (size) to the imported module of one.
    """

    least: int
    most: int
    load: Callable[[int], tvm.IRModule]


def of_lengths(
    lengths: Lengths, strategy: Strategy, choose: Choose, fuse: Fuse
) -> tuple[tvm.IRModule, Plan]:
    """Return the module of fused kernels whose functions take any size, and its plan.

    Parameters
    ----------
    choose : callable
        Returns the plan of an imported module.
    fuse : callable
        Returns fused kernels, reshapes of which are views, and their plan.

    Raises
    ------
    SizesMeetError
        When a part of the model cannot have an open size; the text says which.
    """
    sizes, load = range(lengths.least, lengths.most + 1), functools.cache(lengths.load)
    compared, strategy = (*_primes_below(lengths.most), lengths.most), allowing(strategy, opens)
    mods = [load(size) for size in compared]
    smallest = (*reversed(compared[:2]), lengths.least)
    require_alike([mods[1], mods[0], load(lengths.least)], smallest)
    products = products_of([choose(mod, strategy) for mod in mods], compared)
    ranges, builder, plans = ranges_of(products, sizes, strategy), relax.BlockBuilder(), []
    # `main` first: its kernels keep their names.
    for number in reversed(range(len(ranges))):
        name = MAIN if number == len(ranges) - 1 else function_name(number)
        chosen, size = chosen_for(products, ranges[number], strategy)
        part = _Part(name, ranges[number], size, chosen)
        plans.append(part.emitted(builder, load, strategy, fuse))
    plan, *others = plans
    for other in others:
        plan.take_over(other)
    return builder.get(), replace(plan, notes=_notes(ranges, products))


def functions_of(mod: tvm.IRModule) -> list[tuple[str, int]]:
    """Return the functions of a module of lengths, each with the largest one that it is for."""
    found = [
        (g.name_hint, f.attrs[UPPER_BOUNDS]) for g, f in functions(mod) if UPPER_BOUNDS in f.attrs
    ]
    return sorted(((name, int(of[SIZE])) for name, of in found), key=lambda each: each[1])


def _primes_below(most: int) -> tuple[int, ...]:
    primes = [prime for prime in _PRIMES if prime < most][-2:]
    if len(primes) < 2:
        raise SizesMeetError(f"sizes up to {most} are too few to compare")
    return tuple(primes)


def _notes(ranges: Sequence[range], products: Sequence[object]) -> tuple[str, ...]:
    if len(ranges) == 1:
        what = "one function and kernels for all of them"
    else:
        what = f"a function and kernels for {' and for '.join(map(_shown, ranges))}"
    return (
        f"sizes {_shown(range(ranges[0][0], ranges[-1][-1] + 1))}: {what}, which count rows at run "
        f"time ({len(products)} products)",
    )


def _shown(sizes: range) -> str:
    return f"{sizes[0]} to {sizes[-1]}"


@dataclass(frozen=True)
class _Part:
    """A range of sizes.

    Parameters
    ----------
    name : str
        Of its function.
    sizes : range
        Which it takes.
    scheduled : int
        The size that its products are scheduled for.
    products : sequence of Product
        With what is chosen for all sizes.
    """

    name: str
    sizes: range
    scheduled: int
    products: Sequence[Product]

    def emitted(
        self,
        builder: relax.BlockBuilder,
        load: Callable[[int], tvm.IRModule],
        strategy: Strategy,
        fuse: Fuse,
    ) -> Plan:
        """Emit its function and kernels, and return their plan."""
        most = self.sizes[-1]
        primes = _primes_below(most)
        sizes = [*primes, self.scheduled]
        same = pinned(strategy, self.products, (*primes, most, self.scheduled))
        made = [fuse(load(size), same) for size in sizes]
        plan = made[-1][1]
        largest = made[-1][0] if self.scheduled == most else fuse(load(most), same)[0]
        configs = {choice.workload: choice.config for choice in plan.choices.values()}
        for choice in chosen_at(self.products, self.scheduled, configs):
            plan.note_anew(choice)
        mods = [mod for mod, _ in made]
        _Joined(mods, sizes, largest, self.sizes[0], most, strategy, builder).emit(self.name)
        return plan


@dataclass
class _Joined:
    """Several modules that become one.

    Parameters
    ----------
    mods : sequence of IRModule
        Of fused kernels, at each of `sizes`.
    sizes : sequence of int
        The last one is that of the kernels with products.
    largest : IRModule
        Of the largest size, which has all rows of constants.
    least, most : int
        The smallest and the largest size that may come.
    builder : relax.BlockBuilder
        Of the module that gets the function.
    """

    mods: Sequence[tvm.IRModule]
    sizes: Sequence[int]
    largest: tvm.IRModule
    least: int
    most: int
    strategy: Strategy
    builder: relax.BlockBuilder
    size: tirx.Var = field(default_factory=lambda: tirx.Var(SIZE, "int64"))
    values: dict[relax.Var, relax.Expr] = field(default_factory=dict)
    made: dict[tuple[str, ...], tvm.ir.GlobalVar] = field(default_factory=dict)

    def emit(self, name: str) -> None:
        """Emit the function of any size, and its kernels."""
        mods = (self.largest, *self.mods)
        mains = [mod["main"] for mod in mods]
        for mod in mods:
            require_straight(mod)
        params = [
            relax.Var(each[-1].name, relax.TensorType(self._shape(each), dtype_name(each[-1])))
            for each in zip(*(main.params for main in mains), strict=True)
        ]
        for main in mains:
            self.values.update(zip(main.params, params, strict=True))
        attrs = {**dict(mains[-1].attrs), UPPER_BOUNDS: {SIZE: self.most}}
        with self.builder.function(name, params, attrs=attrs):
            with self.builder.dataflow():
                self._body([bindings(main) for main in mains])
                results = self._operand([main.body.body for main in mains])
            self.builder.emit_func_output(results)

    def _body(self, each: Sequence[Sequence[relax.VarBinding]]) -> None:
        if len({len(found) for found in each}) > 1:
            raise SizesMeetError("the model has other operators at another size")
        for parts in zip(*each, strict=True):
            value = self._value([part.value for part in parts])
            outside = not isinstance(parts[-1].var, relax.DataflowVar)
            var = self.builder.emit_output(value) if outside else self.builder.emit(value)
            self.values.update({part.var: var for part in parts})

    def _shape(self, exprs: Sequence[relax.Expr]) -> list[object]:
        shapes = [static_shape(expr) for expr in exprs[1:]]
        if None in shapes:
            raise SizesMeetError("a result has a size that follows from values")
        return list(at(shape_of(shapes, self.sizes), self.size))

    def _value(self, values: Sequence[relax.Expr]) -> relax.Expr:
        last = values[-1]
        if len({op_name(value) for value in values}) > 1:
            raise SizesMeetError("the model has other operators at another size")
        if op_name(last) == "relax.call_tir":
            operands = [self._operand([value.args[1] for value in values])]
            out = relax.TensorType(self._shape(values), dtype_name(last))
            return relax.call_tir(self._kernel(values), *operands, out)
        if op_name(last) == "relax.reshape":
            data = self._operand([value.args[0] for value in values])
            return relax.op.reshape(data, self._shape(values))
        if not isinstance(last, relax.Call):
            return self._operand(values)
        raise SizesMeetError(f"{op_name(last) or 'a call'} is not known to have an open size")

    def _operand(self, exprs: Sequence[relax.Expr]) -> relax.Expr:
        last = exprs[-1]
        if isinstance(last, relax.Var):
            return self.values[last]
        if isinstance(last, relax.Tuple):
            return relax.Tuple(
                [self._operand(f) for f in zip(*(e.fields for e in exprs), strict=True)]
            )
        if isinstance(last, relax.TupleGetItem):
            return relax.TupleGetItem(self._operand([e.tuple_value for e in exprs]), last.index)
        if is_constant(last):
            return self._constant(exprs)
        raise SizesMeetError("an operand is neither a tensor nor a constant")

    def _constant(self, exprs: Sequence[relax.Expr]) -> relax.Expr:
        """Return a constant; of one that grows with the size, as many rows of the largest."""
        whole, *arrays = [constant_array(expr) for expr in exprs]
        shape = shape_of([array.shape for array in arrays], self.sizes)
        if not is_open(shape):
            if not are_same([whole, *arrays]):
                raise SizesMeetError("a constant follows from the size")
            return exprs[0]
        axis = _open_axis(shape)
        if any(size != 1 for size in whole.shape[:axis]) or not all(
            are_same([array, whole.take(range(array.shape[axis]), axis)]) for array in arrays
        ):
            raise SizesMeetError("a constant follows from the size, and is no table of rows")
        sizes = at(shape, self.size)
        view = relax.op.memory.view(exprs[0], sizes, dtype_name(exprs[0]), 0)
        return self.builder.emit(relax.op.memory.ensure_zero_offset(self.builder.emit(view)))

    def _kernel(self, calls: Sequence[relax.Call]) -> tvm.ir.GlobalVar:
        """Return the kernel of any size that calls at some sizes become."""
        gvars = [call.args[0] for call in calls[1:]]
        key = tuple(gvar.name_hint for gvar in gvars)
        if key not in self.made:
            funcs = [mod[gvar] for mod, gvar in zip(self.mods, gvars, strict=True)]
            try:
                func = self._open(funcs)
            except SizesMeetError as error:
                raise SizesMeetError(f"{key[-1]} cannot have an open size: {error}") from error
            self.made[key] = self.builder.add_func(func, key[-1])
        return self.made[key]

    def _open(self, funcs: Sequence[tirx.PrimFunc]) -> tirx.PrimFunc:
        params = list(zip(*(func.params for func in funcs), strict=True))
        shapes = [
            shape_of([[int(size) for size in param.shape] for param in each], self.sizes)
            for each in params
        ]
        last = funcs[-1]
        if not any(is_open(shape) for shape in shapes):
            return last
        if ATTENTION in (last.attrs or {}):
            return self._attention(funcs, shapes)
        if note_in(last) is not None:
            axes = [_open_axis(shape) for shape in shapes]
            return last.with_attr(ROW_AXES, axes)
        return by_rows(funcs[:2], self.strategy.core, self.strategy.threads)

    def _attention(
        self, funcs: Sequence[tirx.PrimFunc], shapes: Sequence[Sequence[object]]
    ) -> tirx.PrimFunc:
        rows, threads = tirx.Var("rows", "int32"), self.strategy.threads
        data = [json.loads(func.attrs[ATTENTION]) for func in funcs]
        attention = Attention.from_data(data_of(data, self.sizes, rows))
        largest = self._attention_at(data, self.most)
        blocks = blocks_of(largest, self.strategy.core, threads)
        *operands, result = [at(shape, rows) for shape in shapes]
        has_few = self.least < FEW_ROWS < self.most and not isinstance(attention.rows, int)
        few = self._few(data) if has_few else None
        func = kernel(attention, operands, result, blocks, threads, few)
        notes = {**dict(funcs[-1].attrs), DEFAULT_RULE: f"up to {largest}; {blocks}"}
        return func.without_attr("global_symbol").with_attr(notes)

    def _few(self, data: Sequence[object]) -> Few:
        few = self._attention_at(data, FEW_ROWS)
        return Few(few.rows, blocks_of(few, self.strategy.core, self.strategy.threads))

    def _attention_at(self, data: Sequence[object], size: int) -> Attention:
        return Attention.from_data(data_of(data, self.sizes, size))


def _open_axis(shape: Sequence[object]) -> int:
    found = [axis for axis, number in enumerate(shape) if isinstance(number, Affine)]
    if len(found) > 1:
        raise SizesMeetError("a tensor has the open size along two axes")
    return found[0] if found else -1
