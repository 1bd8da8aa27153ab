"""A convolution's nest over kernel and tile, written out in the order of the pixels it reads.

Kernel and tile make hundreds of copies of one statement, and all passes of TVM and of this package
look at each of them. So the copies are as short as can be: conditions on the padding are decided
before, once for all copies where they can be, and a copy is a single statement in vectors. To LLVM
that is the same code as loops over lanes with their conditions; it takes a fifth of the time.

Where only running tells which rows of the kernel lie on the image, a loop over these stays: what is
written out for one row serves all rows at the upper and lower border.

Between its products a sum is a named value, and is stored once at the end: half of all accesses to
buffers less, each of which TVM's passes look at for long. LLVM keeps them in registers either way.

What is loaded is addressed by a constant behind a pointer (`_View`), which is computed once for all
copies: TVM's passes take a fifth of the time for an index that is a number.

Names for what is loaded would halve what TVM's passes take, but change the code of two 5x5 kernels:
stores to the stack of one are 190 instead of 117. Probably LLVM loads the kernel again where it
stops looking for equal loads, and keeps it where it has a name.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Any

import tvm
from tvm import ir, s_tir, tirx
from tvm_ffi import structural_equal

from tvm_blislike.model.directives import ByInput, Dot, Vector
from tvm_blislike.model.loop_names import Named
from tvm_blislike.schedules.lowering.rewrite import (
    at_directives,
    collect,
    constant,
    is_if,
    is_named,
    over_lanes,
    sequence,
    substitute,
    uses_any,
    without,
)

# The variables of a nest, in this order: row and column of the tile, and of the kernel.
_IH, _IW, _RY, _RX = range(4)
# Where a comparison holds, so many times a - b is at least so much.
_COMPARED = {tirx.LE: (-1, 0), tirx.LT: (-1, 1), tirx.GE: (1, 0), tirx.GT: (1, 1)}
# Conditions that the ranges of the loops decide need not be asked of each copy. Copies of edges
# define variables again: those get names of their own, or they would have two ranges.
_DECIDED = tvm.transform.Sequential(
    [s_tir.transform.ConvertSSA(), tirx.transform.StmtSimplify()],
)
_VECTORIZED = tvm.transform.Sequential(
    [tirx.transform.VectorizeLoop(True), tirx.transform.StmtSimplify()]
)


def written_out(body: tirx.Stmt, params: Sequence[Any]) -> tirx.Stmt:
    """Write out the nests of `ByInput` loops in the body of a function of `params`.

    The order of the sum into each output stays that of the kernel, so results do not change.
    """
    # A `Dot` wants its conditions: where none holds there would be no factors left.
    if all(Dot.of(loop) is None for loop in collect(body, tirx.For)):
        body = _through(_DECIDED, body, params)
    return at_directives(body, ByInput, _written_out)


def _through(passes: tvm.transform.Pass, body: tirx.Stmt, params: Sequence[Any] = ()) -> tirx.Stmt:
    mod = passes(tvm.IRModule({"main": tirx.PrimFunc(params, body)}))
    return mod["main"].body


def _written_out(loop: tirx.For, steps: ByInput) -> tirx.Stmt:
    loops = {}
    body: tirx.Stmt = loop
    while isinstance(body, tirx.For) and is_named(body, "ry", "rx", "mh", "mw"):
        loops[Named.of(body).name] = body
        body = body.body
    nest = [loops[axis] for axis in ("mh", "mw", "ry", "rx")]

    def pixel(at: tuple[int, ...]) -> tuple[int, ...]:
        ih, iw, ry, rx = at
        return (ih * steps.sh + ry * steps.dh, iw * steps.sw + rx * steps.dw, *at)

    order = sorted(itertools.product(*(range(int(f.extent)) for f in nest)), key=pixel)
    variables = [f.loop_var for f in nest]
    sums = _sums(body, variables)
    if sums is not None:
        return sums.row_by_row(loops, order) if sums.asks else sums.at_all(order)
    return sequence([substitute(body, dict(zip(variables, at, strict=True))) for at in order])


@dataclass(frozen=True)
class _Affine:
    """A sum of multiples of variables, of a number and perhaps of a rest without variables."""

    factors: tuple[int, ...]
    constant: int = 0
    rest: Any = None

    def plus(self, other: _Affine, times: int = 1) -> _Affine:
        factors = tuple(a + times * b for a, b in zip(self.factors, other.factors, strict=True))
        rest = self.rest
        if other.rest is not None:
            rest = other.rest * times if rest is None else rest + other.rest * times
        return _Affine(factors, self.constant + times * other.constant, rest)

    @property
    def is_of_rows(self) -> bool:
        """Whether it changes with the row of the kernel, and with no column."""
        return bool(self.factors[_RY]) and not (self.factors[_IW] or self.factors[_RX])

    def value(self, at: Sequence[int]) -> int:
        """Return what the variables and the number add up to."""
        return sum(map(mul, self.factors, at)) + self.constant


def _affine(expr: Any, variables: list[tirx.Var]) -> _Affine | None:
    """Return an expression as a sum of multiples of the variables, None where it is none."""
    number = constant(expr)
    if number is not None or not uses_any(expr, variables):
        zeros = (0,) * len(variables)
        return _Affine(zeros, rest=expr) if number is None else _Affine(zeros, number)
    if isinstance(expr, tirx.Var):
        return _Affine(tuple(int(expr.same_as(var)) for var in variables))
    if not isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul):
        return None
    a, b = _affine(expr.a, variables), _affine(expr.b, variables)
    if a is None or b is None:
        return None
    if not isinstance(expr, tirx.Mul):
        return a.plus(b, 1 if isinstance(expr, tirx.Add) else -1)
    times = constant(expr.b)
    return None if times is None else _Affine((0,) * len(variables)).plus(a, times)


@dataclass(frozen=True)
class _Term:
    """A load, or what is made of one; where all of `places` are equal it is the same."""

    value: Any
    places: list[_Affine]

    def place(self, at: Sequence[int]) -> tuple[int, ...]:
        """Return where it is loaded at values of the variables."""
        return (id(self), *[place.value(at) for place in self.moving])

    @functools.cached_property
    def moving(self) -> list[_Affine]:
        """Those of `places` that the variables change."""
        return [place for place in self.places if any(place.factors)]

    def made(self, _at: tuple[int, ...], values: Mapping[tirx.Var, int]) -> Any:
        """Return the term at values of the variables."""
        return substitute(self.value, values)


@dataclass(frozen=True)
class _View:
    """Contiguous elements at constants behind a pointer to the first that a nest reads.

    Parameters
    ----------
    buffer : Buffer
        The elements behind the pointer.
    declared : list of Stmt
        What defines both.
    offsets : _Affine
        Which of them a load begins with.
    lanes : int
        How many a load takes.
    """

    buffer: Any
    declared: list[tirx.Stmt]
    offsets: _Affine
    lanes: int

    def place(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """Return where it is loaded at values of the variables."""
        return (id(self), self.offsets.value(at))

    def made(self, at: tuple[int, ...], _values: Mapping[tirx.Var, int]) -> Any:
        """Return the load at values of the variables."""
        index = tirx.IntImm("int32", self.offsets.value(at))
        if self.lanes > 1:
            index = tirx.Ramp(index, 1, self.lanes)
        return tirx.BufferLoad(self.buffer, [index])


@dataclass(frozen=True)
class _Sums:
    """Products of two factors that a nest adds to vectors of sums where `conditions` are >= 0."""

    variables: list[tirx.Var]
    sums: _Term
    pixel: _Term
    weight: _Term
    conditions: list[_Affine]

    @property
    def asks(self) -> bool:
        """Whether only running tells where a condition holds."""
        return any(condition.rest is not None for condition in self.conditions)

    def row_by_row(
        self, loops: Mapping[str, tirx.For], order: Sequence[tuple[int, ...]]
    ) -> tirx.Stmt:
        """Return loops over the rows of the kernel that lie on the image, for each of a tile's."""
        ry = loops["ry"]
        of_rows = [c for c in self.conditions if c.factors[_RY]]
        inner = replace(self, conditions=[c for c in self.conditions if not c.factors[_RY]])
        parts = []
        for ih in range(int(loops["mh"].extent)):
            first, end = _range(of_rows, ih, int(ry.extent))
            pixels = [at for at in order if (at[_IH], at[_RY]) == (ih, 0)]
            body = inner.at_all(pixels, (_IH, _IW, _RX))
            extent = tirx.max(end - first, 0)
            parts.append(without(ry, ByInput, min=first, extent=extent, body=body))
        return sequence(parts)

    def at_all(
        self, order: Sequence[tuple[int, ...]], given: Sequence[int] = (_IH, _IW, _RY, _RX)
    ) -> tirx.Stmt:
        """Return the additions at values of the variables, or of those that are given.

        The sums are stored behind all of them.
        """
        added = [at for at in order if all(c.value(at) >= 0 for c in self.conditions)]
        known: dict[tuple[int, ...], Any] = {}
        # The last value of each sum, by the load of what is there before.
        totals: dict[Any, tirx.Var] = {}

        def values(at: tuple[int, ...]) -> dict[tirx.Var, int]:
            return {self.variables[axis]: at[axis] for axis in given}

        loaded = [_view(term, added, values) or term for term in (self.pixel, self.weight)]
        terms = (self.sums, *loaded)
        views = [term for term in loaded if isinstance(term, _View)]
        parts: list[tirx.Stmt] = [stmt for view in views for stmt in view.declared]
        for at in added:
            sums, pixel, weight = (_made(term, at, values(at), known) for term in terms)
            total = tirx.Var("total", sums.ty)
            before = totals.get(sums, sums)
            parts.append(tirx.Bind(total, tirx.Add(before, tirx.Mul(pixel, weight))))
            totals[sums] = total
        parts += [tirx.BufferStore(s.source, total, s.indices) for s, total in totals.items()]
        return sequence(parts) if parts else tirx.Evaluate(0)


