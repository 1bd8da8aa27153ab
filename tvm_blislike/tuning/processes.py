"""Processes of this machine as an executor: they stay from one batch of builds to the next."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from tvm_blislike.tuning.interrupt import uninterrupted

# A new process takes one to two seconds to import TVM; one that compiles grows with each build.
_USES = 32


class Processes(Executor):
    """Calls functions in processes of their own, each process one after the other.

    One that dies or takes too long costs the call alone: its place is taken by a new one.

    Parameters
    ----------
    count : int
        How many; they start now, and whoever made this need not wait for them.
    start : callable
        Prepares a process; see `kernels.worker_start`.
    prepare : callable
        Called once in each, beforehand, such as to import what calls will need.
    seconds : float
        Time that a call may take. Its future then raises TimeoutError, and ChildProcessError when
        the process died.
    """

    def __init__(
        self,
        count: int,
        start: Callable[[], None],
        prepare: Callable[[], None],
        seconds: float,
    ) -> None:
        self._start, self._seconds = start, seconds
        self._workers = [_Counted(start) for _ in range(count)]
        self._idle: SimpleQueue[int] = SimpleQueue()
        self._threads = ThreadPoolExecutor(count)
        with uninterrupted():
            for place in range(count):
                self._threads.submit(self._answer, place, prepare, ())

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a function called; it and its arguments go there by cloudpickle."""
        assert not kwargs, "arguments have places here"
        return self._threads.submit(self._call, fn, args)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes at once, amid their calls; `wait` as for other executors."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.end()
        self._threads.shutdown(wait=wait)
        if wait:
            for worker in self._workers:
                worker.close()

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return self._answer(self._idle.get(), function, arguments)

    def _answer(self, place: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        try:
            return self._workers[place].ask(function, arguments, self._seconds)
        finally:
            if self._workers[place].uses >= _USES:
                self._workers[place].close()
                self._workers[place] = _Counted(self._start)
            self._idle.put(place)


class _Counted:
    """A process that knows how many calls it got."""

    def __init__(self, start: Callable[[], None]) -> None:
        from tvm_blislike.tvm_seams.measuring import Worker

        self._worker, self.uses = Worker(start), 0
        self.end, self.close = self._worker.end, self._worker.close

    def ask(self, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Any:
        """Return what a function returns there; see `Worker.ask`."""
        self.uses += 1
        return self._worker.ask(function, *arguments, timeout=seconds)
