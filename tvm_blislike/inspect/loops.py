"""The k loops of a compiled model: the machine code of each layer's micro-kernel and its speed."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.hardware import Core
from tvm_blislike.inspect.mca import LoopSpeed, speed
from tvm_blislike.model.report import Report
from tvm_blislike.tvm_seams.llvm_text import parts_of
from tvm_blislike.tvm_seams.machine_code import Instruction, functions, innermost_loops


@dataclass(frozen=True)
class LayerLoop:
    """The k loop of one layer.

    Parameters
    ----------
    layer : str
        Kernel name, as in the report.
    implementation, microkernel : str
        What was chosen for it.
    loop : tuple of Instruction
        One iteration of its innermost loop with the most multiply-adds.
    speed : LoopSpeed
        What it consists of, and its cycles.
    """

    layer: str
    implementation: str
    microkernel: str
    loop: tuple[Instruction, ...]
    speed: LoopSpeed


def layer_loops(assembly: str, report: Report, core: Core) -> list[LayerLoop]:
    """Return the k loop of every layer that has a micro-kernel and a loop.

    Parameters
    ----------
    assembly : str
        Machine code of the whole model (`CompiledModel.assembly`).

    Raises
    ------
    ToolchainError
        When llvm-mca is missing or too old.
    """
    bodies = functions(assembly)
    found = []
    for layer in report.layers:
        loops = [
            loop for part in parts_of(layer.name, bodies) for loop in innermost_loops(bodies[part])
        ]
        loop = max(loops, key=_fmas, default=[])
        if layer.is_chosen and _fmas(loop):
            found.append(
                LayerLoop(
                    layer.name,
                    layer.implementation,
                    layer.microkernel,
                    tuple(loop),
                    speed(loop, core),
                )
            )
    return found


def _fmas(loop: list[Instruction]) -> int:
    return sum(instruction.is_fma for instruction in loop)
