"""Models of other people's packages and exporters: do they compile, agree, and how fast are they.

    python benchmarks/wild.py                        all of them, 1 and 2 threads
    python benchmarks/wild.py --list                 their names
    python benchmarks/wild.py -m 'silero*' -t 1      those whose name matches a pattern
    python benchmarks/wild.py --packages             those of packages only
    python benchmarks/wild.py --compile-only         no measuring

`wild_packages.py` lists packages with the releases of which models are taken, `wild_exports.py`
architectures that torch writes, which needs torch, torchvision, timm, transformers and onnxscript,
`wild_volumes.py` those of volumes, which needs pytorchvideo and monai, `wild_keras.py` those that
tf2onnx writes, which needs TensorFlow and may run beforehand in an environment of its own.
Both are kept in `build/wild/`. Every model runs in a process of its own, which has so long to
compile; what ONNX Runtime does not run does not count. The table has the seconds to compile, with
as many cores as threads, and run once, the largest difference from ONNX Runtime relative to the
largest output, medians of one interleaved run in milliseconds, and the speed relative to the best
of ONNX Runtime and OpenVINO, both in fp32.

ONNX Runtime rounds as well. Where a model differs from it by more than `bench` takes for rounding,
both are compared with the model in float64 (`doubles.py`), and the model agrees when it is as near
to that as it should have been to ONNX Runtime: whose error the difference is, the row says. A model
that ONNX's reference evaluator does not run is left at its difference from ONNX Runtime.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from statistics import geometric_mean
from types import ModuleType
from typing import Any

import doubles
import numpy as np
import wild_exports
import wild_keras
import wild_packages

FOLDER = Path(__file__).parents[1] / "build" / "wild"
# Each with the networks that it writes.
_EXPORTERS: dict[str, ModuleType] = {
    "script": wild_exports,
    "dynamo": wild_exports,
    **dict.fromkeys(wild_keras.EXPORTERS, wild_keras),
}
_ENGINES = ("blislike", "onnxruntime", "openvino")
_SECONDS = 300


@dataclass(frozen=True)
class Case:
    """A model of the collection.

    Parameters
    ----------
    name : str
        Unique.
    source : str
        "package" or "export".
    path : Path
        The ONNX file, with the arrays that it runs on beside it as .npz.
    """

    name: str
    source: str
    path: Path

    def inputs(self) -> dict[str, np.ndarray] | None:
        """Return what it runs on; None for random values."""
        path = self.path.with_suffix(".npz")
        return dict(np.load(path)) if path.exists() else None


def of_packages() -> Iterator[Case]:
    """Yield the models of packages; their inputs are written beside them."""
    for found in wild_packages.models(FOLDER / "packages"):
        rng = np.random.default_rng(0)
        arrays = {name: make(rng) for name, make in found.inputs.items()}
        if arrays:
            np.savez(found.path.with_suffix(".npz"), **arrays)
        yield Case(found.name, "package", found.path)


def of_exports() -> Iterator[Case]:
    """Yield the exported architectures, as files that need not exist."""
    for exporter, networks in _EXPORTERS.items():
        for name in networks.EXPORTS:
            path = FOLDER / "exports" / f"{name}_{exporter}.onnx"
            yield Case(f"{name} {exporter}", "export", path)


def exported(case: Case) -> bool:
    """Write an architecture in a process of its own; return whether the exporter could."""
    if case.path.exists():
        return True
    case.path.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, __file__, "--export", *case.name.split(), str(case.path)],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def measured(
    case: Case, threads: int, compile_only: bool, engines: Sequence[str]
) -> dict[str, Any]:
    """Return what this process finds out about a model."""
    import onnxruntime

    from tvm_blislike.bench import bench
    from tvm_blislike.errors import BlislikeError

    onnxruntime.set_default_logger_severity(4)
    path, inputs = case.path, case.inputs()
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        if inputs:
            session.run(None, inputs)
    except Exception as error:  # of any kind: it is not ours to explain
        return {"peer": str(error).splitlines()[0]}
    try:
        result = bench(path, engines, threads, 1 if compile_only else None, inputs=inputs)
    except BlislikeError as error:
        return {"reason": str(error).splitlines()[0]}
    found = result.engines
    row = {
        "seconds": found["blislike"].load_s,
        "error": found["blislike"].max_rel_error,
        "tolerance": result.tolerance,
        "ms": {name: engine.median_ms for name, engine in found.items()},
    }
    return row if agrees(row) else row | {"exact": from_doubles(path, inputs, threads)}


def from_doubles(
    path: Path, inputs: dict[str, np.ndarray] | None, threads: int
) -> dict[str, float] | None:
    """Return how far engines are from a model in float64; None where that cannot be computed."""
    from tvm_blislike.onnx import frontend
    from tvm_blislike.onnx.inputs import random_inputs

    if inputs is None:
        # As bench makes them.
        inputs = random_inputs(frontend.resolve_inputs(frontend.read_model(path)[0], {}))
    try:
        return doubles.distances(path, inputs, threads)
    except Exception as error:  # of the evaluator's operators, of any kind
        print(f"{path.name} in float64: {error}", file=sys.stderr)
        return None


def in_a_process(
    case: Case, threads: int, compile_only: bool, engines: Sequence[str] = _ENGINES
) -> dict[str, Any]:
    """Return what a process of its own finds out about a model."""
    engines = _ENGINES[:2] if compile_only else engines
    numbers = str(threads), str(int(compile_only))
    words = [__file__, "--case", case.name, case.source, str(case.path), *numbers]
    return printed(words, engines)


def printed(
    words: Sequence[str], engines: Sequence[str], seconds: int = _SECONDS
) -> dict[str, Any]:
    """Return the JSON that a script prints last, or the "reason" why it does not within seconds.

    OpenVINO ends the process with some models: then those are compared without it. The names of the
    engines, OpenVINO's last, stand behind the words.
    """
    command = [sys.executable, *words, ",".join(engines)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"reason": f"not done after {seconds} s"}
    if done.returncode < 0 and engines[-1] == "openvino":
        return printed(words, engines[:-1], seconds)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        return {"reason": f"fault: {last}"}
    return json.loads(done.stdout.splitlines()[-1])


def agrees(found: dict[str, Any]) -> bool:
    """Return whether a model compiled and has the results of ONNX Runtime, or of float64."""
    if "ms" not in found or found["error"] is None:
        return False
    exact = found.get("exact") or {}
    return min(found["error"], exact.get("blislike", np.inf)) <= found["tolerance"]


def ratio(found: dict[str, Any]) -> float:
    """Return the speed relative to the best peer."""
    ms = found["ms"]
    return min(ms[name] for name in ms if name != "blislike") / ms["blislike"]


def line(case: Case, threads: int, found: dict[str, Any]) -> str:
    """Return a row of the table."""
    start = f"{case.name[:44]:44s} {threads}t "
    if "peer" in found:
        return f"{start} ONNX Runtime: {found['peer'][:90]}"
    if "reason" in found:
        return f"{start} {found['reason'][:180]}"
    cells = [f"{name} {ms:8.2f}" for name, ms in found["ms"].items()]
    error = "not finite" if found["error"] is None else f"{found['error']:.1e}"
    if exact := found.get("exact"):
        ours, peer = exact["blislike"], exact["onnxruntime"]
        error += f" (from float64: {ours:.1e}, ONNX Runtime {peer:.1e})"
    wrong = "" if agrees(found) else "  DIFFERS"
    return (
        f"{start} {found['seconds']:5.1f} s  error {error}  {'  '.join(cells)}"
        f"  /best peer {ratio(found):5.2f}x{wrong}"
    )


def summary(title: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return how many compile and agree, and how fast these are."""
    counted = [found for found in rows if "peer" not in found]
    right = [found for found in counted if agrees(found)]
    if not right:
        return f"{title}: 0 of {len(counted)} compile and agree"
    speeds = [ratio(found) for found in right]
    return (
        f"{title}: {len(right)} of {len(counted)} compile and agree; /best peer geometric mean"
        f" {geometric_mean(speeds):.2f}x, lowest {min(speeds):.2f}x, {sum(s < 1 for s in speeds)}"
        f" below 1; compilation at most {max(f['seconds'] for f in right):.0f} s"
    )


