"""Steps measured by turns, in rounds: what disturbs for a while disturbs a part of each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tvm_blislike.probe.builders import HALF_BITS
from tvm_blislike.probe.kernels import accumulators, block_bytes, kernels
from tvm_blislike.probe.steps import Step
from tvm_blislike.runtime.huge_pages import HUGE_BYTES, on_huge_pages
from tvm_blislike.runtime.threads import use_threads

if TYPE_CHECKING:
    from tvm_blislike.hardware import Core

# Rounds at least, however long they take.
LEAST_ROUNDS = 3
# Runs that must be as long as a first one before their number of repeats counts as enough.
_CONFIRMATIONS = 2
# So many times as many repeats must take so many times as long before a time counts as the work's.
_MORE, _LONGER = 4, 3


class Bench(Protocol):
    """Where kernels run: this machine or a board."""

    def seconds(self, step: Step, repeats: int) -> float:
        """Run a step's kernel and return how long it took."""


class LocalBench:
    """The present machine.

    Parameters
    ----------
    core : Core
        Its description.
    threads : int
        Threads at most.
    memory_bytes : int
        Bytes of memory that kernels may read.
    """

    def __init__(self, core: Core, threads: int, memory_bytes: int) -> None:
        import tvm

        self._kernels = kernels(core)
        shape = (threads, accumulators(core), core.lanes("float32"))
        self._state = tvm.runtime.tensor(np.full(shape, HALF_BITS, "int32"))
        blocks = -(-memory_bytes // block_bytes(core))
        self._data = tvm.runtime.from_dlpack(_on_one_page(blocks * block_bytes(core)))
        on_huge_pages(self._data)
        # Every page gets memory of its own.
        self._run(Step("write", 0, blocks=blocks), 1)

    def seconds(self, step: Step, repeats: int) -> float:
        """Run a step's kernel, by the clock of this process."""
        use_threads(step.tasks)
        started = time.perf_counter()
        self._run(step, repeats)
        return time.perf_counter() - started

    def _run(self, step: Step, repeats: int) -> None:
        self._kernels[step.kernel](self._data, self._state, step.tasks, step.blocks, repeats)


def _on_one_page(size: int) -> np.ndarray:
    """Return `size` bytes as int32 that begin with a huge page.

    What is read for the first-level cache then lies on one page. Where its first 4 KiB lay on
    another one, a core of Zen 4 read 28 to 41 bytes a cycle instead of 59.
    """
    whole = np.empty((size + HUGE_BYTES) // 4, np.int32)
    skipped = -whole.ctypes.data % HUGE_BYTES // 4
    return whole[skipped : skipped + size // 4]


def rates(
    bench: Bench,
    steps: Mapping[str, Step],
    run_seconds: float,
    seconds: float,
    tick: Callable[[float], None],
) -> dict[str, np.ndarray]:
    """Return the work per second of each step in each round.

    Parameters
    ----------
    bench : Bench
        Where.
    steps : mapping of str to Step
        What.
    run_seconds : float
        Length of a run.
    seconds : float
        Time for all; at least `LEAST_ROUNDS` rounds are measured.
    tick : callable
        Called after each round with the share of the time that is over.
    """
    began = time.monotonic()
    repeats = {name: _repeats(bench, step, run_seconds) for name, step in steps.items()}
    found: dict[str, list[float]] = {name: [] for name in steps}
    for rounds in itertools.count(1):
        for name, step in steps.items():
            if step.warm:  # Caches, clock and pool get ready for this kernel.
                bench.seconds(step, max(1, repeats[name] // 8))
            found[name].append(step.work * repeats[name] / bench.seconds(step, repeats[name]))
        share = (time.monotonic() - began) / seconds
        tick(min(share, 1.0))
        # Another round would end too late.
        if rounds >= LEAST_ROUNDS and share * (1 + 1 / rounds) > 1:
            return {name: np.array(values) for name, values in found.items()}


def best(bench: Bench, step: Step, run_seconds: float, runs: int) -> float:
    """Return the work per second of the fastest of some runs of one step."""
    repeats = _repeats(bench, step, run_seconds)
    return step.work * repeats / min(bench.seconds(step, repeats) for _ in range(runs))


def _repeats(bench: Bench, step: Step, wanted: float) -> int:
    """Return the repeats that take the wanted time, at least one.

    What disturbs a run makes it longer, so one alone would not do: a few repeats that were
    interrupted look like enough, and all later runs would be the time of a call (an FMA peak of 8
    instead of 118 GFLOPS was measured that way). Where others keep all CPUs busy every run of
    several threads waits for one: that is seen by more repeats taking no longer.
    """
    repeats = 1
    while True:
        taken = _undisturbed(bench, step, repeats, wanted / 4)
        if taken < wanted / 4:
            repeats *= max(2, min(16, int(wanted / 2 / max(taken, 1e-9))))
        elif _undisturbed(bench, step, _MORE * repeats, _LONGER * taken) < _LONGER * taken:
            repeats *= _MORE
        else:
            return max(repeats, round(repeats * wanted / taken))


def _undisturbed(bench: Bench, step: Step, repeats: int, enough: float) -> float:
    """Return the least time of some runs; of one that is short already, that time."""
    taken = bench.seconds(step, repeats)
    for _ in range(_CONFIRMATIONS):
        if taken < enough:
            break
        taken = min(taken, bench.seconds(step, repeats))
    return taken
