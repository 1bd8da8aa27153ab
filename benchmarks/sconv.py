"""Table 2 and figures 8 and 9 of SConv: `conv2d_im2col` beside im2col + OpenBLAS, layer by layer.

    python benchmarks/sconv.py                            every convolution of the paper's models
    python benchmarks/sconv.py --models resnet18 --limit 5
    python benchmarks/sconv.py --json results.json > results.txt

The models are those of table 2 that `examples/zoo.py` builds, batch 1, one thread. Layers that
occur several times are measured once and count as often as they occur. Both sides take and return
NCHW and leave out bias and activation. "im2col" is `im2col_gemm` below, numpy and its OpenBLAS;
pointwise convolutions of stride 1 need no im2col, so there it is OpenBLAS's GEMM alone (figure 9).

In each round, the sides take turns; a figure is the median over the rounds. The FMA peak is
measured before and after each layer, and the larger one counts.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import threadpoolctl
import tvm
from onnx import helper, shape_inference
from tvm import s_tir, te

from tvm_blislike.config import Config
from tvm_blislike.hardware import Core
from tvm_blislike.probe import measure_peak_gflops
from tvm_blislike.registry import get_implementation
from tvm_blislike.schedules import lowering
from tvm_blislike.threads import use_threads
from tvm_blislike.workload import Conv2dWorkload

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import zoo

MODELS = ("googlenet", "inception_v2", "resnet18", "resnet50_v1", "resnet152_v1", "squeezenet1_0", "vgg16")
TURN_SECONDS = 0.004
HEADER = "      ms   im2col  speedup  GFLOPS  /peak  config                      layer"


@dataclass(frozen=True)
class Row:
    """One distinct layer."""

    layer: str
    count: int
    pointwise: bool
    config: str
    seconds: float
    baseline_seconds: float
    speedup: float
    gflops: float
    peak_gflops: float


def im2col_gemm(data: np.ndarray, weights: np.ndarray, workload: Conv2dWorkload) -> np.ndarray:
    """Convolve by copying every window into a matrix and multiplying with it.

    Parameters
    ----------
    data : numpy.ndarray
        (n, ci, h, w).
    weights : numpy.ndarray
        (co, ci, kh, kw).

    Returns
    -------
    numpy.ndarray
        (n, co, oh, ow).
    """
    w = workload
    windows = data if is_pointwise(w) else np.ascontiguousarray(_windows(data, w))
    matrix = windows.reshape(w.n, w.ci * w.kh * w.kw, w.oh * w.ow)
    return np.matmul(weights.reshape(w.co, -1), matrix).reshape(w.n, w.co, w.oh, w.ow)


def _windows(data: np.ndarray, w: Conv2dWorkload) -> np.ndarray:
    """Return the view (n, ci, kh, kw, oh, ow) of a padded image."""
    top, left, bottom, right = w.padding
    if any(w.padding):
        data = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, c, y, x = data.strides
    strides = (n, c, y * w.dilation[0], x * w.dilation[1], y * w.stride[0], x * w.stride[1])
    shape = (w.n, w.ci, w.kh, w.kw, w.oh, w.ow)
    return np.lib.stride_tricks.as_strided(data, shape, strides, writeable=False)


def is_pointwise(workload: Conv2dWorkload) -> bool:
    """Whether the image is the matrix: 1x1 windows of stride 1."""
    w = workload
    return w.kh == w.kw == 1 and w.stride == (1, 1) and not any(w.padding)


def convolutions(model: str) -> Counter[Conv2dWorkload]:
    """Return the ungrouped convolutions of a model, each with the number of times it occurs."""
    graph = shape_inference.infer_shapes(zoo.build(model)).graph
    values = (*graph.value_info, *graph.input)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    shapes |= {t.name: list(t.dims) for t in graph.initializer}
    found: Counter[Conv2dWorkload] = Counter()
    for node in graph.node:
        if node.op_type == "Conv":
            workload = _workload(node, shapes)
            found[workload] += workload.groups == 1
    return +found


def _workload(node: onnx.NodeProto, shapes: dict[str, list[int]]) -> Conv2dWorkload:
    notes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    kernel = shapes[node.input[1]]
    return Conv2dWorkload(
        *shapes[node.input[0]],
        co=kernel[0],
        kh=kernel[2],
        kw=kernel[3],
        stride=tuple(notes.get("strides", (1, 1))),
        padding=tuple(notes.get("pads", (0, 0, 0, 0))),
        dilation=tuple(notes.get("dilations", (1, 1))),
        groups=notes.get("group", 1),
    )


def choice(workload: Conv2dWorkload, core: Core) -> Config:
    """Return the configuration that the cost model predicts to be fastest."""
    ours = get_implementation("conv2d_im2col")
    configs = ours.configs(workload, core, 1)
    return min(configs, key=lambda c: ours.estimate(workload, c, core, 1).seconds)


def compiled(workload: Conv2dWorkload, config: Config, core: Core) -> Callable[..., None]:
    """Return the function (image, packed weights, result)."""
    w, ours = workload, get_implementation(config.implementation)
    zeros = np.zeros((w.co, w.ci, w.kh, w.kw), w.dtype)
    data = te.placeholder((w.n, w.ci, w.h, w.w), w.dtype, name="data")
    packed = te.placeholder(ours.pack(w, config, zeros).shape, w.dtype, name="packed")
    func = te.create_prim_func([data, packed, ours.compute(w, config, data, packed)])
    sch = s_tir.Schedule(func.with_attr({"global_symbol": "main", "tirx.noalias": True}))
    ours.schedule(sch, w, config, core, 1)
    register_bytes = core.vector_registers * core.vector_bits // 8
    scheduled = sch.mod["main"].with_attr(lowering.REGISTER_BYTES, register_bytes)
    module = lowering.lower(tvm.IRModule({"main": scheduled}))
    return tvm.compile(module, tvm.target.Target(core.target_config(1)))["main"]


def turn(run: Callable[[], object], times: int) -> float:
    """Return the seconds of one of `times` runs in a row."""
    started = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - started) / times


def measure(workload: Conv2dWorkload, count: int, core: Core, rounds: int) -> Row:
    """Compile, check against the baseline, and time one layer."""
    w, rng = workload, np.random.default_rng(0)
    data = rng.standard_normal((w.n, w.ci, w.h, w.w), dtype=np.float32)
    weights = rng.standard_normal((w.co, w.ci, w.kh, w.kw), dtype=np.float32)
    config = choice(w, core)
    function = compiled(w, config, core)
    packed = get_implementation(config.implementation).pack(w, config, weights)
    out = np.empty((w.n, w.co, w.oh, w.ow), np.float32)
    arguments = [tvm.runtime.tensor(a) for a in (data, packed, out)]
    runs = (lambda: function(*arguments), lambda: im2col_gemm(data, weights, w))
    runs[0]()
    wanted = runs[1]()
    limit = 1e-5 * np.abs(wanted).max()
    np.testing.assert_allclose(arguments[-1].numpy(), wanted, rtol=0, atol=limit)
    times = [max(1, round(TURN_SECONDS / turn(run, 1))) for run in runs]
    peaks = [measure_peak_gflops(core, 1)]
    seconds = [[turn(run, n) for run, n in zip(runs, times, strict=True)] for _ in range(rounds)]
    peaks.append(measure_peak_gflops(core, 1))
    ours, baseline = (median(side) for side in zip(*seconds, strict=True))
    return Row(
        layer=str(w),
        count=count,
        pointwise=is_pointwise(w),
        config=f"{config.mr}x{config.nr} {config.loop_order} {config.oh_block} rows kc {config.kc}",
        seconds=ours,
        baseline_seconds=baseline,
        speedup=baseline / ours,
        gflops=2 * w.macs / ours / 1e9,
        peak_gflops=max(peaks),
    )


def line(row: Row) -> str:
    """Return one row of the table."""
    return (
        f"{row.seconds * 1e3:8.3f} {row.baseline_seconds * 1e3:8.3f} {row.speedup:8.2f} "
        f"{row.gflops:7.1f} {row.gflops / row.peak_gflops:6.2f}  {row.config:26s}  "
        f"{row.count} x {row.layer}"
    )


def summary(rows: Iterable[Row]) -> dict[str, float]:
    """Return geometric mean and fraction faster, over all instances of the layers."""
    speedups = [row.speedup for row in rows for _ in range(row.count)]
    if not speedups:
        return {}
    return {
        "layers": len(speedups),
        "geometric_mean": math.exp(sum(map(math.log, speedups)) / len(speedups)),
        "faster": sum(s > 1 for s in speedups) / len(speedups),
        "lowest": min(speedups),
        "highest": max(speedups),
    }


def total_speedup(rows: Iterable[Row]) -> float:
    """Return the speedup of all convolutions of a model together: table 2."""
    rows = list(rows)
    return sum(r.count * r.baseline_seconds for r in rows) / sum(r.count * r.seconds for r in rows)


def conditions(core: Core) -> dict[str, object]:
    """Return what the figures depend on."""
    packages = ("apache-tvm", "apache-tvm-ffi", "numpy")
    blas = [i for i in threadpoolctl.threadpool_info() if i["user_api"] == "blas"]
    return {
        "core": core.name,
        "machine": f"{platform.machine()} {platform.system()} {platform.release()}",
        "threads": 1,
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "blas": sorted({f"{i['internal_api']} {i['version']} {i['architecture']}" for i in blas}),
    }


def main() -> None:
    """Measure the models, print the tables, save them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=zoo.names(), default=MODELS)
    parser.add_argument("--limit", type=int, metavar="N", help="distinct layers of each model")
    parser.add_argument("--repeat", type=int, default=9, metavar="ROUNDS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    core = Core.native()
    about = conditions(core)
    print(", ".join(f"{key}: {value}" for key, value in about.items()))
    use_threads(1)
    measured: dict[Conv2dWorkload, Row] = {}
    models: dict[str, list[Row]] = {}
    with threadpoolctl.threadpool_limits(1):
        for model in options.models:
            print(f"\n{model}\n{HEADER}")
            models[model] = []
            for workload, count in list(convolutions(model).items())[: options.limit]:
                if workload not in measured:
                    measured[workload] = measure(workload, count, core, options.repeat)
                row = Row(**{**asdict(measured[workload]), "count": count})
                models[model].append(row)
                print(line(row), flush=True)
    rows = [row for found in models.values() for row in found]
    table = {model: total_speedup(found) for model, found in models.items()}
    print("\nall convolutions of a model (table 2)")
    for model, speedup in table.items():
        print(f"  {model:16s} {speedup:5.2f}x")
    parts = {
        "every convolution (figure 8)": summary(rows),
        "pointwise of stride 1 against GEMM (figure 9)": summary(r for r in rows if r.pointwise),
    }
    for name, values in parts.items():
        if values:
            print(
                f"{name}: {values['layers']} layers, geometric mean "
                f"{values['geometric_mean']:.2f}x, {100 * values['faster']:.1f} % faster, "
                f"{values['lowest']:.2f}x to {values['highest']:.2f}x"
            )
    print(f"peak {median(row.peak_gflops for row in rows):.0f} GFLOPS (median)")
    if options.json:
        layers = {model: [asdict(row) for row in found] for model, found in models.items()}
        result = {**about, "rounds": options.repeat, "table_2": table, **parts, "models": layers}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
