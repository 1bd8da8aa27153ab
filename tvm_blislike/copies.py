"""Work in Python on several items, done by copies of this process.

Python runs one thread of a process at a time. Copies (`os.fork`) know what this process knows, a
user's own functions included, and start in a few milliseconds, where a new one would import
everything first. Other threads are in none of them, so nothing may be called there that waits for
one.

Nobody waits for a copy either: what it has not sent by the time that all else is done is done here,
from the end of its part. One that is stopped, fails or dies costs its part and no more. A copy
whose process was killed ends with its present item, and does not keep that process's memory.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TypeVar

_Item, _Result = TypeVar("_Item"), TypeVar("_Result")


def in_copies(
    work: Callable[[_Item], _Result], items: Sequence[_Item], processes: int
) -> list[_Result]:
    """Return the results of some work on items, done by several processes, in the items' order.

    Parameters
    ----------
    work : callable
        Pure Python without effects; its results can be pickled.
    processes : int
        This one included. On systems other than Linux there is no other: forking is not safe there.
    """
    found: dict[int, _Result] = {}
    count = min(processes, len(items)) if sys.platform == "linux" else 1
    own, *others = [range(first, len(items), count) for first in range(count)] or [range(0)]
    with contextlib.ExitStack() as stack:
        sent = [stack.enter_context(_copy(work, items, part)) for part in others]
        for index in own:
            found[index] = work(items[index])
        for part, results in zip(others, sent, strict=True):
            for index in reversed(part):
                found.update(_arrived(results))
                if index not in found:
                    found[index] = work(items[index])
    return [found[index] for index in range(len(items))]


@contextlib.contextmanager
def _copy(
    work: Callable[[_Item], _Result], items: Sequence[_Item], part: range
) -> Iterator[Connection | None]:
    """Give where a copy sends the results of a part, with their indices; None if there is none."""
    receiver, sender = Pipe(duplex=False)
    own = os.getpid()

    def run() -> None:
        # A full pipe that only the copy itself can read would never let it go on, or end.
        receiver.close()
        for index in part:
            if os.getppid() != own:
                return
            sender.send((index, work(items[index])))

    with receiver:
        with sender:
            pid = _forked(run)
        if pid is None:
            yield None
            return
        try:
            yield receiver
        finally:
            # Somebody may wait for whichever process ends.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _forked(run: Callable[[], None]) -> int | None:
    """Return the number of a copy that runs a function and ends; None if there can be none.

    It gets no signals: what the user says is said to this process, which ends its copies.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of locks that other threads may hold, which a copy does not take.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _run_and_exit(run)
        return pid
    except OSError:  # No memory, or too many processes of this user.
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_and_exit(run: Callable[[], None]) -> None:
    """Run a function and end this process, whose files and threads are its parent's to close."""
    try:
        gc.disable()
        run()
    finally:
        os._exit(0)


def _arrived(results: Connection | None) -> Iterator[tuple[int, object]]:
    """Yield what a copy has sent by now."""
    with contextlib.suppress(EOFError, OSError):
        while results is not None and results.poll():
            yield results.recv()
