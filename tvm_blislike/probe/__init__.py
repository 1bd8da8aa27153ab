"""Measures a core: all facts that the cost models use, with kernels of this library."""

from tvm_blislike.probe.measure import (
    measure_peak_gflops,
    measure_peak_gops,
    probe,
    read_bandwidth,
)
from tvm_blislike.probe.result import ProbeResult

__all__ = ["ProbeResult", "measure_peak_gflops", "measure_peak_gops", "probe", "read_bandwidth"]
