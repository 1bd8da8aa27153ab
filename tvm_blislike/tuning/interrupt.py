"""The first Ctrl-C asks for an end, which comes in order; a second one ends all at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType


class Interrupt:
    """Context in which the first SIGINT only sets a flag.

    Parameters
    ----------
    notify : callable
        Called when the flag is set; again by the next `asked` if it raised a RuntimeError, as a
        stream does that was being written to.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._asked = self._told = False

    def asked(self) -> bool:
        """Whether the user wants to stop."""
        if self._asked and not self._told:
            self._tell()
        return self._asked

    def __enter__(self) -> Interrupt:
        # Only the main thread may, and gets the signal.
        self._ours = threading.current_thread() is threading.main_thread()
        if self._ours:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            if callable(self._before):
                self._before(number, frame)
            raise KeyboardInterrupt
        self._asked = True
        with contextlib.suppress(RuntimeError):
            self._tell()

    def _tell(self) -> None:
        self._notify()
        self._told = True


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep SIGINT, which a terminal sends to all, from threads and processes started in here.

    Until a new process has set its own handlers, it would die with a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
