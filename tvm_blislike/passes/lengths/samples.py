"""Numbers that follow from an open size, found out from what they are at a few sizes of it.

Importing, folding and fusing know numbers only. So a model goes through them at several sizes, and
what differs between the results is a number `times * size + plus` of each, or the size cannot stay
open. Two sizes give the line; a third one has to lie on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_blislike.errors import SizesMeetError


@dataclass(frozen=True)
class Affine:
    """The number times * size + plus."""

    times: int
    plus: int

    def at(self, size: Any) -> Any:
        """Return the number for a size, which may be a variable of TIR."""
        return size * self.times + self.plus


Number = int | Affine


def number_of(values: Sequence[int], sizes: Sequence[int]) -> Number:
    """Return a number by its values at some sizes.

    Raises
    ------
    SizesMeetError
        When it is no multiple of the size and a constant.
    """
    if len(set(values)) == 1:
        return values[0]
    times, rest = divmod(values[1] - values[0], sizes[1] - sizes[0])
    found = Affine(times, values[0] - times * sizes[0])
    if rest or any(found.at(s) != v for s, v in zip(sizes, values, strict=True)):
        listed = ", ".join(f"{v} of {s}" for s, v in zip(sizes, values, strict=True))
        raise SizesMeetError(f"a size grows otherwise than in proportion: {listed}")
    return found


def shape_of(shapes: Sequence[Sequence[int]], sizes: Sequence[int]) -> tuple[Number, ...]:
    """Return a shape by those at some sizes; SizesMeetError as of `number_of`."""
    if len({len(shape) for shape in shapes}) > 1:
        raise SizesMeetError("a tensor has other axes at another size")
    return tuple(number_of(values, sizes) for values in zip(*shapes, strict=True))


def at(shape: Sequence[Number], size: Any) -> tuple[Any, ...]:
    """Return the shape at a size, which may be a variable of TIR."""
    return tuple(n.at(size) if isinstance(n, Affine) else n for n in shape)


def is_open(shape: Sequence[Number]) -> bool:
    """Whether a shape follows from the size."""
    return any(isinstance(number, Affine) for number in shape)


def data_of(nodes: Sequence[Any], sizes: Sequence[int], size: tirx.Var) -> Any:
    """Return data as of JSON whose whole numbers are `number_of` those at some sizes."""
    first = nodes[0]
    if isinstance(first, dict):
        return {key: data_of([node[key] for node in nodes], sizes, size) for key in first}
    if isinstance(first, list):
        if len({len(node) for node in nodes}) > 1:
            raise SizesMeetError("an attention has other parts at another size")
        return [data_of(parts, sizes, size) for parts in zip(*nodes, strict=True)]
    if isinstance(first, int) and not isinstance(first, bool):
        number = number_of(nodes, sizes)
        return number.at(size) if isinstance(number, Affine) else number
    if any(node != first for node in nodes):
        raise SizesMeetError("an attention is another one at another size")
    return first
