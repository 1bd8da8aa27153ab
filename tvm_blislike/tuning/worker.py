"""A worker process that can be ended at any time, whatever it is doing."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

from tvm.support.popen_pool import PopenWorker


class Worker:
    """A process that calls functions, one after the other.

    TVM's own `kill` waits until the process has answered; `end` does not.

    Parameters
    ----------
    start : callable
        Prepares the process; see `kernels.worker_start`.
    """

    def __init__(self, start: Callable[[], None]) -> None:
        self._process = PopenWorker(start)
        self._pid = 0
        self._ended = False

    def ask(self, function: Any, *arguments: Any, timeout: float | None = None) -> Any:
        """Return what a function returns there; a process that is gone starts anew.

        Raises
        ------
        ChildProcessError
            When the process died or was ended.
        TimeoutError
            When it took longer than `timeout` seconds; the process is ended.
        """
        if not self._pid:
            self._pid = self._answer(os.getpid, (), None)
        if self._ended:
            self.end()
        return self._answer(function, arguments, timeout)

    def end(self) -> None:
        """End the process, from any thread; what `ask` waits for in another one fails."""
        self._ended = True
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process and release it; nobody may be asking."""
        self.end()
        self._process.kill()
        self._pid = 0

    def _answer(self, function: Any, arguments: tuple[Any, ...], timeout: float | None) -> Any:
        self._process.send(function, arguments, timeout=timeout)
        try:
            return self._process.recv()
        except (TimeoutError, ChildProcessError):
            # That process is gone; the next one has another number.
            self._pid = 0
            raise
