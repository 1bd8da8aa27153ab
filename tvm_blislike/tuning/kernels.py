"""What happens in the processes that build and run candidates.

The candidates of a group share one library, so that they take turns, repeat by repeat, in one
process. The functions of candidate i are `candidate_i` and, where the second operand is not
constant, `pack_i`.
"""

from __future__ import annotations

import functools
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tvm_blislike.hardware import Core
from tvm_blislike.hardware.cpus import usable_cpus
from tvm_blislike.model.agreement import max_rel_error
from tvm_blislike.model.config import Config
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.workload import Workload
from tvm_blislike.schedules import register_implementation, user_implementations
from tvm_blislike.tuning import eviction, operands


@dataclass(frozen=True)
class CandidateGroup:
    """Candidates of one workload that are built into one library and measured in turns.

    Parameters
    ----------
    workload : Workload
        What all of them compute.
    configs : tuple of Config
        The candidates.
    core : Core
        What they are built for.
    threads : int
        Threads they run with.
    """

    workload: Workload
    configs: tuple[Config, ...]
    core: Core
    threads: int

    @property
    def packs(self) -> bool:
        """Whether packing the second operand is a part of each run."""
        return not self.workload.packs_once

    def only(self, config: Config) -> CandidateGroup:
        """Return the group of one of the candidates."""
        return replace(self, configs=(config,))


@dataclass(frozen=True)
class Timing:
    """How candidates are timed.

    Parameters
    ----------
    cold_bytes : int
        Bytes that are copied before each repeat, to empty the private caches; 0 leaves them warm.
    evicts : bool
        Whether constant operands leave the shared caches as well; on this machine only.
    repeats : int
        Repeats of each candidate at least, one round of turns each.
    round_seconds : float
        Rounds go on until the candidates have been measured for this long.
    most_repeats : int
        Repeats at most.
    """

    cold_bytes: int = 0
    evicts: bool = False
    repeats: int = 8
    round_seconds: float = 0.6
    most_repeats: int = 40


def worker_start(folder: Path) -> Callable[[], None]:
    """Return what prepares a worker process of this one: an initializer of TVM's pools.

    Its temporary files, and those of the compilers it calls, go to `folder`.
    """
    return partial(_start_worker, os.getpid(), user_implementations(), str(folder))


def _start_worker(parent: int, implementations: Sequence[Implementation], folder: str) -> None:
    """Ctrl-C is the parent's business, and this process ends with it."""
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for implementation in implementations:
        register_implementation(implementation, override=True)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def build(group: CandidateGroup) -> Any:
    """Schedule and compile the candidates of a group; return their library in memory."""
    import tvm

    from tvm_blislike.passes import tir_pipeline
    from tvm_blislike.passes.plan import Plan
    from tvm_blislike.passes.schedule import schedule

    found: dict[str, Any] = {}
    for number, config in enumerate(group.configs):
        found |= functions(group, number, config)
    with tvm.target.Target(group.core.target_config(group.threads)) as target:
        scheduled = schedule(tvm.IRModule(found), Plan(group.core, group.threads))
        return tir_pipeline.compiled(scheduled, target)


def functions(group: CandidateGroup, number: int, config: Config) -> dict[str, Any]:
    """Return the unscheduled PrimFuncs of one candidate by name."""
    from tvm import te

    from tvm_blislike.model.choice import Choice
    from tvm_blislike.passes.definitions import primfunc
    from tvm_blislike.passes.plan import note_of
    from tvm_blislike.schedules import get_implementation

    workload, implementation = group.workload, get_implementation(config.implementation)
    data, (_, weights) = operands.data_shape(workload, config), workload.operands.values()
    operand = te.placeholder(weights, workload.types.b, name="operand")
    packed = implementation.pack_te(workload, config, operand)
    choice = Choice(workload, implementation, config, None, "")
    shape = tuple(int(extent) for extent in packed.shape)
    func = primfunc(choice, note_of(workload, config), data, shape, str(packed.dtype))
    found = {f"candidate_{number}": func}
    if group.packs:
        found[f"pack_{number}"] = te.create_prim_func([operand, packed])
    return {name: func.with_attr("global_symbol", name) for name, func in found.items()}


def allocate(group: CandidateGroup, device: Any, *_context: Any) -> list[list[Any]]:
    """Return [data, packed operand, (plain operand,) result] of each candidate, seeded.

    Candidates share images and results of the same layout: where an image lies, and with it in
    which sets of the caches, made up to 10 % of difference between equal candidates.
    What follows `device` is the context of a runner's `f_alloc_argument`.
    """
    import tvm

    from tvm_blislike.schedules import get_implementation

    workload = group.workload
    data, weights = operands.operands(workload)

    def on_device(value: np.ndarray) -> Any:
        return tvm.runtime.tensor(value, device)

    @functools.cache
    def image(layout: str) -> Any:
        return on_device(operands.in_layout(workload, layout, data))

    @functools.cache
    def result(shape: tuple[int, ...]) -> Any:
        return tvm.runtime.empty(shape, workload.types.out, device)

    arguments = []
    for config in group.configs:
        packed = get_implementation(config.implementation).pack(workload, config, weights)
        values = [image(config.data_layout), on_device(packed)]
        values += [on_device(weights)] if group.packs else []
        arguments.append([*values, result(operands.result_shape(workload, config))])
    return arguments


