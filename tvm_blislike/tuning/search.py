"""Which configurations of a workload to measure, and in which order.

A search proposes configurations and is told what came of them. The default one follows the
analytical model: the best of every implementation, then those that differ in algorithm or block.
The learned one needs fewer measurements: it follows a model that knows earlier ones.
Those that search beyond its offers are in `searches`, and so is the list of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tvm_blislike.choose.offers import Predictor
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Workload
from tvm_blislike.tuning.measure import Outcome

# An implementation whose best is predicted to be this many times slower is not worth a run.
_HOPELESS = 3.0


@dataclass(frozen=True)
class Proposal:
    """A configuration with its predicted time.

    Parameters
    ----------
    config : Config
        The configuration.
    predicted_seconds : float
        By the model that the search follows.
    """

    config: Config
    predicted_seconds: float


class Search(Protocol):
    """Proposes configurations of one workload."""

    def propose(self, most: int) -> list[Proposal]:
        """Return up to `most` configurations that were not proposed before; none ends it."""

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Take note of what came of proposals, in any order; earlier records are told first."""


class InOrder:
    """Proposes a list of configurations from its beginning.

    Parameters
    ----------
    proposals : sequence of Proposal
        What to measure, the most promising first.
    """

    def __init__(self, proposals: Sequence[Proposal]) -> None:
        self._left = list(proposals)

    def propose(self, most: int) -> list[Proposal]:
        """Return the next ones."""
        taken, self._left = self._left[:most], self._left[most:]
        return taken

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Leave out what is known; what was measured changes nothing else."""
        known = {outcome.config for outcome in outcomes}
        self._left = [p for p in self._left if p.config not in known]


# Makes the search of one workload.
SearchMaker = Callable[[Strategy, Workload], Search]


def model_search(strategy: Strategy, workload: Workload) -> Search:
    """Return the search in the order of the model, over everything the constraints allow."""
    offers = strategy.offers(workload)
    kinds = _best_of_kinds(offers)
    firsts: dict[str, Proposal] = {}
    for proposal in kinds:
        if proposal.predicted_seconds <= _HOPELESS * kinds[0].predicted_seconds:
            firsts.setdefault(proposal.config.implementation, proposal)
    ordered = [*firsts.values(), *_siblings(kinds[0].config, offers), *kinds]
    return InOrder(list({proposal.config: proposal for proposal in ordered}.values()))


def _siblings(best: Config, offers: Sequence[tuple[Config, float]]) -> list[Proposal]:
    """Return the best configuration's like with another order of loops."""
    same = [Proposal(c, t) for c, t in offers if c.kind == best.kind]
    orders: dict[str, Proposal] = {}
    for proposal in sorted(same, key=lambda p: p.predicted_seconds):
        orders.setdefault(proposal.config.loop_order, proposal)
    return [p for order, p in orders.items() if order != best.loop_order]


def exhaustive_search(strategy: Strategy, workload: Workload) -> Search:
    """Return the search over the best configuration of every algorithm and mr x nr."""
    return InOrder(_best_of_kinds(strategy.offers(workload)))


def learned_search(predictor: Predictor) -> SearchMaker:
    """Return the search in the order of another model, behind what the strategy would choose.

    That choice is what everything else is compared with.
    """

    def make(strategy: Strategy, workload: Workload) -> Search:
        s = strategy
        knowing = Strategy(s.core, s.threads, constraints=s.constraints, predictor=predictor)
        chosen = strategy.choose(workload).config
        first = Proposal(chosen, knowing.seconds(workload, chosen))
        ordered = [first, *_best_of_kinds(knowing.offers(workload))]
        return InOrder(list({proposal.config: proposal for proposal in ordered}.values()))

    return make


def _best_of_kinds(offers: Sequence[tuple[Config, float]]) -> list[Proposal]:
    """Return the best configuration of each kind by rising predicted time."""
    ordered = sorted(offers, key=lambda offer: offer[1])
    kinds: dict[tuple[str | int, ...], Proposal] = {}
    for config, seconds in ordered:
        kinds.setdefault(config.kind, Proposal(config, seconds))
    return list(kinds.values())
