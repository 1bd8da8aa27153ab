"""What a cost model says of one configuration: its time, and where that goes."""

from __future__ import annotations

from dataclasses import dataclass, field

# Part of a breakdown that is no time of the kernel.
NEIGHBOURS = "layouts"
# An operand, the level that holds it (0: memory), its bytes, and its part of a thread's share.
Placed = tuple[str, int, int, float]


@dataclass(frozen=True)
class Estimate:
    """Predicted time and where it goes.

    Parameters
    ----------
    seconds : float
        Predicted time of one call.
    peak_fraction : float
        Useful FMAs over those that `threads` cores could start in that time.
    cycles : dict of str to float
        Breakdown per thread: "fma", "loads", "traffic", "edges", "epilogue", "packing", "fork";
        `NEIGHBOURS` is what the layouts of the neighbours cost, outside the kernel.
    footprint : tuple of (str, int, int, float)
        (operand, cache level, bytes, fraction of the level per thread).
    """

    seconds: float
    peak_fraction: float
    cycles: dict[str, float] = field(default_factory=dict)
    footprint: tuple[Placed, ...] = ()
