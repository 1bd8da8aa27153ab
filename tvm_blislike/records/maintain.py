"""What `records` does with files of records: choose, merge, prune."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tvm_blislike.records import files
from tvm_blislike.records.book import RecordBook, fastest
from tvm_blislike.records.files import BadLine
from tvm_blislike.records.record import Record, is_compatible
from tvm_blislike.records.store import opened


def best(records: Sequence[Record]) -> list[Record]:
    """Return the record that a compilation would follow, for each core, threads and workload."""
    book = RecordBook(records)
    predicted = {(r.key, r.config): r.predicted_seconds for r in records}
    chosen = []
    for key in dict.fromkeys(record.key for record in records):
        usable = book.usable_of(key)
        if usable:
            chosen.append(fastest(usable, lambda config, key=key: predicted[key, config]))
    return chosen


def merge(
    target: str | os.PathLike[str], sources: Sequence[str | os.PathLike[str]]
) -> tuple[int, list[BadLine]]:
    """Append to a file or a store the records of others that it does not have.

    Returns
    -------
    tuple
        How many were added, and the lines of the sources that are none.

    Raises
    ------
    InputError
        When a source is missing.
    OutputError
        When `target` cannot be written; it is then as before.
    UsageError, ToolchainError
        See `tvm_blislike.records.store.Store`.
    """
    found: list[Record] = []
    bad: list[BadLine] = []
    for source in sources:
        kept = opened(source)
        kept.get()
        records, skipped = files.read(kept.path)
        found += records
        bad += skipped
    kept = opened(target)
    kept.get()
    path = kept.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(path):
        known = {r.to_json() for r in files.read(path)[0]} if path.exists() else set()
        fresh = {r.to_json(): r for r in found if r.to_json() not in known}
        kept.put(list(fresh.values()))
    kept.send_or_raise()
    return len(fresh), bad


def prune(path: Path, keep: int | None = None) -> tuple[int, int]:
    """Rewrite a file without bad lines, superseded records and those of other versions.

    Parameters
    ----------
    path : Path
        The file.
    keep : int, optional
        Keep only so many of the fastest for each core, threads and workload (and what is known to
        be wrong, to fail, or not to help, so that it is not measured again).

    Returns
    -------
    tuple
        How many records stay, and how many lines went.

    Raises
    ------
    InputError
        When the file is missing.
    OutputError
        When it cannot be written; it is then as before.
    """
    with files.locked(path):
        records, bad = files.read(path)
        stay = _latest([record for record in records if is_compatible(record)])
        stay = stay if keep is None else _fastest(stay, keep)
        files.rewrite(path, stay)
    return len(stay), len(records) + len(bad) - len(stay)


def _latest(records: Sequence[Record]) -> list[Record]:
    latest: dict[object, Record] = {}
    for record in records:
        known = latest.get((record.key, record.config, record.context))
        if known is None or known.date <= record.date:
            latest[record.key, record.config, record.context] = record
    return list(latest.values())


def _fastest(records: Sequence[Record], keep: int) -> list[Record]:
    pages: dict[object, list[Record]] = defaultdict(list)
    for record in records:
        if record.status == "ok":
            pages[record.key, record.context].append(record)
    kept = {
        id(record)
        for page in pages.values()
        for record in sorted(page, key=lambda r: r.median_seconds)[:keep]
    }
    return [r for r in records if r.status != "ok" or id(r) in kept]
