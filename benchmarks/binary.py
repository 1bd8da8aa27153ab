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

import argparse
import json
import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median

from integers import SAME, measure

from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.types import BITS
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.operators.operator import WORD
from tvm_blislike.probe import measure_peak_gops
from tvm_blislike.runtime.threads import use_threads

SETS: dict[str, tuple[Workload, ...]] = {
    "squares": tuple(GemmWorkload(s, s, s // WORD) for s in (512, 768, 1024, 1536, 2048)),
    "deep": tuple(GemmWorkload(m, 512, k // WORD) for m, k in ((196, 4608), (784, 2304))),
    "3x3": tuple(
        Conv2dWorkload(1, c // WORD, h, h, c, 3, 3, padding=SAME)
        for c, h in ((64, 56), (128, 28), (256, 14), (512, 7))
    ),
}


def main() -> None:
    """Measure the sets, print the table, save it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--core", metavar="NAME", help="a described core; by default this one")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    core = Core.named(options.core) if options.core else native_core()
    top = partial(measure_peak_gops, core, BITS)
    use_threads(options.threads)
    rows = []
    for name in options.sets:
        print(f"{name}: Gop/s of signs, share of the peak, predicted share")
        own = []
        for workload in SETS[name]:
            row = measure(name, workload, core, options.threads, options.rounds, top, BITS)
            own.append(row)
            figures = f"{WORD * row.gops:7.0f} {row.fraction:6.3f} {row.predicted_fraction:6.3f}"
            print(f"  {row.workload:40s} {figures}  {row.config}", flush=True)
        mean = math.exp(sum(math.log(row.fraction) for row in own) / len(own))
        lowest, best = min(row.fraction for row in own), median(row.peak_gops for row in own)
        print(f"  geometric mean {mean:.3f}, lowest {lowest:.3f}; peak {WORD * best:.0f} Gop/s")
        rows += own
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
