"""Which implementation and configuration compute a workload: the smallest predicted time.

The choice depends on the workload, the core and the number of threads only. A measured record or
a user's pin takes its place in `Strategy.choose`, nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tvm_blislike.config import Config
from tvm_blislike.cost_models.roofline import Estimate
from tvm_blislike.hardware import Core
from tvm_blislike.registry import Implementation, implementations
from tvm_blislike.workload import Workload

# Ask a user's function first: it returns a config, or None to leave the choice to the model.
Override = Callable[[Workload], Config | None]


@dataclass(frozen=True)
class Choice:
    """The decision for one workload.

    Parameters
    ----------
    workload : Workload
        What is computed.
    implementation : Implementation or None
        The algorithm; None where no implementation applies.
    config : Config or None
        Its configuration.
    estimate : Estimate or None
        Its predicted time.
    reason : str
        Why it was chosen, or why nothing applies.
    """

    workload: Workload
    implementation: Implementation | None
    config: Config | None
    estimate: Estimate | None
    reason: str


@dataclass
class Strategy:
    """Choices for one core and number of threads, each made once.

    Parameters
    ----------
    core : Core
        The target.
    threads : int
        Threads of one inference.
    override : callable, optional
        A user's own strategy, asked before the cost model.
    """

    core: Core
    threads: int
    override: Override | None = None
    _made: dict[Workload, Choice] = field(default_factory=dict)

    def choose(self, workload: Workload) -> Choice:
        """Return the choice for a workload."""
        if workload not in self._made:
            self._made[workload] = self._pinned(workload) or self._fastest(workload)
        return self._made[workload]

    def _pinned(self, workload: Workload) -> Choice | None:
        config = self.override(workload) if self.override else None
        if config is None:
            return None
        found = [i for i in implementations(workload.kind) if i.name == config.implementation]
        if not found:
            raise ValueError(
                f"the override for {workload} names {config.implementation!r}; "
                f"for {workload.kind} there are: {_names(workload.kind)}"
            )
        reason = found[0].applies(workload, self.core)
        if reason:
            raise ValueError(f"{config.implementation} cannot compute {workload}: {reason}")
        estimate = found[0].estimate(workload, config, self.core, self.threads)
        return Choice(workload, found[0], config, estimate, "asked for")

    def _fastest(self, workload: Workload) -> Choice:
        candidates, refused = [], []
        for implementation in implementations(workload.kind):
            reason = implementation.applies(workload, self.core)
            if reason:
                refused.append(f"{implementation.name}: {reason}")
                continue
            candidates += self._candidates(implementation, workload)
        if not candidates:
            return Choice(workload, None, None, None, "; ".join(refused) or "no implementation")
        best = min(candidates, key=lambda choice: choice.estimate.seconds)
        reason = f"fastest of {len(candidates)} predicted"
        return Choice(workload, best.implementation, best.config, best.estimate, reason)

    def _candidates(self, implementation: Implementation, workload: Workload) -> list[Choice]:
        configs = implementation.configs(workload, self.core, self.threads)
        return [
            Choice(
                workload,
                implementation,
                config,
                implementation.estimate(workload, config, self.core, self.threads),
                "",
            )
            for config in configs
        ]


def _names(kind: str) -> str:
    return ", ".join(i.name for i in implementations(kind)) or "none"
