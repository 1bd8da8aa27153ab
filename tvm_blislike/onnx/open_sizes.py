"""Sizes that stay open: one library for a range of them, or for some.

A size of a shape may be several: `range(1, 9)`, which the command line writes `1..8`,
`range(32, 641, 32)`, there `32..640:32`, or `(16, 32, 64)`, there `16/32/64`. What the model calls
by one name is one size, in whichever input it stands; unnamed sizes are one where they stand on the
same axis and take the same values.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tvm_blislike.errors import InputError, UsageError
from tvm_blislike.model.variant import Batches
from tvm_blislike.onnx.graph_inputs import declared_inputs, resolve_inputs

if TYPE_CHECKING:
    import onnx

    from tvm_blislike.model.tensor_spec import TensorSpec

# One, or those that it may take.
Size = int | Sequence[int]
# By the name of an input; or a size by its own name.
Shapes = Mapping[str, Sequence[Size] | Size]
Frozen = dict[str, tuple[int | tuple[int, ...], ...]]
# An input's name, or a size's, and the axis.
_Place = tuple[str, int]
# Each has code of its own that calls the kernels, and kernels of its own where they are not shared.
MOST_SIZES = 64
# From so many neighbouring sizes on one function is to serve all.
LEAST_LENGTHS = 17
# Each has an entry in the library.
MOST_LENGTHS = 8192
# An image has four axes, the last two of which are its height and width.
_IMAGE = 4


@dataclass(frozen=True)
class Sizes:
    """The shapes that a library takes.

    Parameters
    ----------
    shapes : tuple of dict
        By input, or by the name of a size, for each combination of sizes; the largest comes last.
    batches : Batches or None
        Those of the smaller ones where the batch is all that differs.
    lengths : tuple of (int, int) or None
        The range of the only open size, where one function is to serve all.
    images : tuple of tuple of int
        What each open size may be, where these are heights and widths of images and one function
        is to serve all; none elsewhere.
    open : tuple of tuple
        Of each of `images`, where it stands: names of inputs, or of sizes, and axes.
    given : dict
        The shapes as they were given, with open sizes.
    """

    shapes: tuple[dict[str, tuple[int, ...]], ...]
    batches: Batches | None = None
    lengths: tuple[int, int] | None = None
    images: tuple[tuple[int, ...], ...] = ()
    open: tuple[tuple[_Place, ...], ...] = ()
    given: Frozen = field(default_factory=dict)

    def of_image(self, values: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Return the shapes for a value of each of `images`, or for any other ones."""
        here = {place: at for at, places in zip(values, self.open, strict=True) for place in places}
        return {
            name: tuple(here.get((name, axis), size) for axis, size in enumerate(shape))
            for name, shape in self.given.items()
        }

    def at(self, size: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of one of `lengths`, or of one below or above them."""
        first, second = self.shapes[:2]
        return {
            name: tuple(
                size if one != other else one
                for one, other in zip(shape, second[name], strict=True)
            )
            for name, shape in first.items()
        }

    @property
    def are_few(self) -> bool:
        """Whether each size may have functions of its own."""
        return len(self.shapes) <= MOST_SIZES

    def require_few(self, reason: str = "") -> None:
        """Raise UsageError where each size cannot have a function of its own."""
        if not self.are_few:
            why = f" ({reason})" if reason else ""
            count = len(self.shapes)
            raise UsageError(
                f"{count} sizes are more than one library takes, which is {MOST_SIZES}{why}",
                "name fewer of them, for example 16/32/64/128",
            )


def frozen(shapes: Shapes | None) -> Frozen:
    """Return shapes of numbers and tuples alone.

    Raises
    ------
    InputError
        When a size is nothing of the kind.
    """
    return {name: _frozen(name, shape) for name, shape in (shapes or {}).items()}


def is_open(shapes: Frozen) -> bool:
    """Whether any size may be several."""
    return any(isinstance(size, tuple) for shape in shapes.values() for size in shape)


def require_settled(shapes: Shapes | None) -> None:
    """Raise UsageError when a size may be several."""
    given = frozen(shapes)
    if is_open(given):
        raise UsageError(
            "a size cannot stay open here",
            "give each size one value; `compile`, `run` and `explain` take several",
        )


def sizes_of(model: str | os.PathLike[str] | onnx.ModelProto, shapes: Frozen) -> Sizes:
    """Return the shapes of each size that a library takes.

    Raises
    ------
    InputError
        When `shapes` do not fit the model.
    UsageError
        When there are more than `MOST_SIZES` of them.
    ModelError
        As of `frontend.load`.
    """
    if not is_open(shapes):
        return Sizes((shapes,))  # type: ignore[arg-type]
    from tvm_blislike.onnx.frontend import read_model

    proto, _ = read_model(model)
    names = _names(declared_inputs(proto), shapes)
    values = {names[place]: size for place, size in _open(shapes)}
    for place, size in _open(shapes):
        if values[names[place]] != size:
            raise InputError(f"{names[place]} is one size, but {place[0]} gives it other values")
    count, lengths = math.prod(map(len, values.values())), _lengths(values)
    images = _are_images(_open(shapes), declared_inputs(proto), names) and count >= LEAST_LENGTHS
    most = MOST_LENGTHS if images or lengths is not None else MOST_SIZES
    if count > most:
        raise UsageError(
            f"{count} sizes are more than one library takes, which is {most}",
            "name fewer of them, for example 16/32/64/128, or a range in steps, 32..640:32",
        )
    points = [
        _point(shapes, names, dict(zip(values, chosen, strict=True)))
        for chosen in itertools.product(*values.values())
    ]
    specs = [resolve_inputs(proto, point) for point in points]
    order = sorted(range(len(points)), key=lambda i: [math.prod(s.shape) for s in specs[i]])
    shapes_in_order = tuple(points[i] for i in order)
    found = Sizes(shapes_in_order, _batches([specs[i] for i in order]), lengths)
    if not images:
        return found
    places = [tuple(p for p, name in names.items() if name == each) for each in values]
    return replace(found, images=tuple(values.values()), open=tuple(places), given=shapes)


def _are_images(
    opened: Sequence[tuple[_Place, tuple[int, ...]]],
    declared: Mapping[str, Sequence[int | str] | None],
    names: Mapping[_Place, str],
) -> bool:
    """Whether all open sizes are heights and widths of images."""

    def axes(name: str, axis: int) -> list[tuple[int, int]]:
        """Return where a size stands in inputs, with how many axes these have."""
        if name in declared:
            return [(axis, len(declared[name] or ()))]
        return [
            (place, len(shape))
            for shape in declared.values()
            for place, size in enumerate(shape or ())
            if size == names[name, axis]
        ]

    found = [each for (name, axis), _ in opened for each in axes(name, axis)]
    return all(rank == _IMAGE and axis >= _IMAGE - 2 for axis, rank in found)


def _lengths(values: Mapping[str, tuple[int, ...]]) -> tuple[int, int] | None:
    """Return the range of the only open size; None for several, for few, and for a list."""
    if len(values) != 1:
        return None
    (sizes,) = values.values()
    least, most = sizes[0], sizes[-1]
    is_range = len(sizes) == most - least + 1 >= LEAST_LENGTHS and least > 0
    return (least, most) if is_range else None


def _frozen(name: str, shape: Sequence[Size] | Size) -> tuple[int | tuple[int, ...], ...]:
    if isinstance(shape, range):  # that of a size's own name
        shape = (shape,)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    return tuple(_frozen_size(name, size) for size in sizes)


def _frozen_size(name: str, size: Size) -> int | tuple[int, ...]:
    if not isinstance(size, Sequence):
        return int(size)
    values = tuple(sorted({int(value) for value in size}))
    if not values or values[0] < 0:
        raise InputError(f"an open size of {name} has no values, or one below 0")
    return values if len(values) > 1 else values[0]


def _open(shapes: Frozen) -> list[tuple[_Place, tuple[int, ...]]]:
    """Return where sizes are several, and which."""
    return [
        ((name, axis), size)
        for name, shape in shapes.items()
        for axis, size in enumerate(shape)
        if isinstance(size, tuple)
    ]


def _names(declared: Mapping[str, Sequence[int | str] | None], shapes: Frozen) -> dict[_Place, str]:
    """Return what each open size is called."""
    names = {}
    for (name, axis), values in _open(shapes):
        shape = declared.get(name)
        symbol = shape[axis] if shape is not None and axis < len(shape) else ""
        own = symbol if isinstance(symbol, str) and symbol else f"axis {axis} of {values}"
        names[name, axis] = own if name in declared else name
    return names


def _point(
    shapes: Frozen, names: Mapping[_Place, str], chosen: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(
            chosen[names[name, axis]] if isinstance(size, tuple) else size
            for axis, size in enumerate(shape)
        )
        for name, shape in shapes.items()
    }


def _batches(specs: Sequence[Sequence[TensorSpec]]) -> Batches | None:
    """Return the smaller batches; None where anything else differs, or inputs have others."""
    *others, largest = [[spec.shape for spec in inputs] for inputs in specs]
    if not others:
        return None
    inputs = tuple(i for i, shape in enumerate(largest) if shape != others[0][i])
    alike = [shape for i, shape in enumerate(largest) if i not in inputs]
    smaller = []
    for shapes in others:
        varying = [shapes[i] for i in inputs]
        firsts = {shape[:1] for shape in varying}
        rest = all(shapes[i][1:] == largest[i][1:] for i in inputs)
        if (
            len(firsts) != 1
            or not rest
            or [s for i, s in enumerate(shapes) if i not in inputs] != alike
        ):
            return None
        smaller.append(firsts.pop()[0])
    same = len({largest[i][0] for i in inputs}) == 1
    return Batches(tuple(smaller), inputs) if same and min(smaller) > 0 else None