def main() -> None:
    """Go through the collection; or, in a process of its own, take one model of it."""
    words = sys.argv[1:]
    if words[:1] == ["--export"]:
        _EXPORTERS[words[2]].save(words[1], words[2], Path(words[3]))
        return
    if words[:1] == ["--case"]:
        name, source, path, threads, compile_only, engines = words[1:]
        case = Case(name, source, Path(path))
        found = measured(case, int(threads), compile_only == "1", engines.split(","))
        print(json.dumps(found))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="*", metavar="PATTERN")
    parser.add_argument("-t", "--threads", action="append", type=int, metavar="N")
    parser.add_argument("--packages", action="store_true", help="models of packages only")
    parser.add_argument("--exports", action="store_true", help="exported architectures only")
    parser.add_argument("--compile-only", action="store_true", help="no measuring")
    parser.add_argument("--list", action="store_true", help="print the names")
    options = parser.parse_args()
    cases = [] if options.exports else list(of_packages())
    cases += [] if options.packages else list(of_exports())
    cases = [case for case in cases if fnmatch(case.name, options.model)]
    if options.list:
        print("\n".join(case.name for case in cases))
        return
    for threads in options.threads or (1, 2):
        results: dict[str, list[dict[str, Any]]] = {}
        for case in cases:
            if case.source == "export" and not exported(case):
                print(f"{case.name[:44]:44s} it cannot be exported here", flush=True)
                continue
            found = in_a_process(case, threads, options.compile_only)
            print(line(case, threads, found), flush=True)
            results.setdefault(case.source, []).append(found)
        for source, rows in results.items():
            print(summary(f"{source}s, {threads} threads", rows), flush=True)


if __name__ == "__main__":
    main()
