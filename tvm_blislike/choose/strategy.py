"""Which implementation and configuration compute a workload: the smallest predicted time.

The choice depends on the workload, the core, the number of threads and the user's constraints
only. A measured record or a user's pin takes its place in `Strategy.choose`, nowhere else; a
learned model corrects the predicted times in `Offers.estimates`, nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tvm_blislike.choose.constraints import Constraints, Pin
from tvm_blislike.choose.offers import Offers, Predictor
from tvm_blislike.cost_models.transforms import moving_seconds
from tvm_blislike.errors import ChoiceError
from tvm_blislike.hardware import Core
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.config import Config
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.space import Space
from tvm_blislike.model.workload import Workload
from tvm_blislike.records.book import RecordBook, fastest
from tvm_blislike.schedules import get_implementation, implementations

# Ask a user's function first: it returns a config, or None to leave the choice to the model.
Override = Callable[[Workload], Config | None]
# The predicted time of a layer, in seconds; None where there is none.
Seconds = Callable[[Workload], float | None]


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
    constraints : Constraints, optional
        Limits of the choice.
    records : RecordBook, optional
        Measured configurations, which overrule the cost model.
    predictor : Predictor, optional
        Corrects the estimates of the cost model.
    is_for_many : bool
        Whether one function serves images or rows of several sizes.
    """

    core: Core
    threads: int
    override: Override | None = None
    constraints: Constraints = field(default_factory=Constraints)
    records: RecordBook = field(default_factory=RecordBook)
    predictor: Predictor | None = None
    is_for_many: bool = False
    _made: dict[Workload, Choice] = field(default_factory=dict)
    _options: dict[Workload, tuple[Choice, ...]] = field(default_factory=dict)
    _offers: Offers = field(init=False)

    def __post_init__(self) -> None:
        self._offers = Offers(self.core, self.threads, self.constraints, self.predictor)

    def following(self, records: RecordBook) -> Strategy:
        """Return the same strategy with other records; what was estimated is not again."""
        return self._changed(records=records)

    def overruled(self, override: Override) -> Strategy:
        """Return the same strategy with an override; what was estimated is not again."""
        return self._changed(override=override)

    def leaving_out(self, names: Iterable[str]) -> Strategy:
        """Return the same strategy without the implementations of some names."""
        constraints = self.constraints
        constraints = replace(constraints, without=(*constraints.without, *names))
        return replace(self, constraints=constraints, _made={}, _options={})

    def of_rounding_only(self) -> Strategy:
        """Return the same strategy without what errs by more than rounding."""
        return replace(
            self, constraints=replace(self.constraints, max_error=0.0), _made={}, _options={}
        )

    def _changed(self, **fields: Any) -> Strategy:
        other = replace(self, _made={}, _options={}, **fields)
        other._offers = self._offers
        return other

    def choose(self, workload: Workload) -> Choice:
        """Return the choice for a workload.

        Raises
        ------
        ChoiceError
            When an override or a pin names what cannot compute the workload.
        """
        if workload not in self._made:
            self._made[workload] = (
                self._overridden(workload)
                or self._pinned(workload)
                or self._measured(workload, self._offers.fastest(workload))
            )
        return self._made[workload]

    def options(self, workload: Workload) -> tuple[Choice, ...]:
        """Return the fastest way for each pair of layouts of the images, `choose`'s first.

        Parameters
        ----------
        workload : Workload
            A convolution.

        Returns
        -------
        tuple of Choice
            One where the user or a record decided, none where nothing applies.
        """
        if workload not in self._options:
            self._options[workload] = tuple(self._ways(workload))
        return self._options[workload]

    def estimate_all(self, workloads: Iterable[Workload]) -> None:
        """Estimate what `choose` will ask of the cost model, by all CPUs, which is sooner."""
        if self.override is None:
            asked = (w for w in workloads if self.constraints.pin_for(w) is None)
            self._offers.bests_of(asked)

    def _ways(self, workload: Workload) -> Iterable[Choice]:
        """Yield the choice itself, then what is faster than all others of its layouts."""
        chosen = self.choose(workload)
        if chosen.config is None:
            return
        yield chosen
        if not chosen.is_fastest_predicted:
            return
        seen = {chosen.layouts}
        for choice in sorted(self._relaid(workload), key=lambda c: c.seconds):
            if choice.layouts not in seen:
                seen.add(choice.layouts)
                yield replace(choice, candidates=chosen.candidates)

    def _relaid(self, workload: Workload) -> Iterable[Choice]:
        """Yield the best of each implementation, for all layouts that it has."""
        reason = "fits the layouts of its neighbours"
        for best in (choice for choice, _ in self._offers.bests(workload) if choice is not None):
            yield replace(best, reason=reason)
            implementation = best.implementation
            others = list(implementation.relaid(workload, best.config, self.core))
            for config in self._offers.allowed(implementation, workload, others):
                yield replace(self._offers.best(implementation, workload, [config]), reason=reason)

    def offers(self, workload: Workload) -> list[tuple[Config, float]]:
        """Return every configuration that the constraints allow, with its predicted seconds."""
        return self._offers.every(workload)

    def spaces(self, workload: Workload) -> tuple[Space, ...]:
        """Return the spaces of the implementations that have an offer; see `allows`."""
        names = {config.implementation for config, _ in self.offers(workload)}
        return tuple(
            i.space(workload, self.core, self.threads)
            for i in implementations(workload.kind)
            if i.name in names
        )

    def allows(self, workload: Workload, config: Config) -> bool:
        """Whether a configuration is within the limits of errors and temporary memory."""
        return bool(
            self._offers.allowed(get_implementation(config.implementation), workload, [config])
        )

    def seconds(self, workload: Workload, config: Config) -> float:
        """Return the predicted time of any configuration, in seconds."""
        implementation = get_implementation(config.implementation)
        return self._offers.estimates(implementation, workload, [config])[0].seconds

    def moving(self, workload: Workload, config: Config) -> float:
        """Return the seconds of moving images from and to the layouts of the model's choice."""
        usual = self._offers.fastest(workload).config
        if usual is None:
            return 0.0
        return moving_seconds(workload, config, usual, self.core, self.threads)

    def _overridden(self, workload: Workload) -> Choice | None:
        config = self.override(workload) if self.override else None
        if config is None:
            return None
        implementation = self._able(config.implementation, workload, "the override")
        return replace(self._offers.best(implementation, workload, [config]), reason="asked for")

    def _pinned(self, workload: Workload) -> Choice | None:
        """Return the fastest configuration that has the fields of the user's pin."""
        pin = self.constraints.pin_for(workload)
        if pin is None:
            return None
        implementation = self._able(pin.implementation, workload, f"the pin {pin.pattern!r}")
        configs = list(implementation.configs(workload, self.core, self.threads))
        if not configs:
            raise ChoiceError(
                f"the pin {pin.pattern!r} names {pin.implementation} for {workload}, of which no "
                "configuration is worth compiling there: narrow the pattern"
            )
        matching = [c for c in configs if _has(c, pin)] or [
            c.with_fields(**dict(pin.fields)) for c in configs
        ]
        best = self._offers.best(implementation, workload, matching)
        return replace(best, reason="pinned")

    def _measured(self, workload: Workload, predicted: Choice) -> Choice:
        """Return the fastest configuration on record, else what the model chose."""
        usable = self.records.usable(workload, self.core, self.threads)
        offers = [
            (self._offers.best(implementation, workload, [record.config]), record)
            for record in usable
            for implementation in self._offers.permitted(workload)
            if implementation.name == record.config.implementation
            if self._offers.allowed(implementation, workload, [record.config])
        ]
        if not offers:
            return predicted
        predictions = {choice.config: choice.estimate.seconds for choice, _ in offers}
        known = [record for _, record in offers]
        record = fastest(known, predictions.__getitem__, partial(self.moving, workload))
        # Where the record agrees with the model, the neighbours still have a say in the layouts.
        return replace(
            next(choice for choice, r in offers if r is record),
            reason=f"fastest of {len(offers)} measured",
            candidates=predicted.candidates,
            measured_seconds=record.median_seconds,
            is_fastest_predicted=record.config == predicted.config,
        )

    def _able(self, name: str, workload: Workload, by: str) -> Implementation:
        """Return the implementation that a user named, if it can compute a workload."""
        found = [i for i in implementations(workload.kind) if i.name == name]
        if not found:
            raise ChoiceError(
                f"{by} for {workload} names {name!r}; "
                f"for {workload.kind} there are: {_names(workload.kind)}"
            )
        reason = found[0].applies(workload, self.core)
        if reason:
            raise ChoiceError(f"{name} cannot compute {workload}: {reason}")
        return found[0]


def _has(config: Config, pin: Pin) -> bool:
    return all(getattr(config, name) == value for name, value in pin.fields)


def _names(kind: str) -> str:
    return ", ".join(i.name for i in implementations(kind)) or "none"
