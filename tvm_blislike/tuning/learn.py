"""From records to a learned model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from tvm_blislike.cost_models.learned import Facts, LearnedModel, Sample
from tvm_blislike.hardware import Core
from tvm_blislike.model.validity import core_facts, versions
from tvm_blislike.records.record import Record, is_compatible
from tvm_blislike.schedules import get_implementation

# Kernels by themselves as the other layers of a model leave the caches, and inside a model.
_CONTEXTS = ("cold", "model")
# Records of a group are written within milliseconds.
_TOGETHER = timedelta(seconds=1)


def train(records: Iterable[Record], core: Core, seed: int = 0) -> LearnedModel:
    """Return the model of what records say about a core.

    Of each configuration, number of threads and context the latest record counts, in whatever
    order they come. Records of warm caches tell nothing about a model and are left out, as are
    those whose implementation or micro-kernel does not exist any more.

    Raises
    ------
    UsageError
        When there are too few records of the core.
    ToolchainError
        Without xgboost.
    """
    pairs = [(r, candidate_of(r, core)) for r in usable(records, core)]
    known = [(record, candidate) for record, candidate in pairs if candidate is not None]
    return LearnedModel.train(
        [candidate for _, candidate in known],
        [record.median_seconds for record, _ in known],
        groups_of([record for record, _ in known]),
        _facts([record for record, _ in known], core),
        seed,
    )


def usable(records: Iterable[Record], core: Core) -> list[Record]:
    """Return the records of a core to learn from, in an order that does not depend on theirs."""
    facts, current = core_facts(core), versions()
    latest: dict[object, Record] = {}
    for r in records:
        if r.facts == facts and r.context in _CONTEXTS and is_compatible(r, current):
            known = latest.get((r.key, r.config, r.context))
            if known is None or known.date <= r.date:
                latest[r.key, r.config, r.context] = r
    # A configuration that was dropped did not help its model, but its times are right.
    timed = [r for r in latest.values() if r.seconds and r.status in ("ok", "dropped")]
    return sorted(timed, key=Record.to_json)


def groups_of(records: Sequence[Record]) -> list[int]:
    """Return a number for each record, the same for candidates of a workload that took turns.

    They were written down together; groups of the same workload have some builds between them.
    """
    order = sorted(range(len(records)), key=lambda place: _place_and_date(records[place]))
    numbers = [0] * len(records)
    for before, place in pairwise(order):
        together = _took_turns(records[before], records[place])
        numbers[place] = numbers[before] + (not together)
    return numbers


def _place_and_date(record: Record) -> tuple[str, int, str, str]:
    return (record.workload.to_json(), record.threads, record.context, record.date)


def _took_turns(one: Record, other: Record) -> bool:
    if (one.key, one.context) != (other.key, other.context):
        return False
    dates = [datetime.fromisoformat(record.date) for record in (one, other)]
    return abs(dates[1] - dates[0]) <= _TOGETHER


def candidate_of(record: Record, core: Core) -> Sample | None:
    """Return what is known of a record's configuration today, None if it cannot be built."""
    w, c, threads = record.workload, record.config, record.threads
    try:
        estimate = get_implementation(c.implementation).estimate(w, c, core, threads)
    except KeyError:
        return None
    return Sample(w, c, estimate, core, threads, record.context == "model")


def _facts(records: Sequence[Record], core: Core) -> Facts:
    return Facts(
        core.name,
        core_facts(core),
        dict(Counter(str(record.threads) for record in records)),
        dict(Counter(record.config.implementation for record in records)),
        any(record.context == "model" for record in records),
        versions(),
    )
