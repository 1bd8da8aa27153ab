"""Straight-line programs: a product with a constant matrix, as additions and multiply-adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple


class Step(NamedTuple):
    """One operation: `base + factor * operand`, or the product alone when `base` is None.

    Parameters
    ----------
    operand : int
        Number of a value: the inputs come first, then the results of the steps before.
    factor : Fraction
        Coefficient of the operand; 1 and -1 cost nothing in an addition.
    base : int or None
        Number of the value added.
    negated : bool
        The base is subtracted: `factor * operand - base`.
    """

    operand: int
    factor: Fraction
    base: int | None = None
    negated: bool = False


@dataclass(frozen=True)
class Program:
    """A product with a constant matrix, y = M d, as steps in static single assignment.

    Parameters
    ----------
    inputs : int
        Length of d.
    steps : tuple of Step
        Step i defines value `inputs + i`.
    outputs : tuple of (int or None)
        Value of each element of y; None for a row of zeros.
    """

    inputs: int
    steps: tuple[Step, ...]
    outputs: tuple[int | None, ...]

    @property
    def additions(self) -> int:
        """Additions and subtractions, with or without a multiplication fused into them."""
        return sum(step.base is not None for step in self.steps)

    @property
    def multiplications(self) -> int:
        """Multiplications that no addition absorbs."""
        return len(self.steps) - self.additions

    def apply(
        self, inputs: Sequence[Any], constant: Callable[[Fraction], Any] = float
    ) -> list[Any]:
        """Return M d, computed with + - * only; a shared value is the same object everywhere.

        Every product is an operand of one addition, so that compilers contract the two.

        Parameters
        ----------
        inputs : sequence
            d: numbers, arrays, symbols or expressions.
        constant : callable
            Turns a coefficient into what the inputs can be multiplied with.

        Raises
        ------
        ValueError
            When the number of inputs is not that of the matrix's columns.
        """
        if len(inputs) != self.inputs:
            raise ValueError(f"expected {self.inputs} inputs, got {len(inputs)}")
        values = list(inputs)
        for step in self.steps:
            values.append(_evaluate(step, values, constant))
        return [constant(Fraction(0)) if v is None else values[v] for v in self.outputs]


def _evaluate(step: Step, values: Sequence[Any], constant: Callable[[Fraction], Any]) -> Any:
    operand, factor = values[step.operand], step.factor
    if step.base is None:
        return constant(factor) * operand
    base = values[step.base]
    if step.negated:
        return (operand if factor == 1 else constant(factor) * operand) - base
    # Signs become subtractions: E + 2 O and E - 2 O need one constant register, not two.
    product = operand if abs(factor) == 1 else constant(abs(factor)) * operand
    return base + product if factor > 0 else base - product
