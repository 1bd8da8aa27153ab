"""Runs cases in a process of their own, which is replaced when it dies or takes too long."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

from conformance.cases import Case
from conformance.outcomes import Outcome, outcome

CRASHES, HANGS = "crashes", "hangs"
SECONDS = 60


class Runner:
    """Hands cases to a process, one at a time, and tells what became of each."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._context = multiprocessing.get_context("spawn")
        self._process: multiprocessing.Process | None = None
        self._pipe: Connection | None = None

    def outcome(self, case: Case) -> Outcome:
        """Return how a case ended, "crashes" and "hangs" included."""
        if self._process is None:
            self._start()
        self._pipe.send(case)
        if not self._pipe.poll(self._seconds):
            self.close()
            return Outcome(HANGS, f"no result after {self._seconds} s")
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            name = (
                signal.Signals(-self._process.exitcode).name if self._process.exitcode < 0 else ""
            )
            self._process = None
            return Outcome(CRASHES, name)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()


def _serve(pipe: Connection) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # what a crash writes
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        pipe.send(outcome(case))
