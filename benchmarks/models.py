"""Whole models side by side with other engines: one interleaved run per model and thread count.

    python benchmarks/models.py                      every model of the bars, 1 and 2 threads
    python benchmarks/models.py -m resnet50 -t 1     one of them
    python benchmarks/models.py --engines blislike,onnxruntime,openvino,tvm --json results.json

Each run is `tvm-blislike bench` in a process of its own, so that the engines' thread pools start
afresh. The table gives medians in milliseconds, the speed of blislike relative to every other
engine, and the geometric means.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from zoo_runs import add_model_option, printed, saved


def run(model: Path, threads: int, engines: str, repeat: int | None, shapes: Sequence[str]) -> dict:
    """Return the JSON of one `tvm-blislike bench`; shapes as for its option."""
    options = ["--threads", threads, "--engines", engines, "--json", "-"]
    options += ["--repeat", repeat] if repeat else []
    options += [word for shape in shapes for word in ("--shape", shape)]
    return printed("bench", model, *options)


def line(name: str, threads: int, result: dict) -> str:
    """Return one row of the table."""
    medians = {engine: entry["median_ms"] for engine, entry in result["engines"].items()}
    ours = medians["blislike"]
    cells = [f"{engine} {ms:8.2f}" for engine, ms in medians.items()]
    cells += [f"/{engine} {ms / ours:5.2f}x" for engine, ms in medians.items() if ms is not ours]
    error = result["engines"]["blislike"]["max_rel_error"]
    peak = result["peak_gflops"]
    return f"{name:20s} {threads}t  {'  '.join(cells)}  error {error:.1e}  peak {peak:.0f} GFLOPS"


def geometric_means(results: list[dict]) -> dict[str, float]:
    """Return the mean speed of blislike relative to each engine."""
    ratios: dict[str, list[float]] = {}
    for result in results:
        ours = result["engines"]["blislike"]["median_ms"]
        for engine, entry in result["engines"].items():
            if engine != "blislike":
                ratios.setdefault(engine, []).append(entry["median_ms"] / ours)
    return {e: math.exp(sum(map(math.log, r)) / len(r)) for e, r in ratios.items()}


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `compared` reads."""
    parser.add_argument("-t", "--threads", action="append", type=int, metavar="N")
    parser.add_argument("--engines", default="blislike,onnxruntime,openvino")
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--json", type=Path, metavar="FILE")


def compare(models: Iterable[tuple[str, Path, Sequence[str]]], options: argparse.Namespace) -> None:
    """Run models, each a name, a file and shapes to give; print and save the results."""
    results = []
    for name, path, shapes in models:
        for threads in options.threads or (1, 2):
            result = run(path, threads, options.engines, options.repeat, shapes)
            results.append({"name": name, **result})
            print(line(name, threads, result), flush=True)
    for engine, mean in geometric_means(results).items():
        print(f"geometric mean speed relative to {engine}: {mean:.3f}x")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    """Build the models and compare the engines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_option(parser)
    add_run_options(parser)
    options = parser.parse_args()
    compare(((name, path, ()) for name, path in saved(options.model)), options)


if __name__ == "__main__":
    main()
