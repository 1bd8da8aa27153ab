"""Which sizes of tensors follow from the open sizes of a model, and how.

A model on a canvas, its largest sizes, is all numbers. Here it is compared with itself at other
sizes: what differs follows from them, as TVM's own shape inference says when the inputs have
variables. Where that finds nothing, such as for a resized image, whose operator has the numbers,
an extent of an operand may be a whole factor or a constant away, or the same numbers stand
elsewhere. From then on a height on the canvas stands for one extent, and so does a width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, sym, tirx

from tvm_blislike.errors import SizesMeetError
from tvm_blislike.passes.open_sizes import are_same
from tvm_blislike.schedules.lowering.rewrite import constant, substitute, uses_any
from tvm_blislike.tvm_seams import bindings, constant_array, is_constant, op_name, static_shape

# Operators whose attributes are the size of their result.
_SIZED = ("relax.image.resize2d",)
# How these find a pixel, where that follows from the factor alone.
_BY_FACTORS = ("half_pixel", "pytorch_half_pixel", "asymmetric")
# The axes of an image: height and width are the last two.
_IMAGE = 4


class Clash(SizesMeetError):
    """Two extents have the same number on a canvas; another canvas may do."""


@dataclass(frozen=True)
class OpenSize:
    """A size that stays open: `base + step * n` for n from 1 on.

    Parameters
    ----------
    name : str
        Of the variable that holds the size.
    base, step : int
        The smallest number of its class, and what lies between two sizes.
    """

    name: str
    base: int
    step: int


@dataclass
class Extents:
    """What follows from open sizes, by its number on the canvas.

    Parameters
    ----------
    sizes : sequence of OpenSize
        What stays open.
    samples : sequence of sequence of int
        Their values at which a model is compared, the canvas first.
    found : list of dict
        For each size, the extents that follow from it: numbers at the samples to an expression of
        its variable in `steps`.
    kinds : list of int
        Of each size, how many axes of an image are behind it: 1 for a height, 0 for a width.
    """

    sizes: Sequence[OpenSize]
    samples: Sequence[Sequence[int]]
    steps: list[tirx.Var] = field(default_factory=list)
    found: list[dict[tuple[int, ...], Any]] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    # Height and width on the canvas of all tensors that have an extent.
    pairs: set[tuple[int, ...]] = field(default_factory=set)
    _analyzer: sym.Analyzer = field(default_factory=sym.Analyzer)

    def __post_init__(self) -> None:
        """Enter the sizes themselves."""
        for place, size in enumerate(self.sizes):
            # How many steps it is above its base: with it what is divided stays simple.
            var = tirx.Var(size.name, "int64")
            self._analyzer.bind(var, tvm.ir.Range.from_min_extent(_number(1), _number(1 << 20)))
            self.steps.append(var)
            numbers = tuple(sample[place] for sample in self.samples)
            self.found.append({numbers: var * size.step + size.base})

    def extent(self, numbers: tuple[int, ...], inferred: Any = None) -> Any:
        """Return the extent of some numbers at the samples, in `steps`; None for none.

        Parameters
        ----------
        inferred : Expr, optional
            What it may be.

        Raises
        ------
        Clash
            When these numbers stand for another one.
        """
        if inferred is not None and self.numbers(inferred) == numbers:
            return self._entered(numbers, self._analyzer.simplify(inferred))
        known = [found[numbers] for found in self.found if numbers in found]
        if len(known) > 1:
            raise Clash(f"{numbers[0]} is a height and a width")
        return known[0] if known else None

    def size_of(self, extent: Any) -> int:
        """Return which size an extent follows from."""
        used = [place for place, var in enumerate(self.steps) if uses_any(extent, [var])]
        if len(used) != 1:
            raise SizesMeetError(f"a size follows from several: {extent}")
        return used[0]

    def _entered(self, numbers: tuple[int, ...], extent: Any) -> Any:
        found = self.found[self.size_of(extent)]
        for other, known in found.items():
            if other[0] == numbers[0] and not self._analyzer.can_prove_equal(known, extent):
                raise Clash(f"{numbers[0]} would stand for {known} and for {extent}")
        return found.setdefault(numbers, extent)

    def numbers(self, extent: Any) -> tuple[int | None, ...]:
        """Return what an extent is at the samples; None where it does not follow from the sizes."""
        return tuple(self._at(extent, sample) for sample in self.samples)

    def _at(self, extent: Any, sample: Sequence[int]) -> int | None:
        steps = [(n - s.base) // s.step for n, s in zip(sample, self.sizes, strict=True)]
        known = dict(zip(self.steps, steps, strict=True))
        return constant(self._analyzer.simplify(substitute(extent, known)))

    def by_number(self, variables: Sequence[tirx.Var]) -> list[dict[int, Any]]:
        """Return, for each size, its extents by their numbers on the canvas, in its variable."""
        steps = {
            var: tirx.floordiv(of - size.base, _number(size.step))
            for var, of, size in zip(self.steps, variables, self.sizes, strict=True)
        }
        return [
            {
                numbers[0]: self._analyzer.simplify(substitute(extent, steps))
                for numbers, extent in found.items()
            }
            for found in self.found
        ]


def enter_extents(mods: Sequence[tvm.IRModule], extents: Extents) -> None:
    """Enter all extents of a model, given as imported at each of the samples.

    Raises
    ------
    SizesMeetError
        When something else follows from the sizes than how large tensors are; a `Clash` where
        another canvas may do.
    """
    mains = [mod["main"] for mod in mods]
    each = [list(bindings(main)) for main in mains]
    if len({len(found) for found in each}) > 1:
        raise SizesMeetError("the model has other operators at another size")
    extents.kinds = _kinds(mains[0], extents.samples[0])
    walk = _Walk(extents)
    for params in zip(*(main.params for main in mains), strict=True):
        walk.enter(params, None, "an input")
    for parts in zip(*each, strict=True):
        walk.follow([part.value for part in parts], [part.var for part in parts])


def _kinds(main: relax.Function, canvas: Sequence[int]) -> list[int]:
    """Return how many axes of an image are behind each size, by the inputs that have it."""
    kinds: dict[int, int] = {}
    for shape in map(static_shape, main.params):
        for size, extent in enumerate(canvas):
            axes = [axis for axis, each in enumerate(shape) if each == extent]
            if axes and (len(shape) != _IMAGE or len(axes) > 1 or axes[0] < _IMAGE - 2):
                raise SizesMeetError("an open size is neither height nor width of an image")
            if axes:
                kinds[size] = _IMAGE - 1 - axes[0]
    if len(kinds) < len(canvas) or len(set(kinds.values())) < len(kinds):
        raise SizesMeetError("an open size is neither height nor width of an image")
    return [kinds[size] for size in range(len(canvas))]


@dataclass
class _Walk:
    """The way through a model at all samples at once.

    Parameters
    ----------
    opened : dict
        Each variable of the canvas to one whose type has open sizes.
    """

    extents: Extents
    builder: relax.BlockBuilder = field(default_factory=relax.BlockBuilder)
    opened: dict[relax.Var, relax.Var] = field(default_factory=dict)

    def follow(self, values: Sequence[relax.Expr], results: Sequence[relax.Var]) -> None:
        """Enter the result of a binding."""
        first = values[0]
        name = op_name(first)
        if any(op_name(value) != name for value in values):
            raise SizesMeetError("the model has other operators at another size")
        if is_constant(first):
            _require_same_constants(values)
        inferred = self._operand(first).ty
        if isinstance(first, relax.Call):
            _require_alike(values, name)
            if name in _SIZED:
                _require_whole_factors(values)
            inferred = self._inferred(first) if name not in _SIZED else None
        self.enter(results, inferred, name, first)

    def enter(
        self,
        results: Sequence[relax.Var],
        inferred: Any,
        name: str,
        call: relax.Expr | None = None,
    ) -> None:
        """Enter a result, which may have what an operand has, so many times or so much more."""
        near = list(self._near(call)) if isinstance(call, relax.Call) else []
        types = [result.ty for result in results]
        self.opened[results[0]] = relax.Var("opened", self._settled(types, inferred, near, name))

    def _near(self, call: relax.Call) -> Iterator[Any]:
        for part in (part for arg in call.args for part in getattr(arg, "fields", [arg])):
            shape = getattr(self._operand(part).ty, "shape", None)
            if isinstance(shape, relax.ShapeExpr):
                yield from (size for size in shape.values if not isinstance(size, tirx.IntImm))

    def _operand(self, expr: relax.Expr) -> relax.Expr:
        """Return an expression with open sizes."""
        if isinstance(expr, relax.Var):
            return self.opened.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return self.builder.normalize(relax.Tuple([self._operand(e) for e in expr.fields]))
        if isinstance(expr, relax.TupleGetItem):
            operand = self._operand(expr.tuple_value)
            return self.builder.normalize(relax.TupleGetItem(operand, expr.index))
        return expr

    def _inferred(self, value: relax.Call) -> Any:
        """Return what TVM makes of open sizes of the operands; None where it cannot."""
        args = [self._operand(arg) for arg in value.args]
        try:
            return self.builder.normalize(relax.Call(value.op, args, value.attrs, value.ty_args)).ty
        except (tvm.error.TVMError, ValueError, TypeError):
            return None

    def _settled(self, types: Sequence[Any], inferred: Any, near: Sequence[Any], name: str) -> Any:
        """Return a type in open sizes, by those at the samples and by what TVM infers."""
        first = types[0]
        if isinstance(first, relax.TupleType):
            parts = list(zip(*(each.fields for each in types), strict=True))
            is_known = isinstance(inferred, relax.TupleType)
            given = inferred.fields if is_known else [None] * len(parts)
            return relax.TupleType(
                [self._settled(part, of, near, name) for part, of in zip(parts, given, strict=True)]
            )
        if not isinstance(first, relax.TensorType):
            return first
        shapes = [_sizes(each) for each in types]
        if None in shapes:
            raise SizesMeetError(f"a result of {name} has a size that follows from values")
        if len(set(map(len, shapes))) > 1:
            raise SizesMeetError(f"{name} has other axes at another size")
        known = getattr(inferred, "shape", None)
        guesses = known.values if isinstance(known, relax.ShapeExpr) else [None] * len(shapes[0])
        sizes = [
            self._size(numbers, [guess, *near], name)
            for numbers, guess in zip(zip(*shapes, strict=True), guesses, strict=True)
        ]
        if not all(isinstance(extent, tirx.IntImm) for extent in sizes):
            self.extents.pairs.add(tuple(shapes[0][-2:]))
        for behind, extent in enumerate(reversed(sizes)):
            kind = None if isinstance(extent, tirx.IntImm) else self._kind(extent)
            if kind is not None and (len(sizes) < _IMAGE or kind != behind):
                raise SizesMeetError(f"{name} has height or width on another axis than an image")
        return relax.TensorType(sizes, str(first.dtype))

    def _kind(self, extent: Any) -> int:
        return self.extents.kinds[self.extents.size_of(extent)]

    def _size(self, numbers: tuple[int, ...], guesses: Sequence[Any], name: str) -> Any:
        if len(set(numbers)) == 1:
            return _number(numbers[0])
        for guess in self._guesses(numbers, guesses):
            extent = self.extents.extent(numbers, guess)
            if extent is not None:
                return extent
        listed = ", ".join(map(str, numbers))
        raise SizesMeetError(f"{name} has a size that grows otherwise than an image: {listed}")

    def _guesses(self, numbers: tuple[int, ...], given: Sequence[Any]) -> Iterator[Any]:
        """Yield what numbers may be; the extents try it."""
        first, *near = given
        yield first
        for extent in near:
            at = self.extents.numbers(extent)
            if None not in at:
                yield extent + (numbers[0] - at[0])
                if numbers[0] % at[0] == 0:
                    yield extent * (numbers[0] // at[0])


def _require_whole_factors(values: Sequence[relax.Call]) -> None:
    """Raise unless images are resized by the same whole factors at any size.

    The numbers of a kernel, such as 0.5 of a row for each, are those of its canvas.
    """
    mode = str(values[0].attrs.coordinate_transformation_mode)
    pairs = [(static_shape(value.args[0]), static_shape(value)) for value in values]
    factors = {tuple(divmod(out, at) for at, out in zip(*pair, strict=True)) for pair in pairs}
    whole = len(factors) == 1 and all(not rest for _, rest in factors.pop())
    if mode not in _BY_FACTORS or not whole:
        raise SizesMeetError("an image is resized by something else than a whole factor")


def _require_alike(values: Sequence[relax.Call], name: str) -> None:
    """Raise where calls differ in more than the sizes of operands."""
    for args in zip(*(value.args for value in values), strict=True):
        if is_constant(args[0]):
            _require_same_constants(args)
    attrs = [value.attrs for value in values]
    if name not in _SIZED and attrs[0] is not None:
        if not all(tvm_ffi.structural_equal(each, attrs[0]) for each in attrs):
            raise SizesMeetError(f"{name} has attributes that follow from the size")


def _sizes(found: relax.TensorType) -> tuple[int, ...] | None:
    return static_shape(relax.Var("sized", found))


def _require_same_constants(constants: Sequence[relax.Expr]) -> None:
    if not are_same(map(constant_array, constants)):
        raise SizesMeetError("a constant follows from the size")


def _number(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)
