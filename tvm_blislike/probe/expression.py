"""Facts as expressions over the rates of the steps: evaluated here, or written down for a board.

What a board evaluates (`export/runner/probe.h`) is then what is evaluated here, by construction.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_OPERATIONS: dict[str, Callable[..., float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "max": max,
    # The nearest number with so many steps to the unit: 2 for halves; ties are no matter here.
    "nearest": lambda number, steps: round(number * steps) / steps,
}


@dataclass(frozen=True)
class Expression:
    """A tree: an operation and its operands, which are expressions, numbers or names of steps."""

    operation: str
    operands: tuple[Any, ...]

    def __add__(self, other: Any) -> Expression:
        return Expression("+", (self, other))

    def __sub__(self, other: Any) -> Expression:
        return Expression("-", (self, other))

    def __mul__(self, other: Any) -> Expression:
        return Expression("*", (self, other))

    def __truediv__(self, other: Any) -> Expression:
        return Expression("/", (self, other))

    def __rmul__(self, other: float) -> Expression:
        return Expression("*", (other, self))

    def __rtruediv__(self, other: float) -> Expression:
        return Expression("/", (other, self))

    def at_least(self, least: Expression | float) -> Expression:
        """Return the larger of the two."""
        return Expression("max", (self, least))

    def at_most(self, most: float) -> Expression:
        """Return the smaller of the two, by the operations that boards know."""
        return Expression("-", (most, Expression("-", (most, self)).at_least(0.0)))

    def nearest(self, steps: float) -> Expression:
        """Return the nearest number with `steps` steps to the unit."""
        return Expression("nearest", (self, steps))

    def value(self, rates: Mapping[str, float]) -> float:
        """Return its value for the rates of the steps."""
        if self.operation == "rate":
            return rates[self.operands[0]]
        values = [o.value(rates) if isinstance(o, Expression) else o for o in self.operands]
        return _OPERATIONS[self.operation](*values)

    def plain(self) -> list[Any]:
        """Return it as nested lists for JSON: operation, operands."""
        return [
            self.operation,
            *(o.plain() if isinstance(o, Expression) else o for o in self.operands),
        ]


def rate(step: str) -> Expression:
    """Return the work per second of a step."""
    return Expression("rate", (step,))
