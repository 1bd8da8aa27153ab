"""Work on several items, done by several threads; a kept model's files are written so, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tvm_blislike.hardware.cpus import usable_cpus

# Each thread needs the memory of a compiler.
_MOST_THREADS = 8
_Item, _Result = TypeVar("_Item"), TypeVar("_Result")


def code_threads() -> int:
    """Return how many threads generate code at a time: one for each CPU that there is."""
    return min(_MOST_THREADS, len(usable_cpus()))


def side_by_side(
    work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int
) -> list[_Result]:
    """Return the results of some work on items, done by several threads, in the items' order.

    When it fails on one of them or the user interrupts, what has not begun never does.
    """
    if threads == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads, "tvm-blislike-code") as pool:
        try:
            return list(pool.map(work, items))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
