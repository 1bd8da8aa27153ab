"""Measures a core: all facts that the cost models use, with kernels of this library."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_blislike.probe.measure import (
        measure_peak_gflops,
        measure_peak_gops,
        probe,
        read_bandwidth,
    )
    from tvm_blislike.probe.result import ProbeResult

__all__ = ["ProbeResult", "measure_peak_gflops", "measure_peak_gops", "probe", "read_bandwidth"]


def __getattr__(name: str) -> Any:
    """Import on first use: most processes read what an earlier one measured."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "result" if name == "ProbeResult" else "measure"
    return getattr(import_module(f"{__name__}.{home}"), name)