def _made(
    term: _Term | _View, at: tuple[int, ...], values: Mapping[tirx.Var, int], known: dict[Any, Any]
) -> Any:
    place = term.place(at)
    if place not in known:
        known[place] = term.made(at, values)
    return known[place]


def _view(
    term: _Term,
    added: Sequence[tuple[int, ...]],
    values: Callable[[tuple[int, ...]], dict[tirx.Var, int]],
) -> _View | None:
    """Return a view of what a term loads, None where it is no load of contiguous elements."""
    load = term.value
    if not added or not isinstance(load, ir.TensorLoad):
        return None
    strides, lanes = _strides(load.source), _lanes(load)
    if strides is None or lanes is None:
        return None
    offsets = _Affine((0,) * len(term.places[0].factors))
    for place, stride in zip(term.places, strides, strict=True):
        offsets = offsets.plus(replace(place, rest=None), stride)
    # The first one, not what is in front of it: that may lie outside of the image.
    least = min(added, key=offsets.value)
    offsets = replace(offsets, constant=offsets.constant - offsets.value(least))
    last = load.indices[-1]
    first = [*load.indices[:-1], last.base if isinstance(last, tirx.Ramp) else last]
    pointer = tirx.BufferLoad(load.source, [substitute(i, values(least)) for i in first])
    elements = max(map(offsets.value, added)) + lanes
    dtype = load.source.dtype
    # Rows of pixels are aligned to no more than an element.
    view = tirx.decl_buffer(
        (elements,), dtype, load.source.name, data_alignment=tvm.DataType(dtype).bits // 8
    )
    first = tirx.Var(f"{load.source.name}_first", tirx.address_of(pointer).ty)
    declared = [tirx.Bind(first, tirx.address_of(pointer)), tirx.DeclBuffer(view, data=first)]
    return _View(view, declared, offsets, lanes)


