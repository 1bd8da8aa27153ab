"""MetaSchedule's own tuning against this package's: the time each takes, and the models' speed.

    python benchmarks/metaschedule.py -m resnet18                         64 trials per task: hours
    python benchmarks/metaschedule.py -m resnet18 --trials-per-task 8     an eighth of that
    python benchmarks/metaschedule.py -m resnet18 --time-limit 200        what 200 seconds reach
    python benchmarks/metaschedule.py -m resnet18 --work-dir ms --resume  measure what is there

MetaSchedule tunes the model as imported, with its default space for `llvm` targets, in a process of
its own; `tvm_blislike.tune` starts from no record. Then both models take turns in one process. A
tuning that the limit ends is extrapolated by the rate of the trials that it sent to its runner:
tasks x trials per task is its whole work, at most, as tasks without choices have few candidates.
Tasks without a schedule run as TVM leaves them, so such a model's speed says nothing; the line
tells how many there are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import tvm
import zoo
from tvm import relax
from tvm.s_tir import meta_schedule as ms

import tvm_blislike
from tvm_blislike.hardware import native_core
from tvm_blislike.onnx import frontend
from tvm_blislike.onnx.inputs import random_inputs
from tvm_blislike.records.book import RecordBook
from tvm_blislike.runtime.threads import use_threads

# What TVM's `static_shape_tuning` pipeline does before it tunes.
_BEFORE_TUNING = tvm.transform.Sequential(
    [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.get_pipeline("zero"),
    ]
)
_ROUNDS = 15
_RUNS_PER_TURN = 5


def fused(model: Path, target: tvm.target.Target) -> tvm.IRModule:
    """Return the model as MetaSchedule tunes it: fused PrimFuncs without a schedule."""
    with target:
        return _BEFORE_TUNING(frontend.load(model).module)


def tune_with_metaschedule(model: Path, folder: Path, target: Any, per_task: int) -> None:
    """Tune with MetaSchedule's defaults; records go to a database in the folder."""
    mod = fused(model, target)
    tasks = ms.relax_integration.extract_tasks(mod, target, {})
    (folder / "tasks.json").write_text(json.dumps(len(tasks)))
    ms.relax_integration.tune_relax(
        mod,
        {},
        target,
        str(folder),
        max_trials_global=per_task * len(tasks),
        max_trials_per_task=per_task,
        num_trials_per_iter=min(64, per_task),
    )


def run_apart(command: list[str], threads: int, limit: float | None, log: Path) -> float:
    """Run a command with all its processes, to its end or a limit; return the seconds."""
    started = time.monotonic()
    # For MetaSchedule's runner, which would give every candidate all CPUs.
    env = {**os.environ, "TVM_NUM_THREADS": str(threads)}
    with log.open("w") as output:
        streams = {"stdout": output, "stderr": output}
        process = subprocess.Popen(command, env=env, start_new_session=True, **streams)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}:\n{log.read_text()[-2000:]}")
    return time.monotonic() - started


def progress_of(log: Path) -> tuple[int, float]:
    """Return the trials that MetaSchedule's log reports, and the seconds that they took.

    Counted are tasks that it is through with: from its first choice of a task to the last.
    """
    text = log.read_text() if log.exists() else ""
    found = re.findall(r"^(\S+ \S+) \[INFO\].*?(picks Task|Sending (\d+) valid)", text, re.M)
    chosen = [(place, when) for place, (when, what, _) in enumerate(found) if "picks" in what]
    if not chosen:
        return 0, 0.0
    (_, first), (end, last) = chosen[0], chosen[-1]
    start, stop = (datetime.strptime(when, "%Y-%m-%d %H:%M:%S") for when in (first, last))
    return sum(int(count or 0) for *_, count in found[:end]), (stop - start).total_seconds()


def untuned_tasks(folder: Path, mod: tvm.IRModule, target: tvm.target.Target) -> int:
    """Return how many tasks of a model have no schedule in a database."""
    database = ms.database.JSONDatabase(work_dir=str(folder))
    tasks = ms.relax_integration.extract_tasks(mod, target, {})
    return sum(
        not database.has_workload(task.dispatched[0])
        or not database.get_top_k(database.commit_workload(task.dispatched[0]), 1)
        for task in tasks
    )


