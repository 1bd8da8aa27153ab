"""Products and convolutions of bytes beside the peak of their instruction, by turns in one run.

    python benchmarks/integers.py                     every set, one thread
    python benchmarks/integers.py --sets squares 3x3
    python benchmarks/integers.py --json results.json
    python benchmarks/integers.py --core x86-64-v3    code of AVX2, beside the peak of AVX2

The peak is that of the product of the core's micro-kernels in registers, as many chains as hide its
latency. Squares and 3x3 layers leave sums of 32 bits; 1x1 layers are those of ResNet-50, whose
results are requantized to bytes behind the sum: bias, scale of the channel, zero point, rounded
half to even. "direct" are the 3x3 layers by the direct algorithm, where the strategy would choose
Winograd's. The first layer has three channels. Each round times the peak, then the kernel; the
table gives medians. What the kernel computes is compared with the reference once, exactly.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te, tirx

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.marks import CHOICE
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.operators import operator_of
from tvm_blislike.passes import tir_pipeline
from tvm_blislike.passes.constant_ranges import with_ranges
from tvm_blislike.passes.plan import Plan, note_of
from tvm_blislike.passes.schedule import schedule_chosen
from tvm_blislike.probe import measure_peak_gops
from tvm_blislike.runtime import huge_pages
from tvm_blislike.runtime.threads import use_threads
from tvm_blislike.schedules import implementations
from tvm_blislike.schedules.common import stages

TURN_SECONDS = 0.004
SAME = (1, 1, 1, 1)
# Channels, height and width, channels of the result, stride.
POINTWISE = (
    *((64, 56, 64, 1), (64, 56, 256, 1), (256, 56, 64, 1), (256, 56, 128, 1)),
    *((128, 28, 512, 1), (256, 56, 512, 2), (512, 28, 128, 1), (512, 28, 256, 1)),
    *((256, 14, 1024, 1), (512, 28, 1024, 2), (1024, 14, 256, 1), (1024, 14, 512, 1)),
    *((512, 7, 2048, 1), (1024, 14, 2048, 2), (2048, 7, 512, 1)),
)
WINDOWS = tuple(
    Conv2dWorkload(1, c, h, h, c, 3, 3, padding=SAME) for c, h in ((64, 56), (128, 28), (256, 14))
)
SETS: dict[str, tuple[Workload, ...]] = {
    "squares": tuple(GemmWorkload(size, size, size) for size in (512, 768, 1024, 1536, 2048)),
    "1x1": tuple(Conv2dWorkload(1, ci, h, h, co, 1, 1, (s, s)) for ci, h, co, s in POINTWISE),
    "3x3": WINDOWS,
    "direct": WINDOWS,
    "first": (Conv2dWorkload(1, 3, 224, 224, 64, 7, 7, (2, 2), (3, 3, 3, 3)),),
    "depthwise": tuple(
        Conv2dWorkload(1, c, h, h, c, 3, 3, (s, s), SAME, groups=c)
        for c, h, s in ((32, 112, 1), (96, 112, 2), (144, 56, 1), (192, 28, 1), (576, 14, 1))
    ),
}
# Sets whose results are requantized.
REQUANTIZED = ("1x1", "first", "depthwise")
# Implementations that a set is computed by; others take the strategy's choice.
PINNED = {"direct": "conv2d_direct"}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    set: str
    workload: str
    config: str
    gops: float
    peak_gops: float
    fraction: float
    predicted_fraction: float


def seconds(run: Callable[[], object], times: int) -> float:
    """Return the time of one of `times` runs in a row."""
    started = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - started) / times


def requantized(value: te.Tensor, bias: te.Tensor, scale: te.Tensor) -> te.Tensor:
    """Return bytes: the result behind the sum, channels last."""

    def at(*index: Any) -> Any:
        channel = index[-1]
        real = (value(*index) + bias[channel]).astype("float32") * scale[channel]
        rounded = tirx.nearbyint(real) + tirx.const(3.0, "float32")
        low, high = tirx.const(0.0, "float32"), tirx.const(255.0, "float32")
        return te.max(te.min(rounded, high), low).astype("uint8")

    return te.compute(value.shape, at, name="requantized")


def prepared(
    choice: Choice, core: Core, threads: int, requantize: bool
) -> Callable[[], tvm.runtime.Tensor]:
    """Compile a choice, compare its result with the reference, and return what runs it."""
    w, c, implementation = choice.workload, choice.config, choice.implementation
    operator = operator_of(w)
    data, constant = operator.random(w)
    expected = operator.reference(w, data, constant)
    packed = implementation.pack(w, c, constant)
    if w.images:
        data = np.ascontiguousarray(Layout(c.data_layout).packed(data))
        expected = Layout(c.out_layout).packed(expected)
    channels = expected.shape[-1]
    arrays = [data, packed]
    if requantize:
        rng = np.random.default_rng(0)
        scale = rng.uniform(0.5, 1, channels).astype(np.float32) * np.float32(150)
        arrays += [rng.integers(-99, 99, channels, np.int32), scale / np.abs(expected).max()]
        arrays[-1] = arrays[-1].astype(np.float32)
        real = (expected + arrays[-2]).astype(np.float32) * arrays[-1]
        expected = np.clip(np.rint(real) + 3, 0, 255).astype(np.uint8)
    inputs = [te.placeholder(x.shape, str(x.dtype), name=f"p{i}") for i, x in enumerate(arrays)]
    result = implementation.compute(w, c, *inputs[:2])
    result = requantized(result, *inputs[2:]) if requantize else result
    sch = s_tir.Schedule(te.create_prim_func([*inputs, result]))
    sch.annotate(stages(sch)["unpack"], CHOICE, note_of(w, c))
    plan = Plan(core, threads)
    given = [None, None, *arrays[2:]]
    func = with_ranges(sch.mod["main"].with_attr("tirx.noalias", True), [given])
    func = schedule_chosen(func, plan)
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    target = tvm.target.Target(core.target_config(threads))
    function = tir_pipeline.compiled(module, target)["main"]
    out = np.zeros(expected.shape, "uint8" if requantize else w.types.out)
    tensors = [tvm.runtime.tensor(x) for x in (*arrays, out)]
    function(*tensors)
    # Results of floats are about 1, and sums of fp32: what a wrong element would change is more.
    bound = 0 if w.types.acc == "int32" else 1e-4
    if not np.allclose(tensors[-1].numpy(), expected, rtol=0, atol=bound):
        raise SystemExit(f"{w} {c}: a wrong result")
    # Where they lie in a model.
    if huge_pages.is_wanted():
        huge_pages.collapse(huge_pages.filled_blocks())
    return lambda: function(*tensors)


def measure(
    name: str,
    workload: Workload,
    core: Core,
    threads: int,
    rounds: int,
    types: Types,
) -> Row:
    """Compile the strategy's choice and time it by turns with the peak of products of `types`."""
    strategy = Strategy(core, threads)
    if name in PINNED:
        others = {each.name for each in implementations(workload.kind)} - {PINNED[name]}
        strategy = strategy.leaving_out(others)
    choice = strategy.choose(replace(workload, types=types))
    if choice.config is None:
        raise SystemExit(f"{choice.workload}: {choice.reason}")
    requantize = types.acc == "int32" and name in REQUANTIZED
    run = prepared(choice, core, threads, requantize)
    times = max(1, round(TURN_SECONDS / seconds(run, 1)))
    peaks, ours = [], []
    for _ in range(rounds):
        peaks.append(measure_peak_gops(core, types))
        ours.append(2e-9 * workload.macs / seconds(run, times))
    gops, best = median(ours), threads * median(peaks)
    config = choice.config
    fields = (f"{k}={v}" for k, v in config.changed_fields().items() if k != "implementation")
    text = f"{config.implementation} {' '.join(fields)}"
    predicted = choice.estimate.peak_fraction
    return Row(name, str(workload), text, gops, best, gops / best, predicted)


