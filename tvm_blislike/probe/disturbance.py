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


class Watch:
    """Looks at the system's clocks from its creation on."""

    def __init__(self) -> None:
        self._began, self._before, self._own = time.monotonic(), psutil.cpu_times(), _own_seconds()

    def notes(self) -> list[str]:
        """Return what took the CPUs from the probe since."""
        seconds, now = time.monotonic() - self._began, psutil.cpu_times()
        stolen = getattr(now, "steal", 0.0) - getattr(self._before, "steal", 0.0)
        others = (_busy(now) - _busy(self._before) - (_own_seconds() - self._own)) / seconds
        share = stolen / (seconds * (psutil.cpu_count() or 1))
        notes = []
        if share > _MUCH_STEAL:
            notes.append(f"disturbed: other guests of this host took {share:.1%} of the CPUs' time")
        if others > _MUCH_OTHERS:
            notes.append(f"disturbed: other processes kept {others:.1f} CPUs busy")
        return notes


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
