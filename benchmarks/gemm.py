"""Packed GEMM beside numpy's OpenBLAS and the FMA peak, measured by turns in one run.

    python benchmarks/gemm.py                            squares and ResNet-50, one thread
    python benchmarks/gemm.py --shapes squares --threads 2
    python benchmarks/gemm.py --json results.json
    python benchmarks/gemm.py --core x86-64-v3           AVX2 code, beside the peak of AVX2

C[m, n] = A[m, k] x B[k, n] in fp32. B is the constant operand: packed at compile time, unless
`--include-packing-b` makes that a part of every product (as it is of OpenBLAS's). The ResNet-50
shapes are the distinct convolutions of version 1.5 at batch 1 after im2col: pixels are the rows
(m = oh * ow), the packed weights are B (n = co), and k = ci * kh * kw.

In each round the peak, OpenBLAS and our kernel take one turn each, of several products; the table
gives medians over the rounds. Other load on the machine falls on all three, but not on all alike:
repeat a run whose peak moved.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import threadpoolctl
import tvm
from tvm import s_tir, te

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.marks import REGISTER_BYTES
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.probe import measure_peak_gflops
from tvm_blislike.runtime.threads import use_threads
from tvm_blislike.schedules import get_implementation
from tvm_blislike.schedules.lowering import lower as lowering

SQUARES = tuple((size, size, size) for size in (512, 768, 1024, 1536, 2048))
RESNET50 = (
    (12544, 64, 147),
    (3136, 64, 64),
    (3136, 64, 576),
    (3136, 256, 64),
    (3136, 64, 256),
    (3136, 128, 256),
    (784, 128, 1152),
    (784, 512, 128),
    (784, 512, 256),
    (784, 128, 512),
    (784, 256, 512),
    (196, 256, 2304),
    (196, 1024, 256),
    (196, 1024, 512),
    (196, 256, 1024),
    (196, 512, 1024),
    (49, 512, 4608),
    (49, 2048, 512),
    (49, 2048, 1024),
    (49, 512, 2048),
)
SETS = {"squares": SQUARES, "resnet50": RESNET50, "all": SQUARES + RESNET50}
TURN_SECONDS = 0.006
HEADER = (
    "     m     n     k  kernel  order  mc/nc/kc         A          GFLOPS  /peak  pred.  "
    "OpenBLAS  ratio"
)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    m: int
    n: int
    k: int
    kernel: str
    blocking: str
    layout: str
    gflops: float
    peak_gflops: float
    fraction: float
    openblas_gflops: float
    ratio: float
    predicted_fraction: float


def compiled(choice: Choice, core: Core, threads: int, packing: bool) -> Callable[..., None]:
    """Return the function (A, B, C), where B is packed unless `packing` is part of it."""
    w, c, implementation = choice.workload, choice.config, choice.implementation
    a = te.placeholder((w.m, w.k), w.types.a, name="a")
    if packing:
        b = te.placeholder((w.k, w.n), w.types.a, name="b")
        packed = implementation.pack_te(w, c, b)
    else:
        zeros = np.zeros((w.k, w.n), w.types.a)
        b = packed = te.placeholder(implementation.pack(w, c, zeros).shape, w.types.a, name="b")
    func = te.create_prim_func([a, b, implementation.compute(w, c, a, packed)])
    sch = s_tir.Schedule(func.with_attr("global_symbol", "main").with_attr("tirx.noalias", True))
    implementation.schedule(sch, w, c, core, threads)
    register_bytes = core.vector_registers * core.vector_bits // 8
    ours = sch.mod["main"].with_attr(REGISTER_BYTES, register_bytes)
    module = lowering.lower(tvm.IRModule({"main": ours}))
    return tvm.compile(module, tvm.target.Target(core.target_config(threads)))["main"]


def turn(run: Callable[[], object], times: int, flops: float) -> float:
    """Return the GFLOPS of `times` runs in a row."""
    started = time.perf_counter()
    for _ in range(times):
        run()
    return flops * times / (time.perf_counter() - started) / 1e9


def measure(
    shape: tuple[int, int, int], core: Core, threads: int, rounds: int, packing: bool
) -> Row:
    """Compile, check against OpenBLAS, and time one shape."""
    workload = GemmWorkload(*shape, constant_b=not packing)
    # Strassen's algorithm has a benchmark of its own: no fraction of the peak says much of it.
    plain = Constraints(without=("gemm_strassen",))
    choice = Strategy(core, threads, constraints=plain).choose(workload)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((workload.m, workload.k), dtype=np.float32)
    b = rng.standard_normal((workload.k, workload.n), dtype=np.float32)
    c = np.empty((workload.m, workload.n), np.float32)
    second = b if packing else choice.implementation.pack(workload, choice.config, b)
    arguments = [tvm.runtime.tensor(x) for x in (a, second, c)]
    function = compiled(choice, core, threads, packing)
    use_threads(threads)

    runs = {"ours": lambda: function(*arguments), "openblas": lambda: np.matmul(a, b, out=c)}
    for run in runs.values():
        run()
    np.testing.assert_allclose(arguments[-1].numpy(), c, rtol=0, atol=1e-5 * np.abs(c).max())
    flops = 2.0 * workload.macs
    times = {
        n: max(1, round(TURN_SECONDS * turn(run, 1, flops) * 1e9 / flops))
        for n, run in runs.items()
    }
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    peaks = []
    for _ in range(rounds):
        peaks.append(measure_peak_gflops(core, threads))
        for name, run in runs.items():
            speeds[name].append(turn(run, times[name], flops))
    config = choice.config
    ours, openblas, peak = median(speeds["ours"]), median(speeds["openblas"]), median(peaks)
    return Row(
        *shape,
        kernel=f"{config.mr}x{config.nr}",
        blocking=f"{config.loop_order} {config.mc}/{config.nc}/{config.kc}",
        layout=config.packing,
        gflops=ours,
        peak_gflops=peak,
        fraction=ours / peak,
        openblas_gflops=openblas,
        ratio=ours / openblas,
        predicted_fraction=choice.estimate.peak_fraction,
    )


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def conditions(core: Core, threads: int) -> dict[str, object]:
    """Return what the figures depend on."""
    packages = ("apache-tvm", "apache-tvm-ffi", "numpy")
    blas = [i for i in threadpoolctl.threadpool_info() if i["user_api"] == "blas"]
    return {
        "core": core.name,
        "machine": f"{platform.machine()} {platform.system()} {platform.release()}",
        "threads": threads,
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "blas": [f"{i['internal_api']} {i['version']} {i.get('architecture')}" for i in blas],
    }


def line(row: Row) -> str:
    """Return one row of the table."""
    return (
        f"{row.m:6d} {row.n:5d} {row.k:5d}  {row.kernel:>6s}  {row.blocking:23s} "
        f"{row.layout:9s} {row.gflops:7.1f} {row.fraction:6.3f} {row.predicted_fraction:6.2f} "
        f"{row.openblas_gflops:9.1f} {row.ratio:6.2f}"
    )


def main() -> None:
    """Measure the shapes, print the table, save it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", choices=SETS, default="all")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--core", metavar="NAME", help="a described core; by default this one")
    parser.add_argument("--repeat", type=int, default=9, metavar="ROUNDS")
    parser.add_argument("--include-packing-b", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    core = Core.named(options.core) if options.core else native_core()
    get_implementation("gemm")
    about = conditions(core, options.threads)
    print(", ".join(f"{key}: {value}" for key, value in about.items()))
    print(HEADER)
    rows = []
    with threadpoolctl.threadpool_limits(options.threads):
        for shape in SETS[options.shapes]:
            row = measure(shape, core, options.threads, options.repeat, options.include_packing_b)
            rows.append(row)
            print(line(row), flush=True)
    means = {
        "fraction": geometric_mean([row.fraction for row in rows]),
        "ratio": geometric_mean([row.ratio for row in rows]),
    }
    print(
        f"geometric mean: {means['fraction']:.3f} of the peak "
        f"(median {median(row.peak_gflops for row in rows):.0f} GFLOPS), "
        f"{means['ratio']:.2f}x OpenBLAS, lowest {min(row.ratio for row in rows):.2f}x"
    )
    if options.json:
        result = {**about, "rounds": options.repeat, "packing_b": options.include_packing_b}
        result |= {"geometric_means": means, "shapes": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
