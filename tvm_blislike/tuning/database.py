"""Records as MetaSchedule's JSON database, and back.

A workload of the database is the PrimFunc of one configuration, as TE defines it; the trace is
what the template did to it. The PrimFunc's attribute holds the record, so nothing is lost on the
way back, and databases may be merged by MetaSchedule's own tools.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import meta_schedule as ms

from tvm_blislike.errors import InputError, OutputError
from tvm_blislike.hardware import Core, described_cores, native_core
from tvm_blislike.model.marks import RECORD
from tvm_blislike.model.validity import core_facts
from tvm_blislike.passes.schedule import apply_template
from tvm_blislike.records.record import EMULATED, BadRecordError, Record
from tvm_blislike.tuning import kernels
from tvm_blislike.tuning.kernels import CandidateGroup
from tvm_blislike.tuning.traces import RECORDS, register_intrinsics

_FILES = ("database_workload.json", RECORDS)


def export(records: Sequence[Record], folder: Path) -> int:
    """Add the usable records of known cores to a database; return how many.

    Those of emulated processors are left out: nobody could tell them from others there.

    Raises
    ------
    OutputError
        When the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        register_intrinsics(folder)
        database = ms.database.JSONDatabase(work_dir=str(folder))
    except (OSError, RuntimeError) as error:
        raise OutputError(f"cannot write the database {folder}: {error}") from error
    measured = [r for r in records if r.status == "ok" and r.context != EMULATED]
    usable = [(r, core) for r in measured if (core := _core(r.facts))]
    for record, core in usable:
        _commit(database, record, core)
    return len(usable)


def read(folder: Path) -> tuple[list[Record], int]:
    """Return the records of a database, and how many of its entries are other schedules.

    Raises
    ------
    InputError
        When the folder holds no database.
    """
    if not all((folder / name).is_file() for name in _FILES):
        raise InputError(
            f"{folder} holds no MetaSchedule database", f"wanted: {' and '.join(_FILES)}"
        )
    try:
        register_intrinsics(folder)
        database = ms.database.JSONDatabase(work_dir=str(folder), allow_missing=False)
        entries = list(database.get_all_tuning_records())
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise InputError(f"{folder} is no MetaSchedule database: {reason[0]}") from error
    found = [record for entry in entries if (record := _record(entry)) is not None]
    return found, len(entries) - len(found)


def _commit(database: Any, record: Record, core: Core) -> None:
    group = CandidateGroup(record.workload, (record.config,), core, record.threads)
    func = kernels.functions(group, 0, record.config)["candidate_0"]
    func = func.with_attr({"global_symbol": "main", RECORD: record.to_json()})
    mod = tvm.IRModule({"main": func})
    schedule = s_tir.Schedule(mod)
    apply_template(schedule, record.workload, record.config, core, record.threads)
    entry = ms.database.TuningRecord(
        schedule.trace,
        database.commit_workload(mod),
        list(record.seconds),
        tvm.target.Target(dict(record.target)),
        ms.arg_info.ArgInfo.from_prim_func(func),
    )
    database.commit_tuning_record(entry)


def _record(entry: Any) -> Record | None:
    """Return the record of an entry, None for schedules that are not ours."""
    func = entry.workload.mod["main"] if "main" in _functions(entry.workload.mod) else None
    if not isinstance(func, tirx.PrimFunc) or RECORD not in (func.attrs or {}):
        return None
    try:
        return Record.from_json(str(func.attrs[RECORD]))
    except BadRecordError:
        return None


def _functions(mod: tvm.IRModule) -> list[str]:
    return [gvar.name_hint for gvar in mod.get_global_vars()]


@functools.cache
def _cores() -> dict[str, Core]:
    """Return every described core and the present one by its facts."""
    cores = [*described_cores(), native_core()]
    return {core_facts(core): core for core in cores}


def _core(facts: str) -> Core | None:
    return _cores().get(facts)
