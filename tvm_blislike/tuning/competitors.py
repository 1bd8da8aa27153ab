"""Models that compete, each in a process of its own: compiled there, timed there.

Models of one process disturb each other: TVM hands all of them workspaces from one pool, so where a
kernel's temporary memory lies depends on what ran before. googlenet took 13.9 ms beside two other
models and 15.3 ms after a further one had run. Besides, two of them compile at the same time.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Workload
from tvm_blislike.onnx.inputs import random_inputs
from tvm_blislike.tuning import kernels
from tvm_blislike.tuning.interrupt import uninterrupted
from tvm_blislike.tuning.measure import GivenUpError
from tvm_blislike.tvm_seams.measuring import Worker

if TYPE_CHECKING:
    from tvm_blislike.runtime.compiled import CompiledModel

T = TypeVar("T")

# For each of its steps, compiling above all.
_TIMEOUT_SECONDS = 1200.0
# How soon a stop is noticed.
_TICK_SECONDS = 0.2


@dataclass(frozen=True)
class Subject:
    """What is compiled.

    Parameters
    ----------
    model, shapes
        As for `tvm_blislike.compile`.
    strategy : Strategy
        Without records. What it has estimated is not estimated again by every model.
    """

    model: Any
    shapes: Mapping[str, Sequence[int]] | None
    strategy: Strategy


@dataclass(frozen=True)
class Made:
    """What compiling gave.

    Parameters
    ----------
    seconds : float
        It took so long.
    used : mapping of str to list of mapping
        By workload, as `explain` prints it, the configuration of each of its layers.
    """

    seconds: float
    used: Mapping[str, Sequence[Mapping[str, Any]]]


class Entrant:
    """A model with its own process; a context that ends it.

    All methods raise ChildProcessError or TimeoutError when the process died or hung, and
    GivenUpError as soon as `stopped`, whatever the process is doing.

    Parameters
    ----------
    subject : Subject
        The model.
    configs : mapping of Workload to Config
        How its layers are computed, as far as that is settled.
    changes : mapping of Workload to Config
        Those that differ from the strategy's choice.
    folder : Path
        For temporary files.
    stopped : callable
        Whether the user wants to stop.
    """

    def __init__(
        self,
        subject: Subject,
        configs: Mapping[Workload, Config],
        changes: Mapping[Workload, Config],
        folder: Path,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.configs = configs
        self._stopped = stopped
        self._worker = Worker(kernels.worker_start(folder))
        self._thread = ThreadPoolExecutor(1)
        with uninterrupted():
            self._made = self._submit(_compile, subject, dict(changes))

    def __enter__(self) -> Entrant:
        return self

    def __exit__(self, *_error: object) -> None:
        self._worker.end()
        self._thread.shutdown()
        self._worker.close()

    def made(self) -> Made:
        """Wait until it is compiled."""
        return self._result(self._made)

    def profile(self, runs: int) -> list[dict[str, float]]:
        """Return the mean seconds of a layer by workload ("" for all else), for each run."""
        return self._result(self._submit(_profile, runs))

    def run_for(self, seconds: float) -> list[float]:
        """Return the milliseconds of each run of a turn; its first one is not counted."""
        return self._result(self._submit(_run_for, seconds))

    def outputs(self) -> dict[str, np.ndarray]:
        """Return the outputs for seeded random inputs."""
        return self._result(self._submit(_outputs))

    def _submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        return self._thread.submit(self._worker.ask, function, *arguments, timeout=_TIMEOUT_SECONDS)

    def _result(self, future: Future[T]) -> T:
        while not (self._stopped() or future.done()):
            wait([future], _TICK_SECONDS)
        # A process that a stop has ended did not fail.
        if self._stopped():
            raise GivenUpError
        return future.result()


# Of the worker process.
_compiled: list[CompiledModel] = []


def _compile(subject: Subject, changes: dict[Workload, Config]) -> Made:
    from tvm_blislike import api

    started = time.monotonic()
    strategy = subject.strategy.overruled(changes.get)
    compiled = api.compile_with(strategy, subject.model, subject.shapes)
    _compiled.append(compiled)
    used: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for layer in compiled.explain().layers:
        used[layer.workload].append(layer.config)
    return Made(time.monotonic() - started, dict(used))


@functools.cache
def _inputs() -> dict[str, np.ndarray]:
    return random_inputs(_compiled[0].inputs)


def _profile(runs: int) -> list[dict[str, float]]:
    kinds = {x.name: x.workload for x in _compiled[0].explain().layers if x.microkernel}
    found = []
    for run in _compiled[0].profile_runs(_inputs(), runs):
        layers: dict[str, list[float]] = defaultdict(list)
        for name, seconds in run.items():
            layers[kinds.get(name, "")] += seconds
        found.append({w: sum(seconds) / len(seconds) for w, seconds in layers.items()})
    return found


def _run_for(seconds: float) -> list[float]:
    model, inputs = _compiled[0], _inputs()
    model.run(inputs)
    found: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not found:
        started = time.perf_counter()
        model.run(inputs)
        found.append((time.perf_counter() - started) * 1e3)
    return found


def _outputs() -> dict[str, np.ndarray]:
    return _compiled[0].run(_inputs())
