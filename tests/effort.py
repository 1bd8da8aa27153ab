"""How much the tests that compile something try: random examples, and of long tables all of it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings

# A run by hand before a release: TVM_BLISLIKE_TEST_EFFORT=20 pytest tests/schedules
EFFORT = int(os.environ.get("TVM_BLISLIKE_TEST_EFFORT", "1"))

_Case = TypeVar("_Case")


def examples(count: int) -> settings:
    """Settings of a property test of `count` examples, each of which may take long."""
    return settings(
        max_examples=count * EFFORT, deadline=None, suppress_health_check=list(HealthCheck)
    )


def every_second(cases: Sequence[_Case], first: int) -> Sequence[_Case]:
    """Return half of the cases, beginning with one of the first two; with more effort all of them.

    Parameters
    ----------
    first : int
        Even or odd: such as the place of what the cases are of, so that both halves are tried.
    """
    return cases if EFFORT > 1 else cases[first % 2 :: 2]


def crossed(*tables: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the product of three tables and more, for `pytest.mark.parametrize`.

    Of it that half whose places in the tables have an even sum: every value still meets every one
    of another table. With more effort all of it.
    """
    places = itertools.product(*(range(len(table)) for table in tables))
    taken = [each for each in places if EFFORT > 1 or sum(each) % 2 == 0]
    return [tuple(table[at] for table, at in zip(tables, each, strict=True)) for each in taken]
