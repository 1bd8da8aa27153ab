"""Whole models side by side with other engines: one interleaved run per model and thread count.

    python benchmarks/models.py                      every model of the bars, 1 and 2 threads
    python benchmarks/models.py -m resnet50 -t 1     one of them
    python benchmarks/models.py --engines blislike,onnxruntime,openvino,tvm --json results.json
    ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/models.py --target x86-64-v3   blislike with AVX2

Each run is `tvm-blislike bench` in a process of its own, so that the engines' thread pools start
afresh. The table gives medians in milliseconds, the speed of blislike relative to every other
engine, and the geometric means; `--threads 1 --threads 2` are the defaults. Results are kept in
`results/models-KIND.txt`, a file per kind of machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from zoo_runs import COMPARED, add_model_option, printed, saved


def run(
    model: Path, threads: int, options: argparse.Namespace, shapes: Sequence[str]
) -> dict[str, Any]:
    """Return the JSON of one `tvm-blislike bench`; shapes as for its option."""
    words = ["--threads", threads, "--engines", options.engines, "--json", "-"]
    words += ["--target", options.target, *(["--repeat", options.repeat] if options.repeat else [])]
    words += [word for shape in shapes for word in ("--shape", shape)]
    return printed("bench", model, *words)


def line(name: str, threads: int, result: dict) -> str:
    """Return one row of the table."""
    medians = {engine: entry["median_ms"] for engine, entry in result["engines"].items()}
    ours = medians["blislike"]
    cells = [f"{engine} {ms:8.2f}" for engine, ms in medians.items()]
    cells += [f"/{engine} {ms / ours:5.2f}x" for engine, ms in medians.items() if ms is not ours]
    cells += [f"{engine} left out: {why}" for engine, why in result["skipped"].items()]
    error = result["engines"]["blislike"]["max_rel_error"]
    peak = result["peak_gflops"]
    return f"{name:20s} {threads}t  {'  '.join(cells)}  error {error:.1e}  peak {peak:.0f} GFLOPS"


def speeds(result: dict) -> dict[str, float]:
    """Return the speed of blislike relative to each engine, and to the fastest of them."""
    medians = {engine: entry["median_ms"] for engine, entry in result["engines"].items()}
    ours = medians.pop("blislike")
    best = {"best": min(medians.values())} if medians else {}
    return {engine: ms / ours for engine, ms in (medians | best).items()}


def summary(results: list[dict]) -> Iterator[str]:
    """Yield a line per engine: the mean speed relative to it, and the lowest."""
    for engine in speeds(results[0]):
        lowest = min(results, key=lambda result: speeds(result)[engine])
        mean = geometric_mean(speeds(result)[engine] for result in results)
        other = "the fastest engine of each row" if engine == "best" else engine
        yield (
            f"relative to {other}: geometric mean {mean:.3f}x,"
            f" lowest {speeds(lowest)[engine]:.3f}x ({lowest['name']})"
        )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `compared` reads."""
    parser.add_argument("-t", "--threads", action="append", type=int, metavar="N")
    parser.add_argument("--engines", default="blislike,onnxruntime,openvino")
    parser.add_argument("--target", default="native", help="of blislike; others: see their own")
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--json", type=Path, metavar="FILE")


def compare(models: Iterable[tuple[str, Path, Sequence[str]]], options: argparse.Namespace) -> None:
    """Run models, each a name, a file and shapes to give; print and save the results."""
    results = []
    for name, path, shapes in models:
        for threads in options.threads or (1, 2):
            result = run(path, threads, options, shapes)
            results.append({"name": name, "threads": threads, **result})
            print(line(name, threads, result), flush=True)
    for threads in {result["threads"]: None for result in results}:
        print(f"{threads} thread{'s' * (threads > 1)}")
        for text in summary([result for result in results if result["threads"] == threads]):
            print(f"  {text}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    """Build the models and compare the engines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_option(parser)
    add_run_options(parser)
    options = parser.parse_args()
    compare(((name, path, ()) for name, path in saved(options.model, COMPARED)), options)


if __name__ == "__main__":
    main()
