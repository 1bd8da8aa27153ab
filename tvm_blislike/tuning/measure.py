"""Measuring candidates in processes of their own, so that a crash or a hang costs one candidate.

Building and running never overlap: what is measured has the machine for itself.
"""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tvm_blislike.config import Config
from tvm_blislike.hardware import Core
from tvm_blislike.library import find_compiler
from tvm_blislike.registry import get_implementation
from tvm_blislike.threads import available_cpus
from tvm_blislike.tuning import kernels
from tvm_blislike.tuning.kernels import Bundle, Plan
from tvm_blislike.workload import Workload

# Error of an fp32 sum of a few thousand products relative to the largest result, with room.
_ROUNDING = 2e-5
# Above what an implementation expects of itself: `error_bound` is no strict bound.
_ERROR_FACTOR = 5.0
_REASON_LENGTH = 300


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
    """

    config: Config
    status: str
    seconds: tuple[float, ...] = ()
    error: float | None = None
    reason: str = ""


Measured = Generator[tuple[Bundle, list[Outcome]], None, None]


class Runner(Protocol):
    """Measures bundles of candidates, one after the other or many at once."""

    def measure(self, bundles: Sequence[Bundle]) -> Measured:
        """Yield each bundle with an outcome for each of its candidates, as they come in.

        Closing the generator ends the measuring.
        """

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
    plan : Plan
        How they are timed.
    build_seconds : float
        Time that a bundle may take to build; a single candidate gets the same.

    Raises
    ------
    ToolchainError
        When there is no C compiler to link candidates with.
    """

    def __init__(self, core: Core, threads: int, plan: Plan, build_seconds: float = 120.0) -> None:
        import tvm
        from tvm.s_tir import meta_schedule as ms

        self.plan, self.threads = plan, threads
        self.target = tvm.target.Target(core.target_config(threads))
        compiler = find_compiler(core.target_config(threads))
        self._folder = tempfile.mkdtemp(prefix="tvm-blislike-")
        with ThreadPoolExecutor() as pool:  # each of them starts a process and waits for it
            builder = pool.submit(
                ms.builder.LocalBuilder,
                max_workers=len(available_cpus()),
                timeout_sec=build_seconds,
                f_build=partial(kernels.build, core, threads),
                f_export=partial(kernels.export, self._folder, compiler),
                initializer=kernels.worker_start(),
            )
            runner = pool.submit(self._start)
        self._builder, self._runner = builder.result(), runner.result()

    def measure(self, bundles: Sequence[Bundle]) -> Measured:
        """Build all bundles, then yield each with an outcome for each of its candidates."""
        for bundle, outcomes in self._measure(bundles):
            several = len(bundle.configs) > 1
            failed = any(outcome.status == "failed" for outcome in outcomes)
            yield bundle, self._one_by_one(bundle) if several and failed else outcomes

    def close(self) -> None:
        """End the processes and remove what was built."""
        self._runner.pool.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)

    @abstractmethod
    def _start(self) -> Any:
        """Return MetaSchedule's runner."""

    @abstractmethod
    def _run(self, built: Sequence[tuple[Bundle, str]]) -> Measured:
        """Run libraries; outcomes in any order."""

    def _measure(self, bundles: Sequence[Bundle]) -> Measured:
        built: list[tuple[Bundle, str]] = []
        for bundle, result in zip(bundles, self._build(bundles), strict=True):
            if result.error_msg is not None:
                yield bundle, failures(bundle, "cannot be built", str(result.error_msg))
            else:
                built.append((bundle, str(result.artifact_path)))
        libraries = {bundle: library for bundle, library in built}
        for bundle, outcomes in self._run(built):
            shutil.rmtree(Path(libraries[bundle]).parent, ignore_errors=True)
            yield bundle, outcomes

    def _build(self, bundles: Sequence[Bundle]) -> Sequence[Any]:
        from tvm.s_tir.meta_schedule.builder import BuilderInput

        return self._builder.build(
            [BuilderInput(kernels.as_module(b), self.target) for b in bundles]
        )

    def _submit(self, bundle: Bundle, library: str, run: Callable[..., Any]) -> Any:
        """Return the future of a library; `run` is kernels' for this runner."""
        from tvm.s_tir.meta_schedule.runner import RunnerInput

        # A runner's functions are its attributes, read at each run; ours depend on the bundle.
        self._runner.f_alloc_argument = partial(kernels.allocate, bundle)
        self._runner.f_run_evaluator = partial(run, bundle, self.plan)
        (future,) = self._runner.run([RunnerInput(library, "cpu", [])])
        return future

    def _one_by_one(self, bundle: Bundle) -> list[Outcome]:
        """Find the candidates that fail; measure the others once more, in turns."""
        singles = [bundle.only(config) for config in bundle.configs]
        found = {o.config: o for _, outcomes in self._measure(singles) for o in outcomes}
        sound = tuple(c for c in bundle.configs if found[c].status != "failed")
        if len(sound) > 1:
            ((_, again),) = self._measure([replace(bundle, configs=sound)])
            found |= {o.config: o for o in again if o.status != "failed"}
        return [found[config] for config in bundle.configs]


class LocalRunner(BundleRunner):
    """Measures one bundle at a time on this machine.

    Parameters
    ----------
    core, threads, plan, build_seconds
        As for `BundleRunner`; `core` is this machine.
    run_seconds : float
        Time that a bundle may take to run; a single candidate gets the same.
    """

    def __init__(
        self,
        core: Core,
        threads: int,
        plan: Plan,
        build_seconds: float = 120.0,
        run_seconds: float = 30.0,
    ) -> None:
        self._run_seconds = run_seconds
        super().__init__(core, threads, plan, build_seconds)

    def _start(self) -> Any:
        from tvm.s_tir import meta_schedule as ms

        start = kernels.worker_start()
        return ms.runner.LocalRunner(self._run_seconds, initializer=start)

    def _run(self, built: Sequence[tuple[Bundle, str]]) -> Measured:
        for bundle, library in built:
            result = self._submit(bundle, library, kernels.run_here).result()
            yield bundle, outcomes_of(bundle, result)


def outcomes_of(bundle: Bundle, result: Any) -> list[Outcome]:
    """Return the outcomes that a runner's result means: numbers of `kernels.run`, or an error."""
    if result.error_msg is not None:
        return failures(bundle, "cannot be run", str(result.error_msg))
    numbers = [float(x) for x in result.run_secs]
    width = len(numbers) // len(bundle.configs)
    parts = [numbers[i * width : (i + 1) * width] for i in range(len(bundle.configs))]
    return [
        _outcome(bundle.workload, config, part[0], tuple(part[1:]))
        for config, part in zip(bundle.configs, parts, strict=True)
    ]


def _outcome(
    workload: Workload, config: Config, error: float, seconds: tuple[float, ...]
) -> Outcome:
    bound = get_implementation(config.implementation).error_bound(workload, config)
    if error < 0:
        return Outcome(config, "wrong", reason="results are not finite")
    if error > max(_ROUNDING, _ERROR_FACTOR * bound):
        reason = f"differs from the reference by {error:.1e} of its largest value"
        return Outcome(config, "wrong", error=error, reason=reason)
    return Outcome(config, "ok", seconds, error)


def failures(bundle: Bundle, what: str, message: str) -> list[Outcome]:
    """Return the outcomes of a bundle that could not be measured, with the message's last line."""
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    reason = f"{what}: {lines[-1] if lines else 'no message'}"[:_REASON_LENGTH]
    return [Outcome(config, "failed", reason=reason) for config in bundle.configs]
