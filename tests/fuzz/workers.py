"""Processes that try seeds: one that crashes or hangs costs its seed only."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait

from verdicts import CRASH, HANG, OWN, Verdict

# A process grows by what TVM keeps of each module; a new one now and then keeps it small.
_SEEDS_OF_A_PROCESS = 150


class _Worker:
    """A process, and the seed that it is at."""

    def __init__(self, work: Callable[[int], Verdict]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, work), daemon=True)
        self._process.start()
        far.close()
        self.seed: int | None = None
        self.since = 0.0
        self.left = _SEEDS_OF_A_PROCESS

    def give(self, seed: int) -> None:
        self.seed, self.since, self.left = seed, time.monotonic(), self.left - 1
        self.pipe.send(seed)

    def end(self) -> int | None:
        """End the process; return the exit code it had before, if any."""
        self._process.join(0.5)
        code = self._process.exitcode
        self._process.kill()
        self._process.join()
        self.pipe.close()
        return code


def verdicts_of(
    seeds: Iterable[int],
    work: Callable[[int], Verdict],
    jobs: int,
    seconds: float = 120.0,
) -> Iterator[tuple[int, Verdict]]:
    """Yield the verdict of each seed, in the order in which they come.

    Parameters
    ----------
    seeds : iterable of int
        What to try.
    work : callable
        A function of a module: spawned processes import it.
    jobs : int
        Processes at a time.
    seconds : float
        What a seed may take before it counts as a hang.
    """
    waiting = iter(seeds)
    workers: list[_Worker] = []
    try:
        for _ in range(jobs):
            _refill(workers, None, waiting, work)
        while workers:
            ready = wait([w.pipe for w in workers], timeout=1.0)
            for worker in list(workers):
                seed, verdict = worker.seed, None
                if worker.pipe in ready:
                    verdict = _answer(worker)
                elif time.monotonic() - worker.since > seconds:
                    verdict = Verdict(HANG, f"no answer within {seconds:.0f} s")
                if verdict is not None:
                    gone = verdict.kind in (CRASH, HANG) or worker.left <= 0
                    workers.remove(worker)
                    if gone:
                        worker.end()
                    _refill(workers, None if gone else worker, waiting, work)
                    yield seed, verdict
    finally:
        for worker in workers:
            worker.end()


def _refill(
    workers: list[_Worker],
    worker: _Worker | None,
    waiting: Iterator[int],
    work: Callable[[int], Verdict],
) -> None:
    seed = next(waiting, None)
    if seed is None:
        if worker is not None:
            worker.end()
        return
    worker = worker or _Worker(work)
    worker.give(seed)
    workers.append(worker)


def _answer(worker: _Worker) -> Verdict:
    try:
        return worker.pipe.recv()
    except EOFError:
        return Verdict(CRASH, f"the process ended with {worker.end()}")


def _serve(pipe: Connection, work: Callable[[int], Verdict]) -> None:
    # Crashes print more than anybody wants to read; the verdict says which seed it was.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while True:
        try:
            seed = pipe.recv()
        except EOFError:
            return
        try:
            verdict = work(seed)
        except Exception:
            verdict = Verdict(OWN, traceback.format_exc())
        pipe.send(verdict)
