"""Cycles of a loop on a core that issues in order, from the text of its instructions.

llvm-mca has models of Cortex-A53 and A55, but not of what limits their k loops: its A55 starts two
128-bit multiply-adds a cycle (Arm's guide: one, on two 64-bit pipes); its A53 lets a load wait
until the multiply-add before it has written its result; both load 128 bits a cycle. This model
takes the core's facts instead: instructions start in order, `issue_per_cycle` at most, each when
its operands are there and its unit is free.

- The vector unit starts `fma_per_cycle` vector operations a cycle, of any kind.
- The load unit delivers `loads_per_cycle` vectors a cycle: with half a vector, a 128-bit load
  keeps it for two cycles, and nothing else starts beside a load that takes more than one (ncnn's
  note on dual issue of Cortex-A53 and A55).
- The integer units take the rest, branches included.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tvm_blislike.hardware import Core
from tvm_blislike.tvm_seams.machine_code import Instruction

# Cycles from a load, and from an integer register moved into a vector, to its use; LLVM's models
# of Cortex-A53 and A55 say 3 to 4 for loads.
LOAD_LATENCY = 4
INSERT_LATENCY = 4
INTEGER_LATENCY = 1
_REGISTER = re.compile(r"\b([vqdsxw])(\d+)\b")
_WARM_UP = 4
_MEASURED = 16
_BYTES = {"q": 16, "v": 16, "d": 8, "s": 4, "x": 8, "w": 4}


@dataclass(frozen=True)
class _Operation:
    """What the pipeline sees of an instruction."""

    unit: str
    reads: frozenset[str]
    writes: frozenset[str]
    cycles: int
    latency: int
    alone: bool


def cycles(loop: Sequence[Instruction], core: Core) -> float:
    """Return the cycles of one iteration of a loop, after the first few.

    Parameters
    ----------
    loop : sequence of Instruction
        AArch64 instructions of one iteration, the closing branch included.
    core : Core
        A core that issues in order.

    Raises
    ------
    ValueError
        When the core reorders instructions, or does not state how many it issues.
    """
    if not core.in_order or core.issue_per_cycle is None:
        raise ValueError(f"{core.name} is not described as a core that issues in order")
    operations = [_operation(instruction, core) for instruction in loop]
    ends = _issue(operations * (_WARM_UP + _MEASURED), core)
    first, last = _WARM_UP * len(loop) - 1, len(ends) - 1
    return (ends[last] - ends[first]) / _MEASURED


def _issue(operations: Sequence[_Operation], core: Core) -> list[int]:
    """Return the cycle in which each operation starts."""
    ready: dict[str, int] = {}
    free: dict[str, int] = {}
    now, started, alone = 0, 0, False
    found = []
    for operation in operations:
        earliest = max(
            [now, free.get(operation.unit, 0), *(ready.get(r, 0) for r in operation.reads)]
        )
        full = started >= core.issue_per_cycle or alone or (operation.alone and started)
        if earliest == now and full:
            earliest = max(now + 1, earliest)
        if earliest > now:
            now, started, alone = earliest, 0, False
        found.append(now)
        started += 1
        alone = operation.alone
        if operation.unit != "integer":
            free[operation.unit] = now + operation.cycles
        for register in operation.writes:
            ready[register] = now + operation.latency
    return found


def _operation(instruction: Instruction, core: Core) -> _Operation:
    if instruction.registers_loaded and not instruction.name.startswith("st"):
        return _load(instruction, core)
    registers = _registers(instruction.operands)
    if any(register.startswith("v") for register in registers):
        written = frozenset(registers[:1])
        fused = instruction.is_fma
        takes = math.ceil(1 / core.fma_per_cycle)
        latency = core.fma_latency if fused else INSERT_LATENCY
        return _Operation("vector", frozenset(registers), written, takes, latency, False)
    flags = frozenset(["flags"])
    if instruction.is_branch:
        return _Operation("integer", flags, frozenset(), 1, 1, False)
    sets = flags if instruction.name in ("subs", "adds", "cmp", "cmn", "tst") else frozenset()
    written = frozenset(registers[:1]) | sets
    return _Operation("integer", frozenset(registers[1:]), written, 1, INTEGER_LATENCY, alone=False)


def _load(instruction: Instruction, core: Core) -> _Operation:
    """A load: its bytes decide how long it keeps the load unit."""
    target, _, address = instruction.operands.partition("[")
    whole = _registers(target)
    if "{" in target:
        # ld1 { v0.s }[1], [x0] and ld1r { v0.4s }, [x0]
        target, _, address = instruction.operands.rpartition("[")
        whole = _registers(target.partition("}")[0])
    names = [match.group(1) for match in _REGISTER.finditer(target.partition("}")[0])]
    lane = "{" in instruction.operands
    size = sum(4 if lane else _BYTES[name] for name in names)
    path = core.loads_per_cycle * core.vector_bits / 8
    takes = max(1, math.ceil(size / path))
    reads = frozenset(_registers(address)) | (frozenset(whole) if lane else frozenset())
    return _Operation("load", reads, frozenset(whole), takes, LOAD_LATENCY + takes - 1, takes > 1)


def _registers(operands: str) -> list[str]:
    """Return the registers that operands name: vectors as v0, integers as x0, `sp` left out."""
    found = []
    for kind, number in _REGISTER.findall(operands):
        found.append(f"{'x' if kind in 'xw' else 'v'}{number}")
    return found
