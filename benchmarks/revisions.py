"""Speed of the models and time to compile them, side by side with an older revision.

    python benchmarks/revisions.py fae9cb5              every model of the bars, 1 and 2 threads
    python benchmarks/revisions.py HEAD~3 -m vgg11 -t 1

The revision and this checkout are installed into folders of their own, all rooms of each, and run
with the other packages of this Python. Both compile each model, one after the other, in processes
of their own. The two libraries are then
loaded into one process and run in turns; four such processes, as where weights lie in memory
counts as much as a kernel does. A ratio above 1 means that this checkout is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median

from zoo_runs import add_model_option, in_turns, saved, timed

from tvm_blislike.hardware import native_core
from tvm_blislike.hardware.cpus import usable_cpus

ROOT = Path(__file__).parents[1]
# As many with one library first as with the other: the second one is up to 1 % faster.
PROCESSES, ROUNDS, SECONDS = 4, 30, 4.0


def _git(*arguments: str) -> bytes:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def _present() -> str:
    """Return a commit of what git knows of this checkout, changes included."""
    return _git("stash", "create").decode().strip() or "HEAD"


@contextmanager
def installed(revision: str | None) -> Iterator[Path]:
    """Yield a folder with the package as of a revision, of None as it is in this checkout."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "revision", Path(folder) / "installed"
        source.mkdir()
        # Exported, not in place: building leaves files behind.
        archive = _git("archive", "--format=tar", revision or _present())
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        subprocess.run([*pip, str(target), str(source)], check=True)
        yield target


def compiled(package: Path, model: Path, threads: int, output: Path) -> float:
    """Compile a model with the package in a folder; return the seconds that took."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, "-m", "tvm_blislike", "compile", str(model), "-o", str(output)]
    command += ["--threads", str(threads), "--records", "none"]
    started = time.perf_counter()
    subprocess.run(command, check=True, cwd=package, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def times_in_turns(paths: list[str]) -> list[float]:
    """Return the median milliseconds of each library, run in turns."""
    from tvm_blislike.onnx.inputs import random_inputs
    from tvm_blislike.runtime.compiled import CompiledModel

    models = [CompiledModel.load(path, verify=False) for path in paths]
    inputs = random_inputs(models[0].inputs)
    runs = [partial(model.run, inputs) for model in models]
    for run in runs:
        run()
    samples = in_turns([partial(timed, run) for run in runs], SECONDS, ROUNDS)
    return [median(times) * 1e3 for times in samples]


def ratios(new: Path, old: Path) -> list[float]:
    """Return how much faster `new` runs than `old`, once per process."""
    found = []
    for number in range(PROCESSES):
        paths = [str(new), str(old)][:: 1 if number % 2 == 0 else -1]
        command = [sys.executable, __file__, "--times", *paths]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        first, second = json.loads(done.stdout)
        found.append(second / first if number % 2 == 0 else first / second)
    return found


def compare(options: argparse.Namespace) -> None:
    """Print a line per model and number of threads, then the geometric means."""
    print(f"machine: {native_core().name}, {len(usable_cpus())} CPUs, {platform.release()}")
    speeds, builds = [], []
    with (
        installed(options.revision) as older,
        installed(None) as newer,
        tempfile.TemporaryDirectory() as folder,
    ):
        new, old = Path(folder) / "new.so", Path(folder) / "old.so"
        for name, model in saved(options.model):
            for threads in options.threads or (1, 2):
                before = compiled(older, model, threads, old)
                after = compiled(newer, model, threads, new)
                found = ratios(new, old)
                speeds.append(geometric_mean(found))
                builds.append(after / before)
                every = " ".join(f"{ratio:.3f}" for ratio in found)
                print(
                    f"{name:20s} {threads}t  speed {speeds[-1]:.3f} ({every})  "
                    f"compiles in {after:.1f} s, before in {before:.1f} s: {builds[-1]:.2f}",
                    flush=True,
                )
    print(f"geometric mean: speed {geometric_mean(speeds):.3f}, lowest {min(speeds):.3f}")
    print(
        f"geometric mean: time to compile {geometric_mean(builds):.3f}, highest {max(builds):.3f}"
    )


def main() -> None:
    """Compare, or, in a process of its own, time two libraries."""
    if sys.argv[1:2] == ["--times"]:
        print(json.dumps(times_in_turns(sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="what git calls it: fae9cb5, v0.3, HEAD~3")
    add_model_option(parser)
    parser.add_argument("-t", "--threads", action="append", type=int, metavar="N")
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
