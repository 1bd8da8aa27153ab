"""Table 2 and figures 8 and 9 of SConv: `conv2d_im2col` beside im2col + BLAS, layer by layer.

    python benchmarks/sconv.py layers.jsonl                     every convolution of the paper
    python benchmarks/sconv.py layers.jsonl --mkl libmkl_rt.so --seconds 50
    python benchmarks/sconv.py layers.jsonl --layers 20:40
    python benchmarks/sconv.py layers.jsonl --report > results.txt

The models are the seven of table 2, built by `examples/zoo.py`, batch 1, one thread: 393
convolutions, of which 143 differ. Each of those is measured once and counts as often as it occurs.
Results are appended to the file, a line per layer; layers that it has already are left out, so a
long run may be cut into pieces (`--seconds`, `--layers`).

Both sides take and return NCHW and leave out bias and activation. The baseline is
`sconv_baselines.Im2colGemm`: numpy's copy of windows and its OpenBLAS; pointwise convolutions of
stride 1 need no im2col, so there it is OpenBLAS's GEMM alone (figure 9). With `--mkl` the same is
measured with Intel's library. In each round the sides take turns; a figure is the median over the
rounds. The FMA peak is measured before and after each layer, and the larger one counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import threadpoolctl
from layers import Layer, choice, conditions, random_operands, read_lines, take_turns
from sconv_baselines import Im2colGemm, Sgemm, is_pointwise, load_mkl, openblas
from sconv_report import report

from tvm_blislike.bench.graph_layers import layers_of
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.probe import measure_peak_gflops
from tvm_blislike.runtime.threads import use_threads

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import zoo

MODELS = (
    *("googlenet", "inception_v2", "resnet18", "resnet50_v1", "resnet152_v1"),
    *("squeezenet1_0", "vgg16"),
)
PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy")


@dataclass(frozen=True)
class Row:
    """One distinct layer: seconds by side, "ours", "openblas" and perhaps "mkl"."""

    layer: str
    counts: dict[str, int]
    pointwise: bool
    config: str
    seconds: dict[str, float]
    gflops: float
    peak_gflops: float


def convolutions(model: str) -> Counter[Conv2dWorkload]:
    """Return the ungrouped convolutions of a model, each with the number of times it occurs."""
    found = (layer.workload for layer in layers_of(zoo.build(model), {}))
    return Counter(w for w in found if isinstance(w, Conv2dWorkload) and w.groups == 1)


def distinct(models: tuple[str, ...]) -> dict[Conv2dWorkload, dict[str, int]]:
    """Return every different convolution with its number in each of the models."""
    found: dict[Conv2dWorkload, dict[str, int]] = {}
    for model in models:
        for workload, count in convolutions(model).items():
            found.setdefault(workload, {})[model] = count
    return found


def measure(
    workload: Conv2dWorkload,
    counts: dict[str, int],
    core: Core,
    libraries: dict[str, Sgemm],
    rounds: int,
) -> Row:
    """Compile, check against the baseline, and time one layer."""
    w, (data, weights) = workload, random_operands(workload)
    config = choice("conv2d_im2col", w, core)
    ours, baseline = Layer(w, config, core, data, weights), Im2colGemm(w, data, weights)
    ours.run()
    for gemm in libraries.values():
        wanted = baseline.run(gemm).reshape(ours.result().shape)
        limit = 1e-5 * np.abs(wanted).max()
        np.testing.assert_allclose(ours.result(), wanted, rtol=0, atol=limit)
    runs = {name: lambda g=gemm: baseline.run(g) for name, gemm in libraries.items()}
    peaks = [measure_peak_gflops(core, 1)]
    seconds = take_turns({"ours": ours.run, **runs}, rounds)
    peaks.append(measure_peak_gflops(core, 1))
    return Row(
        layer=str(w),
        counts=counts,
        pointwise=is_pointwise(w),
        config=described(config),
        seconds=seconds,
        gflops=2 * w.macs / seconds["ours"] / 1e9,
        peak_gflops=max(peaks),
    )


def described(config: Config) -> str:
    """Return the choices of a configuration, those of the plain form left out."""
    c = config
    lanes = f"{c.columns} in lanes" if c.columns else ""
    packing = f"packing {c.packing}" if c.packing else ""
    parts = f"{c.mr}x{c.nr} {c.loop_order} {c.oh_block} rows kc {c.kc} {lanes} {packing}"
    return " ".join(parts.split())


def append(
    file: Path, todo: list[tuple[Conv2dWorkload, dict[str, int]]], options: argparse.Namespace
) -> None:
    """Measure layers that the file does not have, until the time is over."""
    core, started = native_core(), time.monotonic()
    libraries = {"openblas": openblas}
    if options.mkl:
        libraries["mkl"] = load_mkl(options.mkl)
    use_threads(1)
    with threadpoolctl.threadpool_limits(1), file.open("a") as out:
        blas = [i for i in threadpoolctl.threadpool_info() if i["user_api"] == "blas"]
        versions = sorted(f"{i['internal_api']} {i['version']}" for i in blas)
        about = conditions(core, PACKAGES, blas=versions, sides=list(libraries))
        print(json.dumps(about), file=out)
        for workload, counts in todo:
            if time.monotonic() - started > options.seconds:
                return
            row = measure(workload, counts, core, libraries, options.repeat)
            print(json.dumps(asdict(row)), file=out, flush=True)


def main() -> None:
    """Measure what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="results, one JSON object per line")
    parser.add_argument("--report", action="store_true", help="print the tables")
    parser.add_argument("--layers", default=":", metavar="A:B", help="slice of the 143 layers")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then stop")
    parser.add_argument("--mkl", type=Path, metavar="LIBRARY", help="libmkl_rt, to measure too")
    parser.add_argument("--repeat", type=int, default=9, metavar="ROUNDS")
    options = parser.parse_args()
    about, rows = read_lines(options.file)
    if options.report:
        report(about, list(rows.values()), MODELS)
        return
    first, last = (int(part) if part else None for part in options.layers.split(":"))
    todo = list(distinct(MODELS).items())[first:last]
    append(options.file, [(w, n) for w, n in todo if str(w) not in rows], options)


if __name__ == "__main__":
    main()
