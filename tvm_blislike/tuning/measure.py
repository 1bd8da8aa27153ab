"""Measuring candidates in processes of their own, so that a crash or a hang costs one candidate.

Building and running never overlap: what is measured has the machine for itself.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Sequence
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


class LocalRunner:
    """Builds with all CPUs, then measures one bundle at a time on this machine.

    Parameters
    ----------
    core : Core
        This machine.
    threads : int
        Threads of the candidates.
    plan : Plan
        How they are timed.
    build_seconds, run_seconds : float
        Time that a bundle may take to build and to run; a single candidate gets the same.

    Raises
    ------
    ToolchainError
        When there is no C compiler to link candidates with.
    """

    def __init__(
        self,
        core: Core,
        threads: int,
        plan: Plan,
        build_seconds: float = 120.0,
        run_seconds: float = 30.0,
    ) -> None:
        import tvm
        from tvm.s_tir import meta_schedule as ms

        self.plan = plan
        self.target = tvm.target.Target(core.target_config(threads))
        compiler = find_compiler(core.target_config(threads))
        self._folder = tempfile.mkdtemp(prefix="tvm-blislike-")
        start = kernels.worker_start()
        with ThreadPoolExecutor() as pool:  # each of them starts a process and waits for it
            builder = pool.submit(
                ms.builder.LocalBuilder,
                max_workers=len(available_cpus()),
                timeout_sec=build_seconds,
                f_build=partial(kernels.build, core, threads),
                f_export=partial(kernels.export, self._folder, compiler),
                initializer=start,
            )
            runner = pool.submit(ms.runner.LocalRunner, run_seconds, initializer=start)
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

    def _measure(self, bundles: Sequence[Bundle]) -> Measured:
        for bundle, built in zip(bundles, self._build(bundles), strict=True):
            if built.error_msg is not None:
                yield bundle, _failed(bundle, "cannot be built", built.error_msg)
                continue
            yield bundle, self._run(bundle, str(built.artifact_path))
            shutil.rmtree(Path(str(built.artifact_path)).parent, ignore_errors=True)

    def _build(self, bundles: Sequence[Bundle]) -> Sequence[Any]:
        from tvm.s_tir.meta_schedule.builder import BuilderInput

        return self._builder.build(
            [BuilderInput(kernels.as_module(b), self.target) for b in bundles]
        )

    def _run(self, bundle: Bundle, library: str) -> list[Outcome]:
        from tvm.s_tir.meta_schedule.runner import RunnerInput

        # A runner's functions are its attributes, read at each run; ours depend on the bundle.
        self._runner.f_alloc_argument = partial(kernels.allocate, bundle)
        self._runner.f_run_evaluator = partial(kernels.run_here, bundle, self.plan)
        result = self._runner.run([RunnerInput(library, "cpu", [])])[0].result()
        if result.error_msg is not None:
            return _failed(bundle, "cannot be run", str(result.error_msg))
        return outcomes_of(bundle, [float(x) for x in result.run_secs])

    def _one_by_one(self, bundle: Bundle) -> list[Outcome]:
        """Find the candidates that fail; measure the others once more, in turns."""
        singles = [bundle.only(config) for config in bundle.configs]
        found = {o.config: o for _, outcomes in self._measure(singles) for o in outcomes}
        sound = tuple(c for c in bundle.configs if found[c].status != "failed")
        if len(sound) > 1:
            ((_, again),) = self._measure([replace(bundle, configs=sound)])
            found |= {o.config: o for o in again if o.status != "failed"}
        return [found[config] for config in bundle.configs]


def outcomes_of(bundle: Bundle, numbers: Sequence[float]) -> list[Outcome]:
    """Return the outcomes that the numbers of `kernels.run` mean."""
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


def _failed(bundle: Bundle, what: str, message: str) -> list[Outcome]:
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    reason = f"{what}: {lines[-1] if lines else 'no message'}"[:_REASON_LENGTH]
    return [Outcome(config, "failed", reason=reason) for config in bundle.configs]
