"""Products and convolutions of signs beside the peak of their instructions, by turns in one run.

    python benchmarks/binary.py                     every set, one thread
    python benchmarks/binary.py --sets squares
    python benchmarks/binary.py --core x86-64-v3    code of AVX2, beside the peak of AVX2

A word is 32 signs, a product of two words counts those that differ. The peak is that of the
product of the core's micro-kernels with sums in registers, as many chains as hide its latency.
Sizes are those of the signs. Results are counts of 32 bits; each is compared with the reference
once, exactly. Each round times the peak, then the kernel; the table gives medians.
"""

from __future__ import annotations

from integers import SAME, report

from tvm_blislike.model.types import BITS
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.operators.operator import WORD

SETS: dict[str, tuple[Workload, ...]] = {
    "squares": tuple(GemmWorkload(s, s, s // WORD) for s in (512, 768, 1024, 1536, 2048)),
    "deep": tuple(GemmWorkload(m, 512, k // WORD) for m, k in ((196, 4608), (784, 2304))),
    "3x3": tuple(
        Conv2dWorkload(1, c // WORD, h, h, c, 3, 3, padding=SAME)
        for c, h in ((64, 56), (128, 28), (256, 14), (512, 7))
    ),
}


if __name__ == "__main__":
    report(__doc__.splitlines()[0], SETS, lambda _core: BITS, each=WORD)
