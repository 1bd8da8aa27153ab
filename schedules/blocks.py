"""Blocks of C in a schedule: their loops, and the micro-kernel call that updates one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import s_tir

from tvm_blislike.microkernels import Microkernel, UpdateShape, update_intrin
from tvm_blislike.model.directives import Named


def unroll_block(
    sch: s_tir.Schedule, stage: Any, kernel: Microkernel, rows: Sequence[str] = ("mw",)
) -> Any:
    """Unroll the loops over a block of C, such as its stores of zero; return that over lanes.

    Parameters
    ----------
    stage : SBlockRV
        Its innermost loops run over rows and columns of the block.
    rows : sequence of str
        The axes of the rows.
    """
    *over_rows, j = sch.get_loops(stage)[-1 - len(rows) :]
    columns, lane = sch.split(j, [None, kernel.lanes])
    for loop, axis in zip((*over_rows, columns), (*rows, "nr"), strict=True):
        sch.unroll(loop)
        Named(axis).on(sch, loop)
    return lane


def call_kernel(
    sch: s_tir.Schedule, acc: Any, nest: Sequence[Any], kernel: Microkernel, shape: UpdateShape
) -> None:
    """Put a micro-kernel call in the place of the loops over k and a block of C of a stage."""
    inner = _without_units(sch, nest)
    if shape.in_memory:
        # Blockized before tensorizing, zeroing stays with the first steps of k.
        sch.blockize(inner[0])
        inner = sch.get_loops(acc)[-len(inner) :]
    sch.tensorize(inner[0], update_intrin(kernel, shape))


def _without_units(sch: s_tir.Schedule, nest: Sequence[Any]) -> list[Any]:
    """Move unit loops outside, the intrinsic has no such axes; return the others."""
    units = [loop for loop in nest if int(sch.get(loop).extent) == 1]
    inner = [loop for loop in nest if loop not in units]
    sch.reorder(*units, *inner)
    return inner
