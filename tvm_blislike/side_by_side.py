"""Work on several items, done by several threads; a kept model's files are written so, too.

`TVM_BLISLIKE_JOBS` in the environment says how many, for who compiles several models side by side.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from tvm_blislike.errors import UsageError
from tvm_blislike.hardware.cpus import usable_cpus

# Each thread needs the memory of a compiler.
_MOST_THREADS = 8
_JOBS = "TVM_BLISLIKE_JOBS"
_Item, _Result = TypeVar("_Item"), TypeVar("_Result")


def code_threads() -> int:
    """Return how many threads generate code at a time: one for each CPU that there is.

    Raises
    ------
    UsageError
        When the environment asks for another number that is none.
    """
    asked = os.environ.get(_JOBS, "")
    if not asked:
        return min(_MOST_THREADS, len(usable_cpus()))
    if not asked.isdecimal() or not int(asked):
        raise UsageError(
            f"{_JOBS}={asked} is no number of threads", "write 1, 2 or more, or leave it unset"
        )
    return int(asked)


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


class Ahead(Generic[_Item, _Result]):
    """Items that one thread at a time prepares, some ahead of the threads that take them.

    Whoever wants one prepares one or two while nobody else does, and waits only where another
    thread prepares the first that is left.

    Parameters
    ----------
    prepare : callable
        What only one thread may do at a time.
    items : iterable
        As many as will be taken.
    """

    # Prepared by a thread before it takes one: the other is for who comes while it prepares more.
    _READY = 2

    def __init__(self, prepare: Callable[[_Item], _Result], items: Iterable[_Item]) -> None:
        self._prepare, self._left = prepare, deque(items)
        self._ready: deque[_Result] = deque()
        self._changed = threading.Condition()
        self._is_busy = False
        self._failure: BaseException | None = None

    def take(self) -> _Result:
        """Return the next item as it was prepared.

        Where preparing one fails, in whichever thread, that is raised to all.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or not self._is_busy)
                if self._failure is not None:
                    raise self._failure
                if self._is_busy or not self._left or len(self._ready) >= self._READY:
                    return self._ready.popleft()
                item, self._is_busy = self._left.popleft(), True
            self._prepare_one(item)

    def _prepare_one(self, item: _Item) -> None:
        try:
            self._ready.append(self._prepare(item))
        except BaseException as error:
            self._failure = error
            raise
        finally:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
