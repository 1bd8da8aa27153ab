"""The k loops of a compiled model: the machine code of each layer's micro-kernel and its speed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvm_blislike.hardware import Core
from tvm_blislike.inspect.assembly import Instruction, functions, innermost_loops
from tvm_blislike.inspect.mca import LoopSpeed, speed
from tvm_blislike.model.report import Report


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
        loops = [loop for text in _texts(layer.name, bodies) for loop in innermost_loops(text)]
        loop = max(loops, key=_fmas, default=[])
        if layer.microkernel and _fmas(loop):
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


def _texts(layer: str, bodies: dict[str, str]) -> list[str]:
    """Functions of a layer: its own, and the bodies of parallel loops that these start."""
    own = [name for name in (f"__tvm_ffi_{layer}", f"{layer}_compute_") if name in bodies]
    for name in own:
        for used in re.findall(r"__tvm_parallel_lambda[\w.]*", bodies[name]):
            if used in bodies and used not in own:
                own.append(used)
    return [bodies[name] for name in own]
