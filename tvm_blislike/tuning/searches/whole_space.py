"""Searches in everything that the implementations can do; without further rules, a random one.

After Genvolution (Keane, "Automatic Program Generation for Convolutional Neural Networks", thesis,
Trinity College Dublin 2022, section 4.6), with what the thesis leaves out: nothing is proposed
twice, a seed decides what is drawn, and how many measurements make a round is said here. Its
budget, and measuring the best few once more, side by side, are the sweep's business, as for every
search.

The model's choice is proposed first, since a gain is relative to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import median

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.config import Config
from tvm_blislike.model.space import Space
from tvm_blislike.model.workload import Workload
from tvm_blislike.tuning.measure import Outcome
from tvm_blislike.tuning.search import Proposal
from tvm_blislike.tuning.searches.walks import Walks

# Configurations of a round, after which a search that learns looks back.
ROUND = 16
# The best of all so far, which it then goes on from.
BEST = 4


class RandomSearch:
    """Random walks through the spaces of all implementations.

    Parameters
    ----------
    strategy : Strategy
        Without records: core, threads and constraints.
    workload : Workload
        What to compute.
    seed : int
        Of the random numbers; workloads differ in what they draw.
    """

    def __init__(self, strategy: Strategy, workload: Workload, seed: int = 0) -> None:
        self.strategy, self.workload = strategy, workload
        self.rng = Random(f"{seed} {workload.to_json()}")
        self.spaces = strategy.spaces(workload)
        self._choice = strategy.choose(workload).config
        self._seen: set[Config] = set()
        self._seconds: dict[Config, float] = {}
        self._everything = self.walks(self.spaces)
        self._round = 0

    def propose(self, most: int) -> list[Proposal]:
        """Return the next ones; fewer than `most` only when nothing is left."""
        found: list[Proposal] = []
        while len(found) < most:
            config = self._first() or self._next()
            if config is None:
                break
            self._seen.add(config)
            found.append(Proposal(config, self.strategy.seconds(self.workload, config)))
        return found

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Remember the times; what failed is as slow as can be."""
        for outcome in outcomes:
            self._seen.add(outcome.config)
            if any(outcome.config in space for space in self.spaces):
                self._seconds[outcome.config] = self._time(outcome)

    def look_back(self) -> None:
        """Learn from the `best` of earlier rounds; called when another round begins."""

    def draw(self, _known: int) -> Config | None:
        """Return a configuration that `is_new`, None when there is none left.

        Parameters
        ----------
        _known : int
            Configurations proposed or told of so far.
        """
        return self.anything()

    def anything(self) -> Config | None:
        """Return any configuration that is new."""
        return self._everything.draw(self.rng)

    def walks(self, spaces: Sequence[Space]) -> Walks:
        """Return walks that end in new configurations only."""
        return Walks(spaces, self.is_new)

    def is_new(self, config: Config) -> bool:
        """Whether the user allows a configuration and it was not proposed before."""
        return config not in self._seen and self.strategy.allows(self.workload, config)

    def best(self, most: int = BEST) -> list[Config]:
        """Return the fastest of the spaces so far."""
        right = [config for config, seconds in self._seconds.items() if seconds < math.inf]
        return sorted(right, key=self._seconds.__getitem__)[:most]

    def _next(self) -> Config | None:
        known = len(self._seen)
        if known // ROUND > self._round:
            self._round = known // ROUND
            self.look_back()
        return self.draw(known)

    def _first(self) -> Config | None:
        """Return the model's choice unless it is known."""
        return self._choice if self._choice and self._choice not in self._seen else None

    def _time(self, outcome: Outcome) -> float:
        """Return the seconds of an outcome, those of moving images included."""
        if outcome.status != "ok" or not outcome.seconds:
            return math.inf
        return median(outcome.seconds) + self.strategy.moving(self.workload, outcome.config)