def _lanes(load: ir.TensorLoad) -> int | None:
    """Return how many elements one behind the other a load takes; None if they lie elsewhere."""
    *outer, last = load.indices
    if isinstance(last, tirx.Ramp) and constant(last.stride) == 1:
        lanes, last = int(last.lanes), last.base
    else:
        lanes = 1
    return lanes if all(tvm.DataType(i.ty.dtype).lanes == 1 for i in (*outer, last)) else None


def _strides(buffer: Any) -> list[int] | None:
    """Return how far apart neighbours on each axis of a buffer are; None if only running tells."""
    sizes = [constant(size) for size in buffer.shape]
    given = [constant(stride) for stride in buffer.strides]
    if None in sizes or None in given:
        return None
    return given or [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def _range(conditions: Sequence[_Affine], ih: int, rows: int) -> tuple[Any, Any]:
    """Return the first of the kernel's rows where conditions hold, and the one behind the last."""
    first, end = tirx.IntImm("int32", 0), tirx.IntImm("int32", rows)
    for c in conditions:
        slope, at_first = c.factors[_RY], c.constant + c.factors[_IH] * ih
        least = at_first if c.rest is None else c.rest + at_first
        if slope > 0:
            first = tirx.max(first, tirx.floordiv(slope - 1 - least, slope))
        else:
            end = tirx.min(end, tirx.floordiv(least, -slope) + 1)
    return first, end


def _sums(body: tirx.Stmt, variables: list[tirx.Var]) -> _Sums | None:
    """Return what a nest's body adds up, None where it is not products of two factors."""
    store = _in_vectors(body)
    if store is None or not isinstance(store.value, tirx.Add):
        return None
    so_far, product = store.value.a, store.value.b
    conditions: list[_Affine] | None = []
    if is_if(product):
        conditions, product = _conditions(product.args[0], variables), product.args[1]
    if conditions is None or not isinstance(product, tirx.Mul):
        return None
    if any(c.rest is not None and not c.is_of_rows for c in conditions):
        return None
    if not structural_equal(so_far, tirx.BufferLoad(store.buffer, store.indices)):
        return None
    terms = [_term(each, variables) for each in (so_far, product.a, product.b)]
    return None if None in terms else _Sums(variables, *terms, conditions)


def _in_vectors(body: tirx.Stmt) -> tirx.BufferStore | None:
    """Return the store of a loop over lanes that are one vector."""
    vector = Vector.of(body) if isinstance(body, tirx.For) else None
    if vector is None or int(body.extent) > vector.lanes:
        return None
    lanes = int(body.extent)
    if lanes & (lanes - 1):
        return None
    lane = tirx.Var("lane", "int32")
    inner = substitute(body.body, {body.loop_var: lane + body.min if int(body.min) else lane})
    if lanes == 1:
        store = substitute(inner, {lane: 0})
    else:
        store = _through(_VECTORIZED, over_lanes(lane, lanes, inner))
    return store if isinstance(store, tirx.BufferStore) else None


def _term(value: Any, variables: list[tirx.Var]) -> _Term | None:
    """Return a term with its places, None where it depends on the variables in other ways."""
    loads = collect(value, ir.TensorLoad)
    indices = [index for load in loads for index in load.indices]
    places = [_affine(index, variables) for index in indices]
    only_there = _uses(value, variables) == sum(_uses(index, variables) for index in indices)
    return _Term(value, places) if loads and only_there and None not in places else None


def _uses(expr: Any, variables: list[tirx.Var]) -> int:
    return sum(var in variables for var in collect(expr, tirx.Var))


def _conditions(condition: Any, variables: list[tirx.Var]) -> list[_Affine] | None:
    """Return what has to be 0 or more where a condition holds, None if more has to be known."""
    if isinstance(condition, tirx.And):
        a, b = (_conditions(each, variables) for each in (condition.a, condition.b))
        return None if a is None or b is None else a + b
    if type(condition) not in _COMPARED:
        return None
    of_a, less = _COMPARED[type(condition)]
    a, b = (_affine(each, variables) for each in (condition.a, condition.b))
    if a is None or b is None:
        return None
    least = _Affine((0,) * len(variables), -less)
    return [least.plus(a, of_a).plus(b, -of_a)]
