"""What was measured, and the core with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_blislike.hardware.probed import SETTLED
from tvm_blislike.probe.disturbance import spread, spread_notes
from tvm_blislike.probe.facts import cache_facts, core_facts, peak_gflops
from tvm_blislike.probe.steps import MEMORY

if TYPE_CHECKING:
    from tvm_blislike.hardware import Cache, Core

# Share of a step's rounds, the best ones, that its rate is the mean of.
BEST_SHARE = 0.25


@dataclass(frozen=True)
class ProbeResult:
    """What was measured.

    Parameters
    ----------
    core : Core
        The core as described before measuring.
    threads : int
        Threads of the steps `... all`: one per usable physical core.
    rates : mapping of str to float
        Work per second by step (`steps_of`).
    spreads : mapping of str to float
        By step, the difference of the quartiles of its rounds as a share of their median.
    notes : tuple of str
        Under which conditions.
    disturbance : float
        How much else happened; above 1 it is worth measuring again.
    """

    core: Core
    threads: int
    rates: Mapping[str, float]
    spreads: Mapping[str, float] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    disturbance: float = 0.0

    @property
    def peak_gflops(self) -> float:
        """fp32 FMA peak of one thread, 1e9 operations (two per lane and FMA) per second."""
        return peak_gflops(self.core).value(self.rates)

    @property
    def peak_gflops_all(self) -> float:
        """The same of all threads, no less than that of one alone."""
        alone = self.rates["fma"]
        return self.peak_gflops * max(self.rates.get("fma all", alone) / alone, 1.0)

    @property
    def ghz(self) -> float:
        """Clock, from dependent integer operations of one cycle each, by turns with FMAs."""
        return 1e-9 * self.rates["chain"]

    @property
    def bandwidth_gb_per_s(self) -> dict[str, float]:
        """What a stream beside FMAs gets of a level ("L1", "memory"), 1e9 bytes per second."""
        return self._streams(together=False)

    @property
    def bandwidth_gb_per_s_all(self) -> dict[str, float]:
        """The same of all threads together, where they share the level."""
        alone = {MEMORY: self.bandwidth_gb_per_s[MEMORY]}
        return alone | self._streams(together=True)

    def _streams(self, together: bool) -> dict[str, float]:
        streams = {n.removeprefix("stream "): r for n, r in self.rates.items() if "stream" in n}
        wanted = (n for n in streams if n.endswith(" all") == together)
        return {name.removesuffix(" all"): streams[name] / 1e9 for name in wanted}

    def to_core(self) -> Core:
        """Return the core with what was measured; its clock is the one of the FMA peak.

        `Core.peak_gflops` then is the measured peak of one thread.
        """
        found = core_facts(self.core, self.rates)
        facts: dict[str, Any] = {name: fact.value(self.rates) for name, fact in found.items()}
        facts["lines_in_flight"] = int(facts["lines_in_flight"])
        core = described(self.core, self.threads, "fork all" in self.rates)
        peaks = (
            f"measured: FMA peak {self.peak_gflops:.4g} GFLOPS with 1 thread, "
            f"{self.peak_gflops_all:.4g} with {self.threads}; clock of integers {self.ghz:.3g} GHz"
        )
        caches = tuple(self._measured(cache) for cache in self.core.caches)
        notes = (*core.notes, *self.notes, peaks)
        return dataclasses.replace(core, **facts, caches=caches, notes=notes)

    def _measured(self, cache: Cache) -> Cache:
        facts = cache_facts(cache, self.rates)
        values = {name: fact.value(self.rates) for name, fact in facts.items()}
        return dataclasses.replace(cache, **{"all_bytes_per_cycle": None, **values})


def described(core: Core, threads: int, forks: bool) -> Core:
    """Return a core that is about to be measured: named so, with notes of what remains assumed.

    Parameters
    ----------
    core : Core
        As described.
    threads : int
        Threads of the figures of all cores.
    forks : bool
        Whether handing work to them is measured.
    """
    kept = ["the reorder window"] if core.reorder_window is not None else []
    kept += [] if forks else ["fork and join", "bytes from other cores"]
    notes = [n for n in core.notes if not any(phrase in n for phrase in SETTLED)]
    notes.append(f"measured with {threads} threads where a figure is of all cores")
    notes += [f"not measured but as described: {', '.join(kept)}"] if kept else []
    return dataclasses.replace(
        core,
        name=f"probed-{core.name.removeprefix('native-')}",
        source=(*core.source, "tvm-blislike probe"),
        notes=tuple(notes),
    )


def result_of(
    core: Core, threads: int, rates: Mapping[str, np.ndarray], notes: tuple[str, ...]
) -> ProbeResult:
    """Return the result of some rounds.

    Parameters
    ----------
    core : Core
        As described before measuring.
    threads : int
        Threads of the steps `... all`.
    rates : mapping of str to np.ndarray
        Work per second by step and round.
    notes : tuple of str
        Under which conditions.
    """
    spreads = {name: spread(values) for name, values in rates.items()}
    typical_rates = {name: typical(values) for name, values in rates.items()}
    return ProbeResult(core, threads, typical_rates, spreads, (*notes, *spread_notes(spreads)))


def typical(values: np.ndarray) -> float:
    """Return a step's rate: the mean of the best of its rounds.

    Whatever else the machine does only slows them; but a single best round may be one of those in
    which a shared clock or memory was had alone.
    """
    best = max(1, round(BEST_SHARE * len(values)))
    return float(np.mean(np.sort(values)[-best:]))
