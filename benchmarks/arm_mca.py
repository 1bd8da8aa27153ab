"""The k loop of every NEON micro-kernel on every ARM core, simulated: no board, no time.

    python benchmarks/arm_mca.py                      # all cores, as benchmarks/results/arm_mca.txt
    python benchmarks/arm_mca.py cortex-a72 --best 5
    python benchmarks/arm_mca.py --integers --best 4   # arm_mca_integers.txt

Needs llvm-mca (Debian's package llvm-22 or llvm-19). Each micro-kernel is compiled for the core on
its own, with A in place ("rows") and packed ("panel"). `cycles/k` are those of one step of k by
llvm-mca; on cores that issue in order, by `inspect.in_order`, which knows their load path, and
llvm-mca's figure stands beside it. `FMA` is the share of the multiply-adds that the core could
have started meanwhile. fp16 follows fp32 on cores that have such arithmetic. With `--integers` they
are products of bytes: a `sadalp` adds twice as many as an FMA of fp32 (0.9 is 1.8 times fp32 at its
peak), `sdot` four times, `smmla` eight times.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.errors import ToolchainError
from tvm_blislike.hardware import Core
from tvm_blislike.inspect.kernel_code import k_loops
from tvm_blislike.inspect.mca import LoopSpeed, find_tool, speed
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.model.types import Types

CORES = ("cortex-a53", "cortex-a55", "cortex-a57", "cortex-a72", "cortex-a76", "neoverse-n1")
# Without dot products, with them, and with products of matrices.
INTEGER_CORES = ("cortex-a57", "cortex-a72", "cortex-a76", "neoverse-n1", "neoverse-v1")
VIEWS = ("rows", "panel")
HEADER = "micro-kernel      view   cycles/k    FMA  llvm-mca/k  loads/FMA  spills  moves"


@dataclass(frozen=True)
class Row:
    """One micro-kernel with one view on one core."""

    kernel: Microkernel
    view: str
    speed: LoopSpeed

    def __str__(self) -> str:
        counts, steps = self.speed.counts, self.steps
        return (
            f"{self.kernel.name:<17} {self.view:<6} {self.speed.cycles / steps:8.2f}  "
            f"{self.speed.utilisation:.3f}  {self.speed.mca_cycles / steps:10.2f}  "
            f"{counts.loads / counts.fmas:9.3f}  {counts.spills:6}  {counts.moves:5}"
        )

    @property
    def steps(self) -> float:
        """Steps of k in one iteration of the loop."""
        return self.speed.counts.fmas / (self.kernel.mr * self.kernel.vectors)


def main() -> None:
    """Print a table for each core, the best micro-kernels first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cores", nargs="*", metavar="CORE")
    parser.add_argument("--best", type=int, metavar="N", help="only the N best of each view")
    parser.add_argument("--integers", action="store_true", help="products of bytes")
    arguments = parser.parse_args()
    try:
        print(f"{_version()}\n")
    except ToolchainError as error:
        sys.exit(str(error))
    for name in arguments.cores or (INTEGER_CORES if arguments.integers else CORES):
        core = Core.named(name)
        _print_core(core, _integers(core) if arguments.integers else _floats(core), arguments.best)


def _floats(core: Core) -> list[Sequence[Microkernel]]:
    kinds = ("float32", "float16") if core.computes("float16") else ("float32",)
    return [kernels_for(core, Types.of(kind), panels=True) for kind in kinds]


def _integers(core: Core) -> list[Sequence[Microkernel]]:
    """The micro-kernels of each instruction that multiplies bytes."""
    offered = kernels_for(core, quantized_types(core), panels=True)
    return [[k for k in offered if k.ks == ks] for ks in sorted({k.ks for k in offered})]


def _print_core(core: Core, kinds: Sequence[Sequence[Microkernel]], most: int | None) -> None:
    order = "in order" if core.in_order else "out of order"
    print(
        f"{core.name}: {order}, {core.fma_per_cycle:g} FMA and {core.loads_per_cycle:g} vector "
        f"loads a cycle\n{HEADER}"
    )
    for kernels in kinds:
        for view in VIEWS:
            rows = sorted(_rows(core, kernels, view), key=lambda row: -row.speed.utilisation)
            print(*rows[:most], sep="\n")
    print(flush=True)


def _rows(core: Core, kernels: Sequence[Microkernel], view: str) -> Iterator[Row]:
    offered = [k for k in kernels if view == "panel" or not k.panels_only]
    loops = k_loops(offered, core, view)
    for kernel in offered:
        yield Row(kernel, view, speed(loops[kernel.name], core))


def _version() -> str:
    """First line of what llvm-mca says of itself that names its version."""
    text = subprocess.run([find_tool(), "--version"], capture_output=True, text=True, check=True)
    return next(line.strip() for line in text.stdout.splitlines() if "version" in line)


if __name__ == "__main__":
    main()
