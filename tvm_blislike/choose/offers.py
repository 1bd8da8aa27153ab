"""What the implementations have to offer for a workload within the user's constraints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.copies import in_copies
from tvm_blislike.cost_models.transforms import transform_seconds
from tvm_blislike.hardware import Core
from tvm_blislike.model.choice import Candidate, Choice
from tvm_blislike.model.config import Config
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.workload import Workload
from tvm_blislike.schedules import get_implementation, implementations
from tvm_blislike.side_by_side import code_threads


class Predictor(Protocol):
    """Knows better than the analytical model how long something takes, such as `LearnedModel`."""

    def estimates(
        self,
        workload: Workload,
        configs: Sequence[Config],
        analytical: Sequence[Estimate],
        core: Core,
        threads: int,
    ) -> list[Estimate]:
        """Return an estimate for each configuration and its analytical estimate."""


@dataclass
class Offers:
    """Estimated configurations for one core and number of threads, each workload's once.

    Parameters
    ----------
    core : Core
        The target.
    threads : int
        Threads of one inference.
    constraints : Constraints
        Limits of the choice.
    predictor : Predictor or None
        Corrects the estimates of the cost model.
    """

    core: Core
    threads: int
    constraints: Constraints
    predictor: Predictor | None
    _offered: dict[Workload, tuple[tuple[Choice | None, Candidate], ...]] = field(
        default_factory=dict
    )

    def able(self, workload: Workload) -> tuple[Implementation, ...]:
        """Return the implementations that can compute a workload."""
        every = implementations(workload.kind)
        return tuple(i for i in every if not i.applies(workload, self.core))

    def permitted(self, workload: Workload) -> tuple[Implementation, ...]:
        """Return those of them that the constraints do not rule out, estimated or not."""
        able = self.able(workload)
        return tuple(i for i in able if not self.constraints.refuses(i, able))

    def every(self, workload: Workload) -> list[tuple[Config, float]]:
        """Return every configuration that the constraints allow, with its predicted seconds."""
        offered: list[tuple[Config, float]] = []
        for implementation in self.permitted(workload):
            every = implementation.configs(workload, self.core, self.threads)
            configs = self.allowed(implementation, workload, every)
            estimates = self.estimates(implementation, workload, configs)
            offered += [(c, e.seconds) for c, e in zip(configs, estimates, strict=True)]
        return offered

    def fastest(self, workload: Workload) -> Choice:
        """Return the fastest of `bests`, or `_smallest` where there is none."""
        bests = self.bests(workload)
        candidates = tuple(candidate for _, candidate in bests)
        choices = [choice for choice, _ in bests if choice is not None]
        if choices:
            best = min(choices, key=lambda choice: choice.estimate.seconds)
            total = sum(candidate.configs for candidate in candidates)
            how = "predicted" if self.predictor is None else "predicted by the learned model"
            reason = f"fastest of {total} {how}"
            return replace(best, reason=reason, candidates=candidates, is_fastest_predicted=True)
        return replace(self._smallest(workload), candidates=candidates)

    def bests(self, workload: Workload) -> tuple[tuple[Choice | None, Candidate], ...]:
        """Return what each implementation has to offer; all configurations are estimated once."""
        if workload not in self._offered:
            self._offered[workload] = self._compared(workload, implementations(workload.kind))
        return self._offered[workload]

    def bests_of(self, workloads: Iterable[Workload]) -> None:
        """Find the `bests` of several workloads, by all CPUs."""
        new = [each for each in dict.fromkeys(workloads) if each not in self._offered]
        for kind in {each.kind for each in new}:
            implementations(kind)  # Copies of this process import nothing.
        for workload, found in zip(new, in_copies(self._sent, new, code_threads()), strict=True):
            self._offered[workload] = tuple(map(_received, found))

    def _sent(self, workload: Workload) -> tuple[tuple[Choice | None, Candidate], ...]:
        """Return `_compared` without implementations, whose functions other processes know."""
        return tuple(
            (choice and replace(choice, implementation=None), which)
            for choice, which in self._compared(workload, implementations(workload.kind))
        )

    def _compared(
        self, workload: Workload, every: Sequence[Implementation]
    ) -> tuple[tuple[Choice | None, Candidate], ...]:
        """Return `bests`, without the estimates of what can be the fastest in no graph.

        Whatever layouts an implementation has, the best one so far and moving both of its images
        takes the place of it.
        """
        able, limit = self.able(workload), math.inf
        moving = sum(
            transform_seconds(math.prod(sizes), self.core, self.threads, workload.types.a)
            for sizes in workload.images
        )
        least = {i.name: self._least_seconds(i, workload) for i in able}
        offers = {}
        for implementation in sorted(every, key=lambda i: least.get(i.name, 0.0)):
            name = implementation.name
            offers[name] = choice, _ = self._offer(implementation, workload, able, limit)
            if choice is not None:
                limit = min(limit, choice.estimate.seconds + moving)
        return tuple(offers[i.name] for i in every)

    def _least_seconds(self, implementation: Implementation, workload: Workload) -> float:
        """Return a time that no estimate of an implementation is below."""
        if self.predictor is not None:  # it may predict anything
            return 0.0
        return implementation.least_seconds(workload, self.core, self.threads)

    def best(
        self, implementation: Implementation, workload: Workload, configs: list[Config]
    ) -> Choice:
        """Return the fastest of some configurations of an implementation, the first of equals."""
        found = self.best_within(implementation, workload, configs, math.inf)
        if found is None:
            raise ValueError("no configurations")
        return found

    def best_within(
        self,
        implementation: Implementation,
        workload: Workload,
        configs: list[Config],
        limit: float,
    ) -> Choice | None:
        """Return the `best` of some configurations; None where all take more than a limit, seconds.

        In the order of what they take at least: once that is more than the limit or than what the
        fastest so far takes, the rest need no estimate.
        """
        if self.predictor is not None:  # it may predict anything
            estimates = self.estimates(implementation, workload, configs)
            at = min(range(len(configs)), key=lambda index: estimates[index].seconds)
            return Choice(workload, implementation, configs[at], estimates[at], "")
        core, threads = self.core, self.threads
        least = [implementation.least_of(workload, c, core, threads) for c in configs]
        found: tuple[float, int, Estimate] | None = None
        for index in sorted(range(len(configs)), key=least.__getitem__):
            if least[index] > (limit if found is None else found[0]):
                break
            (estimate,) = self.estimates(implementation, workload, [configs[index]])
            if found is None or (estimate.seconds, index) < found[:2]:
                found = estimate.seconds, index, estimate
        if found is None:
            return None
        return Choice(workload, implementation, configs[found[1]], found[2], "")

    def allowed(
        self, implementation: Implementation, workload: Workload, configs: Iterable[Config]
    ) -> list[Config]:
        """Return the configurations within the limits of errors and temporary memory."""
        exact = self._exact(implementation, workload, configs)
        return self._small(implementation, workload, exact)

    def estimates(
        self, implementation: Implementation, workload: Workload, configs: Sequence[Config]
    ) -> list[Estimate]:
        """Return the predicted times of configurations."""
        core, threads = self.core, self.threads
        found = [implementation.estimate(workload, c, core, threads) for c in configs]
        if self.predictor is None:
            return found
        return self.predictor.estimates(workload, configs, found, core, threads)

    def _smallest(self, workload: Workload) -> Choice:
        """Return what needs least memory where everything needs more than the user allows."""
        able = self.able(workload)
        bytes_of = [
            (i.workspace_bytes(workload, c, self.threads), i, c)
            for i in able
            if not self.constraints.refuses(i, able)
            for c in self._exact(i, workload, i.configs(workload, self.core, self.threads))
        ]
        if not bytes_of:
            reasons = [
                f"{i.name}: {i.applies(workload, self.core) or self.constraints.refuses(i, able)}"
                for i in implementations(workload.kind)
            ]
            return Choice(workload, None, None, None, "; ".join(reasons) or "no implementation")
        size, implementation, _ = min(bytes_of, key=lambda entry: entry[0])
        configs = [c for bytes_, i, c in bytes_of if i is implementation and bytes_ == size]
        best = self.best(implementation, workload, configs)
        return replace(best, reason=f"least workspace, {size} bytes: more than allowed")

    def _offer(
        self,
        implementation: Implementation,
        workload: Workload,
        able: tuple[Implementation, ...],
        limit: float,
    ) -> tuple[Choice | None, Candidate]:
        """Return an implementation's best configuration, or why it has none within `limit`."""
        name = implementation.name
        reason = implementation.applies(workload, self.core)
        reason = reason or self.constraints.refuses(implementation, able)
        if reason:
            return None, Candidate(name, None, reason)
        least = self._least_seconds(implementation, workload)
        if least > limit:
            return None, Candidate(name, None, f"{1e3 * least:.3f} ms at the peak of the core")
        configs = list(implementation.configs(workload, self.core, self.threads))
        if not configs:
            return None, Candidate(name, None, "no configuration is worth compiling")
        exact = self._exact(implementation, workload, configs)
        if not exact:
            return None, Candidate(name, None, "errors above the limit")
        small = self._small(implementation, workload, exact)
        if not small:
            return None, Candidate(name, None, "workspace above the limit")
        best = self.best_within(implementation, workload, small, limit)
        if best is None:
            return None, Candidate(name, None, f"more than {1e3 * limit:.3f} ms")
        return best, Candidate(name, best.estimate.seconds, "", len(small))

    def _exact(
        self, implementation: Implementation, workload: Workload, configs: Iterable[Config]
    ) -> list[Config]:
        """Return the configurations within the limit of errors."""
        limit = self.constraints.allowed_error(workload.types.out)
        return [c for c in configs if implementation.error_bound(workload, c) <= limit]

    def _small(
        self, implementation: Implementation, workload: Workload, configs: list[Config]
    ) -> list[Config]:
        """Return the configurations within the limit of temporary memory."""
        limit = self.constraints.max_workspace
        if limit is None:
            return configs
        return [
            c for c in configs if implementation.workspace_bytes(workload, c, self.threads) <= limit
        ]


def _received(sent: tuple[Choice | None, Candidate]) -> tuple[Choice | None, Candidate]:
    """Return a choice with its implementation again."""
    choice, candidate = sent
    if choice is None:
        return sent
    return replace(choice, implementation=get_implementation(candidate.implementation)), candidate
