"""Every configuration an implementation can compute a workload with, as a tree of choices.

A space is a list of axes, taken in order: what an axis offers may depend on what was chosen before
it, so that only configurations that work can be reached (the decision tree of Keane, "Automatic
Program Generation for Convolutional Neural Networks", thesis, Trinity College Dublin 2022, section
4.5). Nothing is listed beforehand: spaces of millions of configurations cost nothing.

Cost models offer a few configurations (`Implementation.configs`); a space holds these and all that
they leave out because they expect nothing of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tvm_blislike.model.config import Config

# Values of the fields of an axis, in their order.
Value = tuple[int | str, ...]
# Steps of k in one iteration of a micro-kernel's loop: fewer than the usual four, and more.
_FEW_STEPS = (1, 2)
_USUAL_STEPS = 4
_MANY_STEPS = 8


@dataclass(frozen=True)
class Axis:
    """One choice.

    Parameters
    ----------
    name : str
        What is chosen, for people.
    fields : tuple of str
        Fields of the configuration that it sets.
    values : callable
        Returns what the fields may be, given a configuration whose earlier axes are set; no value
        twice, and none where the earlier choices lead nowhere.
    """

    name: str
    fields: tuple[str, ...]
    values: Callable[[Config], Iterable[Value]]

    def of(self, config: Config) -> Value:
        """Return the value that a configuration has."""
        return tuple(getattr(config, field) for field in self.fields)

    def put(self, config: Config, value: Value) -> Config:
        """Return the configuration with another value."""
        return config.with_fields(**dict(zip(self.fields, value, strict=True)))


@dataclass(frozen=True)
class Space:
    """The configurations of one implementation for one workload.

    Parameters
    ----------
    start : Config
        Names the implementation; no axis is chosen.
    axes : tuple of Axis
        The choices, in order.
    """

    start: Config
    axes: tuple[Axis, ...]

    def __contains__(self, config: Config) -> bool:
        chosen = self.start
        # Another algorithm's configuration has other fields.
        if config.implementation != chosen.implementation:
            return False
        for axis in self.axes:
            if axis.of(config) not in axis.values(chosen):
                return False
            chosen = axis.put(chosen, axis.of(config))
        return chosen == config

    def __iter__(self) -> Iterator[Config]:
        """Yield every configuration, the last axis fastest."""
        yield from self._under(self.start, 0)

    def _under(self, chosen: Config, depth: int) -> Iterator[Config]:
        if depth == len(self.axes):
            yield chosen
            return
        axis = self.axes[depth]
        for value in axis.values(chosen):
            yield from self._under(axis.put(chosen, value), depth + 1)


def single(field: str, values: Callable[[Config], Iterable[int | str]], name: str = "") -> Axis:
    """Return an axis of one field."""
    return Axis(name or field, (field,), lambda config: [(value,) for value in values(config)])


def listed(start: Config, configs: Iterable[Config]) -> Space:
    """Return the space of an implementation that declares none: the configurations it offers."""
    fields = tuple(f.name for f in dataclasses.fields(start) if f.name != "implementation")
    values = [tuple(getattr(config, field) for field in fields) for config in configs]
    every = Axis("configuration", fields, lambda _: list(dict.fromkeys(values)))
    return Space(start, (every,))


def even_parts(count: int) -> list[int]:
    """Return the sizes of blocks that cut `count` things into so many equal blocks, rising."""
    return sorted({math.ceil(count / blocks) for blocks in range(1, count + 1)})


def divisors(count: int) -> list[int]:
    """Return the divisors of a positive number, rising."""
    small = [d for d in range(1, math.isqrt(count) + 1) if count % d == 0]
    return sorted({*small, *(count // d for d in small)})


def unrolls(steps: int) -> list[int]:
    """Return the values of `unroll` that make different loops of `steps` steps of k."""
    most = [_MANY_STEPS] if steps > _USUAL_STEPS else []
    return [few for few in _FEW_STEPS if few < steps] + [_USUAL_STEPS] + most
