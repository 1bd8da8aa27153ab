"""How much the tests that compile something try: random examples, and of long tables all of it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any, TypeVar

from allpairspy import AllPairs
from hypothesis import HealthCheck, settings

# A run by hand before a release: TVM_BLISLIKE_TEST_EFFORT=20 pytest tests/schedules
EFFORT = int(os.environ.get("TVM_BLISLIKE_TEST_EFFORT", "1"))

_Case, _Other = TypeVar("_Case"), TypeVar("_Other")


def examples(count: int) -> settings:
    """Settings of a property test of `count` examples with an effort of 2, which may take long."""
    return settings(
        max_examples=count * EFFORT // 2, deadline=None, suppress_health_check=list(HealthCheck)
    )


def every_second(cases: Sequence[_Case], first: int) -> Sequence[_Case]:
    """Return half of the cases, beginning with one of the first two; with more effort all of them.

    Parameters
    ----------
    first : int
        Even or odd: such as the place of what the cases are of, so that both halves are tried.
    """
    return cases if EFFORT > 1 else cases[first % 2 :: 2]


def spread(cases: Sequence[_Case], most: int) -> list[_Case]:
    """Return `most` of the cases, evenly spread among them, and more with more effort."""
    count = min(len(cases), most * EFFORT)
    return [cases[place * len(cases) // count] for place in range(count)]


def in_turn(cases: Sequence[_Case], others: Sequence[_Other]) -> list[tuple[_Case, _Other]]:
    """Return each case with one of some others, which take turns; with more effort with each."""
    if EFFORT > 1:
        return list(itertools.product(cases, others))
    return list(zip(cases, itertools.cycle(others)))


def crossed(*tables: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the product of three tables and more, for `pytest.mark.parametrize`.

    As few of it as have every two values of different tables together in one; with more effort all.
    """
    if EFFORT > 1:
        return list(itertools.product(*tables))
    places = AllPairs([range(len(table)) for table in tables])
    return [tuple(table[at] for table, at in zip(tables, each, strict=True)) for each in places]