@functools.cache
def _cpus() -> tuple[int, ...]:
    """CPUs of this process at its start."""
    return usable_cpus()


def run_here(
    group: CandidateGroup,
    timing: Timing,
    module: Any,
    device: Any,
    _config: Any,
    arguments: list[Any],
) -> list[float]:
    """Do as `run` with the threads of the group (a local runner's `f_run_evaluator`).

    Operands, results and workspaces lie on huge pages, as in a compiled model: with 400 MB of
    weights on pages of 4 KiB 1x128 blocks of a fully connected layer take 1.33 times as long as
    1x32 blocks, in a model the same.
    """
    from tvm_blislike.runtime import huge_pages
    from tvm_blislike.runtime.threads import use_threads

    cpus = _cpus()
    if timing.evicts:
        eviction.register(group.core)
    use_threads(group.threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus[: group.threads])

    def settle() -> None:
        if huge_pages.is_wanted():
            huge_pages.collapse(huge_pages.filled_blocks())

    return run(group, timing, module, device, arguments, settle)


def run(
    group: CandidateGroup,
    timing: Timing,
    module: Any,
    device: Any,
    arguments: list[list[Any]],
    settle: Callable[[], None] = lambda: None,
) -> list[float]:
    """Compare each candidate with the reference, then time the candidates in turns.

    `settle` is called in between, when every candidate has run once.

    Returns
    -------
    list of float
        For each candidate its error (negative if not finite) and `repeats` seconds, flattened:
        a runner's result is one list of numbers.
    """
    expected = {"": _expected(group.workload)}
    errors = []
    for number, values in enumerate(arguments):
        # Not what another candidate has left there.
        values[-1].copyfrom(np.full(values[-1].shape, np.nan, group.workload.types.out))
        _call(module, number, values, group.packs)
        found = operands.from_layout(group.workload, group.configs[number], values[-1].numpy())
        error = max_rel_error({"": found}, expected)
        errors.append(error if np.isfinite(error) else -1.0)
    settle()
    seconds = _take_turns(group, timing, module, device, arguments)
    return [x for error, times in zip(errors, seconds, strict=True) for x in (error, *times)]


def _expected(workload: Workload) -> np.ndarray:
    """Return the reference; the operands, which nobody needs again, are given back."""
    result = operands.result(workload, *operands.operands(workload))
    operands.operands.cache_clear()
    return result


def _call(module: Any, number: int, values: list[Any], packs: bool) -> None:
    data, packed, *rest = values
    if packs:
        module[f"pack_{number}"](rest[0], packed)
    module[f"candidate_{number}"](data, packed, rest[-1])


def _take_turns(
    group: CandidateGroup, timing: Timing, module: Any, device: Any, arguments: list[list[Any]]
) -> list[list[float]]:
    """Time the candidates, round by round in another order.

    What ran before leaves its mark: a depthwise candidate behind im2col, whose images have another
    layout, takes 5 to 25 % longer, which in one fixed order was always the first, the model's own.
    """
    turns = [_timers(group, timing, module, device, n, a) for n, a in enumerate(arguments)]
    seconds: list[list[float]] = [[] for _ in turns]
    order = np.random.default_rng(0)
    end = time.perf_counter() + timing.round_seconds * len(turns) / 8
    while len(seconds[0]) < timing.repeats or (
        time.perf_counter() < end and len(seconds[0]) < timing.most_repeats
    ):
        for number in order.permutation(len(turns)):
            seconds[number].append(sum(timer() for timer in turns[number]))
    return seconds


def _timers(
    group: CandidateGroup, timing: Timing, module: Any, device: Any, number: int, values: list[Any]
) -> list[Any]:
    """Return functions that run the parts of one candidate once and return the seconds."""
    # The layer before has just written the image, which is most of what a depthwise one reads:
    # 192 channels of 28x28 take 0.021 ms in their model, 0.041 where L2 has been emptied.
    cold_bytes = 0 if group.workload.is_depthwise else timing.cold_bytes

    def timer(name: str, *args: Any, evict: str = "") -> Any:
        evaluate = module.time_evaluator(
            name, device, number=1, repeat=1, cache_flush_bytes=cold_bytes, f_preproc=evict
        )
        return lambda: float(evaluate(*args).results[0])

    data, packed, *rest = values
    parts = [timer(f"pack_{number}", rest[0], packed)] if group.packs else []
    # What is packed at run time was written just before.
    evict = eviction.EVICT if timing.evicts and not group.packs else ""
    return [*parts, timer(f"candidate_{number}", data, packed, rest[-1], evict=evict)]
