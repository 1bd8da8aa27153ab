"""Traces of schedules that come from a database of MetaSchedule."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tvm_blislike.microkernels import register_named
from tvm_blislike.model.registry import Template
from tvm_blislike.schedules import all_implementations

RECORDS = "database_tuning_record.json"
_NAME = re.compile(r'"(blislike_\w+)"')


def register_intrinsics(work_dir: str | os.PathLike[str]) -> None:
    """Register the micro-kernels that the schedules of a database call.

    `meta_schedule.space` registers those of the schedules that it generates. Another process needs
    this before it opens the database: opening one replays what is in it.

    Parameters
    ----------
    work_dir : path
        Folder of a `ms.database.JSONDatabase`; one without records is fine.
    """
    file = Path(work_dir) / RECORDS
    text = file.read_text() if file.is_file() else ""
    for name in set(_NAME.findall(text)):
        register_named(name)
        for implementation in all_implementations():
            if isinstance(implementation, Template):
                implementation.register_named(name)
