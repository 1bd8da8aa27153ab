"""Traces of schedules that come from a database of MetaSchedule."""

from __future__ import annotations

from tvm.s_tir import meta_schedule as ms

from tvm_blislike.microkernels import register_named


def register_intrinsics(database: ms.database.Database) -> None:
    """Register the micro-kernels that the schedules of a database call.

    `meta_schedule.space` does so for what it generates. A process that only reads a database needs
    this before TVM's own functions replay it; the pipeline "blislike" does it by itself.
    """
    for record in database.get_all_tuning_records():
        for instruction in record.trace.insts:
            if instruction.kind.name == "Tensorize":
                register_named(str(instruction.attrs[0]))
