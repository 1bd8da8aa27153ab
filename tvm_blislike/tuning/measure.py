"""Measuring candidates in processes of their own, so that a crash or a hang costs one candidate.

Building and running never overlap: what is measured has the machine for itself.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from tvm_blislike.hardware import Core
from tvm_blislike.hardware.cpus import usable_cpus
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Workload
from tvm_blislike.runtime.library import find_compiler
from tvm_blislike.schedules import get_implementation
from tvm_blislike.tuning import kernels
from tvm_blislike.tuning.building import ExecutorBuilder, prepare
from tvm_blislike.tuning.interrupt import uninterrupted
from tvm_blislike.tuning.kernels import CandidateGroup, Timing
from tvm_blislike.tuning.processes import Processes
from tvm_blislike.tuning.scratch import Scratch

# Error of a sum of a few thousand products relative to the largest result, with room.
_ROUNDING = {"float32": 2e-5, "float16": 1e-2}
# Above what an implementation expects of itself: `error_bound` is no strict bound.
_ERROR_FACTOR = 5.0
_REASON_LENGTH = 300
# Until a process that compiles is there.
_START_SECONDS = 30.0


@dataclass(frozen=True)
class Outcome:
    """What came of one candidate.

    Parameters
    ----------
    config : Config
        The candidate.
    status : str
        "ok", "wrong" or "failed".
    seconds : tuple of float
        All repeats in order; empty unless it is ok.
    error : float or None
        Relative to the largest value of the reference; None where it did not run or is not finite.
    reason : str
        What went wrong.
    emulated : bool
        Whether the processor was an emulated one: its times mean nothing.
    """

    config: Config
    status: str
    seconds: tuple[float, ...] = ()
    error: float | None = None
    reason: str = ""
    emulated: bool = False


Measured = Generator[tuple[CandidateGroup, list[Outcome]], None, None]
# Is told what a runner waits for, again and again, and returns whether it should go on.
Wait = Callable[[str], bool]


class GivenUpError(Exception):
    """Measuring ended because the user wants to stop, or because a `Wait` said so."""


def patiently(_what: str) -> bool:
    """Wait for anything (a `Wait`)."""
    return True


class Runner(Protocol):
    """Measures groups of candidates, one after the other or many at once.

    Attributes
    ----------
    emulated : bool
        Whether it measures on emulated processors, as far as it is known at the start.
    """

    emulated: bool

    def measure(self, groups: Sequence[CandidateGroup], wait: Wait) -> Measured:
        """Yield each group with an outcome for each of its candidates, as they come in.

        Closing the generator ends the measuring, and so does `wait`.
        """

    def at_once(self) -> int:
        """Return how many groups it can run at once at present."""

    def close(self) -> None:
        """End the processes and remove what was built."""


class BundleRunner(ABC):
    """Builds with all CPUs; how the libraries are run is a subclass's business.

    Parameters
    ----------
    core : Core
        What to build for.
    threads : int
        Threads of the candidates.
    timing : Timing
        How they are timed.
    build_seconds : float
        Time that a group may take to build; a single candidate gets the same.
    executor : Executor, optional
        Builds instead of processes of this machine.

    Raises
    ------
    ToolchainError
        When there is no C compiler to link candidates with; while measuring, when the workers of
        `executor` cannot build anything.
    """

    emulated = False

    def __init__(
        self,
        core: Core,
        threads: int,
        timing: Timing,
        build_seconds: float = 120.0,
        executor: Executor | None = None,
    ) -> None:
        self.timing, self.target_config = timing, core.target_config(threads)
        compiler = find_compiler(self.target_config)
        self._scratch = Scratch()
        self._folder = self._scratch.make("built")
        self.objects = self._objects()
        self._own: Processes | None = None
        if executor is None:
            start = self._worker_start()
            self._own = Processes(len(usable_cpus()), start, prepare, build_seconds)
            # They say themselves what took too long.
            build_seconds += _START_SECONDS
        place = (self._folder, compiler, self.objects)
        self._builder = ExecutorBuilder(executor or self._own, *place, build_seconds)
        self._start()

    def measure(self, groups: Sequence[CandidateGroup], wait: Wait = patiently) -> Measured:
        """Build all groups, then yield each with an outcome for each of its candidates."""
        try:
            for group, outcomes in self._measure(groups, wait):
                several = len(group.configs) > 1
                failed = any(outcome.status == "failed" for outcome in outcomes)
                yield group, self._one_by_one(group, wait) if several and failed else outcomes
        except GivenUpError:
            return

    def close(self) -> None:
        """End the processes and remove what was built."""
        if self._own is not None:
            self._own.shutdown()
        self._stop()
        self._scratch.close()

    def _worker_start(self) -> Callable[[], None]:
        return kernels.worker_start(self._scratch.path)

    @abstractmethod
    def at_once(self) -> int:
        """Return how many groups it can run at once at present."""

    @abstractmethod
    def _start(self) -> None:
        """Start what runs libraries."""

    @abstractmethod
    def _stop(self) -> None:
        """End it."""

    @abstractmethod
    def _run(self, built: Sequence[tuple[CandidateGroup, str]], wait: Wait) -> Measured:
        """Run libraries; outcomes in any order.

        Raises
        ------
        GivenUpError
            When `wait` does not want to go on.
        """

    def _objects(self) -> list[str]:
        """Return object files that each library needs beside its candidates."""
        return []

    def _measure(self, groups: Sequence[CandidateGroup], wait: Wait) -> Measured:
        built: list[tuple[CandidateGroup, str]] = []
        for group, (library, error) in zip(groups, self._builder.build(groups), strict=True):
            if error:
                yield group, failures(group, "cannot be built", error)
            else:
                built.append((group, library))
        libraries = {group: library for group, library in built}
        for group, outcomes in self._run(built, wait):
            shutil.rmtree(Path(libraries[group]).parent, ignore_errors=True)
            yield group, outcomes

    def _one_by_one(self, group: CandidateGroup, wait: Wait) -> list[Outcome]:
        """Find the candidates that fail; measure the others once more, in turns."""
        singles = [group.only(config) for config in group.configs]
        found = {o.config: o for _, outcomes in self._measure(singles, wait) for o in outcomes}
        sound = tuple(c for c in group.configs if found[c].status != "failed")
        if len(sound) > 1:
            ((_, again),) = self._measure([replace(group, configs=sound)], wait)
            found |= {o.config: o for o in again if o.status != "failed"}
        return [found[config] for config in group.configs]


class LocalRunner(BundleRunner):
    """Measures one group at a time on this machine.

    Parameters
    ----------
    core, threads, timing, build_seconds, executor
        As for `BundleRunner`; `core` is this machine.
    run_seconds : float
        Time that a group may take to run; a single candidate gets the same.
    """

    def __init__(
        self,
        core: Core,
        threads: int,
        timing: Timing,
        build_seconds: float = 120.0,
        run_seconds: float = 30.0,
        executor: Executor | None = None,
    ) -> None:
        self._run_seconds = run_seconds
        super().__init__(core, threads, timing, build_seconds, executor)

    def at_once(self) -> int:
        """Return 1: measurements must not disturb each other."""
        return 1

    def _start(self) -> None:
        from tvm_blislike.tvm_seams import measuring

        # Its process starts while candidates are proposed and built.
        thread, arguments = ThreadPoolExecutor(1), (self._run_seconds, self._worker_start())
        with uninterrupted():
            self._runner = thread.submit(measuring.IsolatedRunner, *arguments)
        thread.shutdown(wait=False)

    def _stop(self) -> None:
        self._runner.result().close()

    def _run(self, built: Sequence[tuple[CandidateGroup, str]], wait: Wait) -> Measured:
        runner = self._runner.result()
        for group, library in built:
            allocate = partial(kernels.allocate, group)
            evaluate = partial(kernels.run_here, group, self.timing)
            try:
                numbers = runner.run(library, allocate, evaluate)
            except RuntimeError as error:
                yield group, failures(group, "cannot be run", str(error))
            else:
                yield group, measured(group, numbers)


def measured(
    group: CandidateGroup, numbers: Sequence[float], emulated: bool = False
) -> list[Outcome]:
    """Return the outcomes that the numbers of `kernels.run` mean."""
    width = len(numbers) // len(group.configs)
    parts = [numbers[i * width : (i + 1) * width] for i in range(len(group.configs))]
    outcomes = [
        _outcome(group.workload, config, part[0], tuple(part[1:]))
        for config, part in zip(group.configs, parts, strict=True)
    ]
    return [replace(outcome, emulated=emulated) for outcome in outcomes]


def _outcome(
    workload: Workload, config: Config, error: float, seconds: tuple[float, ...]
) -> Outcome:
    bound = get_implementation(config.implementation).error_bound(workload, config)
    if error < 0:
        return Outcome(config, "wrong", reason="results are not finite")
    if error > max(_ROUNDING[workload.types.out], _ERROR_FACTOR * bound):
        reason = f"differs from the reference by {error:.1e} of its largest value"
        return Outcome(config, "wrong", error=error, reason=reason)
    return Outcome(config, "ok", seconds, error)


def failures(
    group: CandidateGroup, what: str, message: str, emulated: bool = False
) -> list[Outcome]:
    """Return the outcomes of a group that could not be measured, with the message's last line."""
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    reason = f"{what}: {lines[-1] if lines else 'no message'}"[:_REASON_LENGTH]
    return [Outcome(c, "failed", reason=reason, emulated=emulated) for c in group.configs]
