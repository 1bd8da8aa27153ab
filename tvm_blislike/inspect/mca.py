"""Cycles of a k loop without a board: llvm-mca, and what its models leave out.

llvm-mca simulates LLVM's scheduling models. Some cores share the model of another, whose figures
differ; `_MODELS` says which model stands for which core. Cores that issue in order are counted by
`cost_models.in_order` beside it, because LLVM's models of Cortex-A53 and A55 miss what matters.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from tvm_blislike.errors import ToolchainError
from tvm_blislike.hardware import Core
from tvm_blislike.inspect import in_order
from tvm_blislike.tvm_seams.machine_code import Instruction, LoopCounts, count

# Older versions give Cortex-A76 and Neoverse N1 the pipelines of Cortex-A57.
OLDEST = 19
_NAMES = ("llvm-mca", *(f"llvm-mca-{version}" for version in range(30, OLDEST - 1, -1)))
# Cores without a model of their own (LLVM 22 lends them Cortex-A57's or none).
_MODELS = {
    "cortex-a76": "neoverse-n1",
    "cortex-a78": "neoverse-n1",
    "carmel": "neoverse-n1",
    "sapphirerapids": "skylake-avx512",
    "icelake-server": "skylake-avx512",
    "znver4": "skylake-avx512",
}
# Micro-operations dispatched for each of `Core.issue_per_cycle`, where the dispatch width of LLVM's
# model differs from version to version: N1 8 in LLVM 19 and 3 in LLVM 22, V1 15 and 8. V1
# dispatches 8 macro-operations and 16 micro-operations, which are what llvm-mca counts (Arm's
# Software Optimization Guide of it, 4.1, "Dispatch constraints").
_DISPATCHED = {"neoverse-n1": 1, "neoverse-v1": 2}
_ITERATIONS = 200


@dataclass(frozen=True)
class LoopSpeed:
    """What a k loop consists of and how fast it runs.

    Parameters
    ----------
    counts : LoopCounts
        Instructions of one iteration.
    mca_cycles : float
        Cycles of one iteration by llvm-mca.
    cycles : float
        The same; on a core that issues in order, by `cost_models.in_order`.
    utilisation : float
        Multiply-adds started over those that the core could start in `cycles`.
    """

    counts: LoopCounts
    mca_cycles: float
    cycles: float
    utilisation: float


def speed(loop: Sequence[Instruction], core: Core) -> LoopSpeed:
    """Return how fast a loop runs on a core.

    Raises
    ------
    ToolchainError
        When llvm-mca is missing, too old, or does not understand the loop.
    """
    counts, simulated = count(list(loop)), mca_cycles(loop, core)
    cycles = in_order.cycles(loop, core) if core.in_order else simulated
    return LoopSpeed(counts, simulated, cycles, counts.fmas / (core.fma_per_cycle * cycles))


def mca_cycles(loop: Sequence[Instruction], core: Core) -> float:
    """Return the cycles of one iteration by llvm-mca.

    Raises
    ------
    ToolchainError
        As for `speed`.
    """
    model = _MODELS.get(core.mcpu) or core.isa.pipelines or core.mcpu
    arguments = [f"-mtriple={core.mtriple}", f"-mcpu={model}", f"-iterations={_ITERATIONS}"]
    if model in _DISPATCHED and core.issue_per_cycle:
        arguments.append(f"-dispatch={_DISPATCHED[model] * core.issue_per_cycle}")
    done = subprocess.run(
        [find_tool(), *arguments], input=_listing(loop), capture_output=True, text=True, check=False
    )
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if not found:
        raise ToolchainError(f"llvm-mca failed for {model}: {done.stderr.strip()[:300]}")
    return int(found[1]) / _ITERATIONS


@functools.cache
def find_tool() -> str:
    """Return the path of llvm-mca.

    Raises
    ------
    ToolchainError
        When there is none, or only ones that are too old.
    """
    for name in _NAMES:
        path = shutil.which(name)
        if path and _version(path) >= OLDEST:
            return path
    raise ToolchainError(
        f"llvm-mca of LLVM {OLDEST} or newer is not installed",
        "install it, for example Debian's package llvm-22 or llvm-19",
    )


def _version(path: str) -> int:
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"LLVM version (\d+)", text)
    return int(found[1]) if found else 0


def _listing(loop: Sequence[Instruction]) -> str:
    """Text of the loop; every branch goes to its start."""
    lines = ["loop:"]
    for instruction in loop:
        operands = instruction.operands
        if instruction.is_branch:
            operands = operands.removesuffix(instruction.target) + "loop"
        lines.append(f"\t{instruction.name}\t{operands}")
    return "\n".join(lines) + "\n"
