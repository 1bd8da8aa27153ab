"""Genvolution's narrowing search: from the best so far to what is like them.

Each round goes from the best of all before to configurations that share all but a few choices with
one of them (Keane's thesis, section 4.6, third algorithm; what it calls s, the parameters to share,
is all but `MOST_CHANGES` here). Where nothing like them is left, anything else is drawn.
"""

from __future__ import annotations

import math
from random import Random

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.config import Config
from tvm_blislike.model.space import Space, Value
from tvm_blislike.model.workload import Workload
from tvm_blislike.tuning.searches.whole_space import RandomSearch

# Choices that are made anew.
MOST_CHANGES = 2
# Attempts at something new like a configuration.
_ATTEMPTS = 40


class NarrowingSearch(RandomSearch):
    """Random walks at first, then neighbours of the best, round by round.

    Parameters
    ----------
    strategy, workload, seed
        As for `RandomSearch`.
    """

    def __init__(self, strategy: Strategy, workload: Workload, seed: int = 0) -> None:
        super().__init__(strategy, workload, seed)
        self._parents: list[Config] = []

    def look_back(self) -> None:
        """Go on from the best."""
        self._parents = self.best()

    def draw(self, known: int) -> Config | None:
        """Return a neighbour of the best of earlier rounds, who take turns, or else anything."""
        turn = known % len(self._parents) if self._parents else 0
        for parent in self._parents[turn:] + self._parents[:turn]:
            (space,) = [space for space in self.spaces if parent in space]
            for _ in range(_ATTEMPTS):
                config = neighbour(space, parent, self.rng)
                if self.is_new(config):
                    return config
        return self.anything()


def neighbour(space: Space, config: Config, rng: Random) -> Config:
    """Return a configuration that differs in up to `MOST_CHANGES` choices, perhaps in none.

    What no longer fits behind a changed choice becomes what is nearest to it: blocks of mc are a
    multiple of mr, whatever mr is.
    """
    changed = rng.sample(range(len(space.axes)), min(rng.randint(1, MOST_CHANGES), len(space.axes)))
    chosen = space.start
    for place, axis in enumerate(space.axes):
        values = list(axis.values(chosen))
        if not values:
            return config
        value = rng.choice(values) if place in changed else _nearest(values, axis.of(config))
        chosen = axis.put(chosen, value)
    return chosen


def _nearest(values: list[Value], wanted: Value) -> Value:
    return min(values, key=lambda value: _distance(value, wanted))


def _distance(one: Value, other: Value) -> float:
    """Ratios of numbers, in powers of two; other words are far away."""
    return sum(
        abs(math.log2((a + 1) / (b + 1)))
        if isinstance(a, int) and isinstance(b, int)
        else 10.0 * (a != b)
        for a, b in zip(one, other, strict=True)
    )
