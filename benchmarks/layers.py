"""One convolution alone: choose a configuration, compile it, take turns with others.

What `sconv.py`, `winogen.py` and `dataflows.py` share. A layer is a compiled function (image,
packed weights, result) in the layouts of its configuration, without bias and activation.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.hardware import Core
from tvm_blislike.model.config import Config
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.marks import REGISTER_BYTES
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules import get_implementation
from tvm_blislike.schedules.lowering import lower as lowering

TURN_SECONDS = 0.004
Run = Callable[[], object]


def choice(name: str, workload: Conv2dWorkload, core: Core) -> Config | None:
    """Return the configuration of an implementation that the cost model predicts to be fastest.

    None where the implementation does not apply or has no configuration that is exact enough.
    """
    return next((config for _, config in choices(name, workload, core)), None)


def choices(
    name: str, workload: Conv2dWorkload, core: Core, threads: int = 1
) -> list[tuple[float, Config]]:
    """Return the predicted seconds and the configurations that are exact enough, fastest first."""
    ours = get_implementation(name)
    if ours.applies(workload, core):
        return []
    offered = ours.configs(workload, core, threads)
    allowed = Constraints().allowed_error(workload.types.out)
    exact = (c for c in offered if ours.error_bound(workload, c) <= allowed)
    found = [(ours.estimate(workload, c, core, threads).seconds, c) for c in exact]
    return sorted(found, key=lambda each: each[0])


def library(
    workload: Conv2dWorkload, config: Config, core: Core, threads: int = 1
) -> tvm.runtime.Executable:
    """Return what has the function "main" (image, packed weights, result)."""
    w, ours = workload, get_implementation(config.implementation)
    zeros = np.zeros(w.operands["weights"], w.types.a)
    shape = Layout(config.data_layout).shape(w.n, w.ci, w.h, w.w)
    data = te.placeholder(shape, w.types.a, name="data")
    packed = te.placeholder(ours.pack(w, config, zeros).shape, w.types.a, name="packed")
    func = te.create_prim_func([data, packed, ours.compute(w, config, data, packed)])
    sch = s_tir.Schedule(func.with_attr({"global_symbol": "main", "tirx.noalias": True}))
    ours.schedule(sch, w, config, core, threads)
    register_bytes = core.vector_registers * core.vector_bits // 8
    scheduled = sch.mod["main"].with_attr(REGISTER_BYTES, register_bytes)
    module = lowering.lower(tvm.IRModule({"main": scheduled}))
    return tvm.compile(module, tvm.target.Target(core.target_config(threads)))


class Layer:
    """A compiled convolution with its arguments."""

    def __init__(
        self,
        workload: Conv2dWorkload,
        config: Config,
        core: Core,
        data: np.ndarray,
        weights: np.ndarray,
        threads: int = 1,
    ) -> None:
        w = workload
        self.config, self._channels = config, w.co
        packed = get_implementation(config.implementation).pack(w, config, weights)
        out = np.empty(Layout(config.out_layout).shape(w.n, w.co, w.oh, w.ow), np.float32)
        arrays = (_in_layout(data, config.data_layout), packed, out)
        self._arguments = [tvm.runtime.tensor(array) for array in arrays]
        self._function = library(w, config, core, threads)["main"]

    def run(self) -> None:
        """Compute the result once."""
        self._function(*self._arguments)

    def result(self) -> np.ndarray:
        """Return the result of the last run, NCHW."""
        out = self._arguments[-1].numpy()
        if not Layout(self.config.out_layout).block:
            return out if self.config.out_layout == "NCHW" else out.transpose(0, 3, 1, 2)
        n, _, h, w, _ = out.shape
        return out.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, : self._channels]


def _in_layout(image: np.ndarray, layout: str) -> np.ndarray:
    """Return an NCHW image in another layout, missing channels of the last block as zeros."""
    block = Layout(layout).block
    if not block:
        return image if layout == "NCHW" else np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    n, c, h, w = image.shape
    whole = np.zeros((n, -(-c // block) * block, h, w), np.float32)
    whole[:, :c] = image
    return np.ascontiguousarray(whole.reshape(n, -1, block, h, w).transpose(0, 1, 3, 4, 2))


def random_operands(workload: Conv2dWorkload) -> tuple[np.ndarray, np.ndarray]:
    """Return an image (n, ci, h, w) and weights (co, ci, kh, kw), always the same ones.

    Weights have the input channels of a group.
    """
    rng = np.random.default_rng(0)
    shapes = workload.operands.values()
    data, weights = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return data, weights


def turn(run: Run, times: int) -> float:
    """Return the seconds of one of `times` runs in a row."""
    started = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - started) / times


def take_turns(runs: Mapping[str, Run], rounds: int) -> dict[str, float]:
    """Return the median seconds of each run; in every round each has a turn."""
    for run in runs.values():
        run()
    times = {name: max(1, round(TURN_SECONDS / turn(run, 1))) for name, run in runs.items()}
    found = [{n: turn(run, times[n]) for n, run in runs.items()} for _ in range(rounds)]
    return {name: median(each[name] for each in found) for name in runs}


def conditions(core: Core, packages: Iterable[str], **more: object) -> dict[str, object]:
    """Return what the figures depend on, the first line of a file of results."""
    return {
        "core": core.name,
        "machine": f"{platform.machine()} {platform.system()} {platform.release()}",
        "threads": 1,
        "versions": {name: importlib.metadata.version(name) for name in packages},
        **more,
    }


def read_lines(file: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return conditions and rows, by their "layer", of a file of results; empty if it is none."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines]
    about = next((entry for entry in found if "layer" not in entry), {})
    return about, {entry["layer"]: entry for entry in found if "layer" in entry}
