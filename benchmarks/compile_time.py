"""How long models take to compile, and how long a process needs to start a kept one.

    python benchmarks/compile_time.py                        ResNet-50 and three smaller ones
    python benchmarks/compile_time.py MODEL.onnx... --threads 2

Every figure is the wall time of a new process of `tvm-blislike run`, imports, one run that is not
counted and one that is included: without the folder of kept models, with an empty one, which is
filled, and with what is in it then, the best of three. Beside them the time of `import tvm` alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_ZOO = Path(__file__).parents[1] / "examples" / "zoo.py"
_MODELS = ("resnet50", "efficientnet_b0", "mobilenet_v3_large", "mobilenet_v2")
_STARTS = 3


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL.onnx")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        models = [Path(model) for model in options.models] or _zoo(Path(folder))
        floor = min(_seconds(["-c", "import tvm"], {}) for _ in range(_STARTS))
        print(f"import tvm: {floor:.2f} s")
        print(f"{'model':<32}{'not kept':>10}{'kept':>10}{'again':>10}   seconds")
        for model in models:
            _report(model, options.threads, Path(folder) / "kept")


def _zoo(folder: Path) -> list[Path]:
    """Write the models of the example zoo."""
    paths = [folder / f"{name}.onnx" for name in _MODELS]
    for path in paths:
        _seconds([str(_ZOO), path.stem, "-o", str(path)], {})
    return paths


def _report(model: Path, threads: int, kept: Path) -> None:
    """Print a line of one model."""
    run = ["-m", "tvm_blislike", "run", str(model), "--threads", str(threads), "--records", "none"]
    times = [_seconds(run, {"TVM_BLISLIKE_CACHE": place}) for place in ("0", str(kept))]
    times.append(min(_seconds(run, {"TVM_BLISLIKE_CACHE": str(kept)}) for _ in range(_STARTS)))
    print(f"{model.name:<32}" + "".join(f"{seconds:10.2f}" for seconds in times), flush=True)


def _seconds(arguments: Sequence[str], more: dict[str, str]) -> float:
    """Return the wall time of a process of this Python."""
    started = time.perf_counter()
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
