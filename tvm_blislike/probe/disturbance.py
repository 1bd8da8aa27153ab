"""What else happened while the probe measured."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import psutil

# Shares worth mentioning: of a figure's median, of the CPUs' time, of a CPU.
_MUCH_SPREAD = 0.1
_MUCH_STEAL = 0.005
_MUCH_OTHERS = 0.1


# From these on figures of a second are not to be trusted: the same shares, and how far the rounds
# of compute steps, which read no memory, may differ.
_BUSY_STEAL, _BUSY_OTHERS, _BUSY_SPREAD = 0.02, 0.25, 0.25
_COMPUTE = ("chain", "fma", "fma all")


class Watch:
    """Looks at the system's clocks from its creation on."""

    def __init__(self) -> None:
        self._began, self._before, self._own = time.monotonic(), psutil.cpu_times(), _own_seconds()

    def notes(self) -> list[str]:
        """Return what took the CPUs from the probe since."""
        stolen, others = self._shares()
        notes = []
        if stolen > _MUCH_STEAL:
            notes.append(
                f"disturbed: other guests of this host took {stolen:.1%} of the CPUs' time"
            )
        if others > _MUCH_OTHERS:
            notes.append(f"disturbed: other processes kept {others:.1f} CPUs busy")
        return notes

    def disturbance(self, spreads: Mapping[str, float]) -> float:
        """Return how much a probe was disturbed; above 1 it is to be made again.

        Parameters
        ----------
        spreads : mapping of str to float
            How far the rounds of each step are apart.
        """
        stolen, others = self._shares()
        apart = max(spreads.get(step, 0.0) for step in _COMPUTE)
        return max(stolen / _BUSY_STEAL, others / _BUSY_OTHERS, apart / _BUSY_SPREAD)

    def _shares(self) -> tuple[float, float]:
        """Return the share of all CPUs that other guests took, and the CPUs of other processes."""
        seconds, now = time.monotonic() - self._began, psutil.cpu_times()
        stolen = getattr(now, "steal", 0.0) - getattr(self._before, "steal", 0.0)
        others = (_busy(now) - _busy(self._before) - (_own_seconds() - self._own)) / seconds
        return stolen / (seconds * (psutil.cpu_count() or 1)), others


def spread(values: np.ndarray) -> float:
    """Return how far apart the quartiles of a step's rounds are, as a share of their median."""
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float((high - low) / middle)


def spread_notes(spreads: Mapping[str, float]) -> list[str]:
    """Return which steps differed from round to round."""
    many = [f"{name} {share:.0%}" for name, share in spreads.items() if share > _MUCH_SPREAD]
    return [f"disturbed: rounds differed, quartiles by {', '.join(many)}"] if many else []


def _own_seconds() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


def _busy(times: object) -> float:
    return float(sum(getattr(times, name, 0.0) for name in ("user", "nice", "system")))
