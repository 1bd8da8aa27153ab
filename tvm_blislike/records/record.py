"""A record: what one configuration of one workload measured, as one line of JSON.

A line carries a checksum of its other fields, so a torn or edited one is recognized.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from statistics import median, quantiles
from typing import Any

from tvm_blislike.model.config import Config
from tvm_blislike.model.validity import are_compatible, versions
from tvm_blislike.model.workload import Workload
from tvm_blislike.schedules import read_config

FORMAT = 1
# Usable; computes something else; crashed, hung or could not be built; slower in its model.
STATUSES = ("ok", "wrong", "failed", "dropped")
# An emulator's times mean nothing: nothing follows them.
EMULATED = "emulated"
# By itself with the caches as a model leaves them before each repeat, or with all in place; in a
# model; by itself on an emulated processor.
CONTEXTS = ("cold", "warm", "model", EMULATED)
_CHECK = "check"


class BadRecordError(ValueError):
    """A line is no record of this format; the message says why."""


@dataclass(frozen=True)
class Record:
    """One measurement.

    Parameters
    ----------
    workload : Workload
        What was computed.
    config : Config
        How.
    core : str
        Name of the core.
    facts : str
        `core_facts` of the core: a record counts for cores with the same only.
    target : mapping
        Configuration of TVM's target it was built for.
    threads : int
        Threads it ran with.
    seconds : tuple of float
        Every repeat, in order of time. Empty unless `status` is "ok" or "dropped".
    predicted_seconds : float
        By the analytical model, before measuring.
    error : float or None
        Largest difference from the reference relative to its largest value; None if not known.
    status : str
        One of `STATUSES`.
    reason : str
        Why the status is not "ok".
    context : str
        One of `CONTEXTS`.
    model : str
        Name of the model it was tuned for.
    versions : mapping of str to str
        Of this package and of TVM.
    date : str
        UTC, ISO 8601.
    """

    workload: Workload
    config: Config
    core: str
    facts: str
    target: Mapping[str, Any]
    threads: int
    seconds: tuple[float, ...]
    predicted_seconds: float
    error: float | None = None
    status: str = "ok"
    reason: str = ""
    context: str = "cold"
    model: str = ""
    versions: Mapping[str, str] = field(default_factory=versions)
    date: str = field(default_factory=lambda: now())

    @property
    def median_seconds(self) -> float:
        """Median of the repeats; infinity without any."""
        return median(self.seconds) if self.seconds else float("inf")

    @property
    def spread_seconds(self) -> float:
        """Distance of the quartiles of the repeats."""
        return spread(self.seconds)

    @property
    def key(self) -> tuple[str, int, Workload]:
        """What it must have in common with a choice that follows it."""
        return (self.facts, self.threads, self.workload)

    def to_json(self) -> str:
        """Return the record as one line of JSON, without the newline."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields |= {
            "format": FORMAT,
            "workload": json.loads(self.workload.to_json()),
            "config": self.config.changed_fields(),
            "target": dict(self.target),
            "seconds": list(self.seconds),
            "versions": dict(self.versions),
        }
        return _dump({**fields, _CHECK: _checksum(fields)})

    @staticmethod
    def from_json(line: str) -> Record:
        """Return the record that `to_json` wrote.

        Raises
        ------
        BadRecordError
            When the line is torn, was edited, or has another format.
        """
        fields = fields_of(line)
        try:
            return Record(**_typed(fields))
        except (ValueError, TypeError, KeyError) as error:
            raise BadRecordError(f"of another version: {error}") from error


def fields_of(line: str) -> dict[str, Any]:
    """Return the fields of a line as plain JSON, whether or not this version can use them.

    Raises
    ------
    BadRecordError
        When the line is torn, was edited, or has another format.
    """
    try:
        fields = json.loads(line)
        is_whole = fields.pop(_CHECK) == _checksum(fields)
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise BadRecordError("torn, or no record") from error
    if not is_whole:
        raise BadRecordError("damaged or edited: its checksum differs")
    if fields.pop("format", None) != FORMAT:
        raise BadRecordError("written in another format")
    return fields


def _typed(fields: dict[str, Any]) -> dict[str, Any]:
    if fields["status"] not in STATUSES or fields["context"] not in CONTEXTS:
        raise ValueError("unknown status or context")
    return fields | {
        "workload": Workload.from_json(json.dumps(fields["workload"])),
        "config": read_config(json.dumps(fields["config"])),
        "seconds": tuple(float(s) for s in fields["seconds"]),
    }


def _dump(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, allow_nan=False)


def _checksum(fields: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(_dump(fields).encode()):08x}"


def spread(seconds: Sequence[float]) -> float:
    """Return the distance of the quartiles of several repeats, 0 for a single one."""
    if len(seconds) < 2:
        return 0.0
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return high - low


def is_compatible(record: Record, current: Mapping[str, str] | None = None) -> bool:
    """Whether a record's kernels are still what this version builds."""
    return are_compatible(record.versions, current)


def now() -> str:
    """Return the present time, UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
