"""Genvolution's genetic selection: only the values that the best have survive.

The space of a round is made of the values that occur, axis by axis, in the best so far (Keane's
thesis, section 4.6, second algorithm: a restriction, without crossover or mutation; mixing the
values of several parents is what its random walks amount to). A restricted space that is used up
gets the values of twice as many.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.config import Config
from tvm_blislike.model.space import Axis, Space, Value
from tvm_blislike.model.workload import Workload
from tvm_blislike.tuning.searches.walks import Walks
from tvm_blislike.tuning.searches.whole_space import BEST, RandomSearch


class GeneticSearch(RandomSearch):
    """Random walks, round by round through the values of the best so far.

    Parameters
    ----------
    strategy, workload, seed
        As for `RandomSearch`.
    """

    def __init__(self, strategy: Strategy, workload: Workload, seed: int = 0) -> None:
        super().__init__(strategy, workload, seed)
        self._survivors = 0
        self._restricted: Walks | None = None

    def look_back(self) -> None:
        """Restrict the space to the values of the best."""
        self._restrict(BEST)

    def draw(self, _known: int) -> Config | None:
        """Return one of the restricted space, one of a wider one, or else any."""
        while self._restricted:
            found = self._restricted.draw(self.rng)
            if found:
                return found
            self._restrict(2 * self._survivors)
        return self.anything()

    def _restrict(self, survivors: int) -> None:
        """Walk through the values of so many; everywhere when there are not as many."""
        best = self.best(survivors)
        self._survivors = survivors
        enough = len(best) == survivors
        self._restricted = self.walks(_surviving(self.spaces, best)) if enough else None


def _surviving(spaces: Collection[Space], best: Collection[Config]) -> list[Space]:
    """Return the spaces that the best are from, with their values only."""
    families = [(space, [config for config in best if config in space]) for space in spaces]
    return [_restricted(space, members) for space, members in families if members]


def _restricted(space: Space, members: Collection[Config]) -> Space:
    axes = tuple(_kept(axis, {axis.of(config) for config in members}) for axis in space.axes)
    return replace(space, axes=axes)


def _kept(axis: Axis, kept: Collection[Value]) -> Axis:
    return replace(axis, values=lambda config: [v for v in axis.values(config) if v in kept])
