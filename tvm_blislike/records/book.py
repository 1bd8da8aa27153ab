"""What is on record for a workload, and which of it is fastest."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from tvm_blislike.hardware import Core
from tvm_blislike.model.config import Config
from tvm_blislike.model.validity import core_facts, versions
from tvm_blislike.model.workload import Workload
from tvm_blislike.records import files
from tvm_blislike.records.record import EMULATED, Record, is_compatible, spread
from tvm_blislike.records.store import up_to_date

_SHOWN_LINES = 3
# Of `Record.key`: facts of the core, threads, workload.
Key = tuple[str, int, Workload]


class RecordBook:
    """Records by core, threads and workload; those of other versions are left out.

    Parameters
    ----------
    records : iterable of Record
        In the order in which they were written.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._current = versions()
        self._pages: dict[Key, dict[tuple[Config, str], Record]] = defaultdict(dict)
        self.add(records)

    @staticmethod
    def open(
        path: str | os.PathLike[str] | None, core: Core | None = None, threads: int | None = None
    ) -> RecordBook:
        """Return the records of a file or a store; lines that are none are named in a warning.

        Parameters
        ----------
        path : path or None
            None stands for `default_place()`, which need not exist; "none" for no records.
        core, threads : optional
            What is read from a store; by default all.

        Raises
        ------
        InputError
            When a file that was named is missing.
        UsageError, ToolchainError
            See `tvm_blislike.records.store.Store`.
        """
        path = up_to_date(path, core, threads)
        if str(path) == "none" or (path is None and not files.default_path().exists()):
            return RecordBook()
        records, bad = files.read(path or files.default_path())
        warn_of(bad)
        return RecordBook(records)

    def add(self, records: Iterable[Record]) -> None:
        """Take in more records: of each configuration and context the latest date counts."""
        for record in records:
            if not is_compatible(record, self._current):
                continue
            page = self._pages[record.key]
            known = page.get((record.config, record.context))
            if known is None or known.date <= record.date:
                page[record.config, record.context] = record

    def lines(self) -> list[str]:
        """Return the records as lines of JSON, sorted: equal for books of the same records."""
        pages = tuple(self._pages.values())
        return sorted(record.to_json() for page in pages for record in tuple(page.values()))

    def of(self, workload: Workload, core: Core, threads: int) -> tuple[Record, ...]:
        """Return the latest record of each configuration and context, whatever its status."""
        return tuple(self._pages.get((core_facts(core), threads, workload), {}).values())

    def usable(
        self, workload: Workload, core: Core, threads: int, emulated: bool = False
    ) -> tuple[Record, ...]:
        """Return the records of configurations that were right and are not dropped.

        Those of emulated processors, whose times mean nothing, or all others.
        """
        return self.usable_of((core_facts(core), threads, workload), emulated)

    def usable_of(self, key: Key, emulated: bool = False) -> tuple[Record, ...]:
        """Return the usable records of a `Record.key`, as `usable` does."""
        every = tuple(self._pages.get(key, {}).values())  # at once: another thread may add some
        page = [r for r in every if (r.context == EMULATED) == emulated]
        out = {r.config: r.date for r in page if r.status in ("dropped", "wrong")}
        return tuple(
            r for r in page if r.status == "ok" and r.seconds and r.date > out.get(r.config, "")
        )


def fastest(
    records: Sequence[Record],
    predicted: Callable[[Config], float],
    moving: Callable[[Config], float] = lambda _config: 0.0,
) -> Record:
    """Return the record to follow: the model's favourite among those as fast as the fastest.

    Times inside a model, where there are any, count instead of those of kernels by themselves.

    Parameters
    ----------
    records : sequence of Record
        At least one, with times.
    predicted : callable
        Predicted seconds of a configuration.
    moving : callable
        Seconds that a configuration's layouts cost its neighbours, to be added to each time.
    """
    records = [r for r in records if r.context == "model"] or records
    times = [[s + moving(record.config) for s in record.seconds] for record in records]
    return records[favourite(times, [predicted(record.config) for record in records])]


def favourite(times: Sequence[Sequence[float]], predicted: Sequence[float]) -> int:
    """Return the index of the least predicted among those as fast as the fastest.

    Two are as fast as each other when their medians differ by less than half the spread of either.

    Parameters
    ----------
    times : sequence of sequence of float
        All repeats of each candidate, in seconds.
    predicted : sequence of float
        Predicted seconds of each.
    """
    medians = [median(seconds) for seconds in times]
    spreads = [spread(seconds) for seconds in times]
    best = min(range(len(times)), key=medians.__getitem__)
    ties = [
        i
        for i in range(len(times))
        if medians[i] - medians[best] <= max(spreads[i], spreads[best]) / 2
    ]
    return min(ties, key=lambda i: (predicted[i], medians[i]))


def warn_of(bad: Sequence[files.BadLine]) -> None:
    """Name the lines of a file that were skipped."""
    if not bad:
        return
    named = "; ".join(str(line) for line in bad[:_SHOWN_LINES])
    more = f"; and {len(bad) - _SHOWN_LINES} more" if len(bad) > _SHOWN_LINES else ""
    noun = "line" if len(bad) == 1 else "lines"
    warnings.warn(f"skipped {len(bad)} {noun} of the records: {named}{more}", stacklevel=3)
