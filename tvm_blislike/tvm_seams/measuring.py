"""MetaSchedule's spaces, builders and runners, and the worker processes of TVM."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm.support.popen_pool import PopenWorker


def space(schedules: Callable[[tvm.IRModule, Any], Sequence[Any]]) -> Any:
    """Return a generator of schedules for MetaSchedule, which mutates none of them.

    Parameters
    ----------
    schedules : callable
        Gets a module with one PrimFunc and the target, returns its schedules.
    """
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    @derived_object
    class Space(ms.space_generator.PySpaceGenerator):
        def __init__(self) -> None:
            super().__init__()
            # Read by TVM where a generator does not define them.
            self.sch_rules: list[Any] = []
            self.postprocs: list[Any] = []
            self.mutator_probs: dict[Any, float] = {}
            self.target: tvm.target.Target | None = None

        def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
            self.target = context.target

        def generate_design_space(self, mod: tvm.IRModule) -> list[Any]:
            return list(schedules(mod, self.target))

        def clone(self) -> ms.space_generator.SpaceGenerator:
            return space(schedules)

    return Space()


class IsolatedRunner:
    """MetaSchedule's runner of libraries in one process, with functions of each run's own.

    Parameters
    ----------
    seconds : float
        Time that a run may take.
    start : callable
        Prepares the process.
    """

    def __init__(self, seconds: float, start: Callable[[], None]) -> None:
        from tvm.s_tir import meta_schedule as ms

        self._runner = ms.runner.LocalRunner(seconds, initializer=start)

    def run(self, library: str, allocate: Any, evaluate: Any) -> list[float]:
        """Return what `evaluate` does of what `allocate` does, as of `f_run_evaluator`.

        Raises
        ------
        RuntimeError
            When one of them fails, the process dies, or it takes too long.
        """
        from tvm.s_tir.meta_schedule.runner import RunnerInput

        # A runner's functions are its attributes, read at each run.
        self._runner.f_alloc_argument = allocate
        self._runner.f_run_evaluator = evaluate
        (future,) = self._runner.run([RunnerInput(library, "cpu", [])])
        result = future.result()
        if result.error_msg is not None:
            raise RuntimeError(str(result.error_msg))
        return [float(x) for x in result.run_secs]

    def close(self) -> None:
        """End the process."""
        self._runner.pool.shutdown()


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
