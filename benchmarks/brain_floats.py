"""Products and convolutions of bfloat16 beside the peak of their instruction, by turns in one run.

    python benchmarks/brain_floats.py                     every set, one thread
    python benchmarks/brain_floats.py --sets squares
    python benchmarks/brain_floats.py --core golden-cove  code of a described core

The peak is that of the product of the core's micro-kernels in registers (`vdpbf16ps`, tiles of
AMX), as many chains as hide its latency. Sets are those of `integers.py`; results are fp32 sums as
they are, each compared with the reference once. Each round times the peak, then the kernel; the
table gives medians.
"""

from __future__ import annotations

from integers import SETS, report

from tvm_blislike.model.types import BFLOAT_DOT

if __name__ == "__main__":
    sets = {name: SETS[name] for name in ("squares", "1x1", "3x3")}
    report(__doc__.splitlines()[0], sets, lambda _core: BFLOAT_DOT)