def take_turns(runs: dict[str, Any]) -> dict[str, float]:
    """Return the median milliseconds of each, measured in turns."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            run()
            for _ in range(_RUNS_PER_TURN):
                started = time.perf_counter()
                run()
                found[name].append((time.perf_counter() - started) * 1e3)
    return {name: median(times) for name, times in found.items()}


def compare(model: Path, folder: Path, records: Path, threads: int) -> dict[str, float]:
    """Compile the model with what each has found and return the median milliseconds."""
    use_threads(threads)
    target = tvm.target.Target(native_core().target_config(threads))
    with target, ms.database.JSONDatabase(work_dir=str(folder)):
        scheduled = relax.transform.MetaScheduleApplyDatabase()(fused(model, target))
    executable = tvm.compile(scheduled, target)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    tuned = tvm_blislike.compile(model, threads=threads, records=records)
    untuned = tvm_blislike.compile(model, threads=threads, records=RecordBook())
    inputs = random_inputs(tuned.inputs)
    tensors = [tvm.runtime.tensor(inputs[spec.name]) for spec in tuned.inputs]
    return take_turns(
        {
            "metaschedule": lambda: machine["main"](*tensors),
            "blislike tuned": lambda: tuned.run(inputs),
            "blislike untuned": lambda: untuned.run(inputs),
        }
    )


def report(options: argparse.Namespace, folder: Path, model: Path) -> dict[str, Any]:
    """Tune with both as far as asked for, compare the models and return all figures."""
    log, records = folder / "metaschedule.txt", folder / "records.jsonl"
    figures: dict[str, Any] = {"model": options.model, "threads": options.threads}
    if not options.resume:
        own = [sys.executable, __file__, "--tune-only", "-m", str(model), "--work-dir", str(folder)]
        own += ["-t", str(options.threads), "--trials-per-task", str(options.trials_per_task)]
        figures["metaschedule_s"] = run_apart(own, options.threads, options.time_limit, log)
    trials, seconds = progress_of(log)
    tasks = json.loads((folder / "tasks.json").read_text())
    figures |= {"trials": trials, "trials_s": seconds, "tasks": tasks}
    figures["wanted"] = tasks * options.trials_per_task
    if not records.exists():
        own = [sys.executable, "-m", "tvm_blislike", "tune", str(model), "--records", str(records)]
        command = [*own, "--threads", str(options.threads)]
        command += ["--budget", str(options.budget)] if options.budget else []
        own_log = folder / "blislike.txt"
        figures["blislike_s"] = run_apart(command, options.threads, None, own_log)
    if trials and not options.no_compare:
        target = tvm.target.Target(native_core().target_config(options.threads))
        figures["untuned_tasks"] = untuned_tasks(folder, fused(model, target), target)
        figures["ms"] = compare(model, folder, records, options.threads)
    return figures


def show(figures: dict[str, Any]) -> None:
    """Print the figures as text."""
    print(f"{figures['model']}, {figures['threads']} thread(s)")
    trials, wanted = figures["trials"], figures["wanted"]
    print(f"  MetaSchedule: {trials} of {wanted} trials, {figures['tasks']} tasks")
    if "metaschedule_s" in figures and trials:
        seconds, rate = figures["metaschedule_s"], trials / max(figures["trials_s"], 1.0)
        whole = max(seconds, wanted / rate)
        print(f"  MetaSchedule: {seconds:.0f} s at {rate:.2f} trials/s; all trials: {whole:.0f} s")
        if "blislike_s" in figures:
            ours = figures["blislike_s"]
            print(f"  tvm_blislike.tune: {ours:.0f} s, 1/{whole / ours:.0f} of that")
    for name, ms_ in figures.get("ms", {}).items():
        ratio = figures["ms"]["metaschedule"] / ms_
        print(f"  {name:16s} {ms_:8.2f} ms  {ratio:5.2f}x")
    if figures.get("untuned_tasks"):
        print(f"  {figures['untuned_tasks']} tasks of MetaSchedule have no schedule")


def main() -> None:
    """Tune and compare, or only tune with MetaSchedule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="resnet18", help="of the zoo, or an ONNX file")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--trials-per-task", type=int, default=64, metavar="N")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="of MetaSchedule")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="of tvm_blislike.tune")
    parser.add_argument("--work-dir", type=Path, help="keeps the database and the records")
    parser.add_argument("--resume", action="store_true", help="tune no further")
    parser.add_argument("--no-compare", action="store_true", help="leave the models unmeasured")
    parser.add_argument("--tune-only", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    # Ends with its processes, also where it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.work_dir or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        model = Path(options.model)
        model = model if model.suffix == ".onnx" else zoo.save(options.model, folder / "m.onnx")
        if options.tune_only:
            target = tvm.target.Target(native_core().target_config(options.threads))
            tune_with_metaschedule(model, folder, target, options.trials_per_task)
            return
        figures = report(options, folder, model)
    show(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