def report(
    description: str,
    sets: dict[str, tuple[Workload, ...]],
    types_of: Callable[[Core], Types],
    each: int = 1,
) -> None:
    """Measure sets by the command line's options, print the table, save it.

    Parameters
    ----------
    description : str
        Of the command.
    sets : dict of str to tuple of Workload
        Their own types are left aside.
    types_of : callable
        Returns the types that a core computes with.
    each : int
        Operations that one of a workload's stands for.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--sets", nargs="+", choices=sets, default=list(sets))
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--core", metavar="NAME", help="a described core; by default this one")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    core = Core.named(options.core) if options.core else native_core()
    types = types_of(core)
    use_threads(options.threads)
    rows = []
    for name in options.sets:
        print(f"{name}: Gop/s, share of the peak, predicted share")
        own = []
        for workload in sets[name]:
            row = measure(name, workload, core, options.threads, options.rounds, types)
            own.append(row)
            figures = f"{each * row.gops:7.1f} {row.fraction:6.3f} {row.predicted_fraction:6.3f}"
            print(f"  {row.workload:40s} {figures}  {row.config}", flush=True)
        mean = math.exp(sum(math.log(row.fraction) for row in own) / len(own))
        lowest, best = min(row.fraction for row in own), median(row.peak_gops for row in own)
        print(f"  geometric mean {mean:.3f}, lowest {lowest:.3f}; peak {each * best:.0f} Gop/s")
        rows += own
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    report(__doc__.splitlines()[0], SETS, quantized_types)
