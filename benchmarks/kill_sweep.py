"""Kill -9 at random moments of a real sweep: no record is lost, and every sweep can be resumed.

    python benchmarks/kill_sweep.py                      # benchmarks/results/kill_sweep.txt
    python benchmarks/kill_sweep.py --kills 12 --seed 3 --seconds 120

A small model is tuned by the command line in a process group of its own, which is killed at a
moment drawn uniformly from the life of an undisturbed sweep. The same command then goes on, and is
killed in turn, until it is faster than its killer; the next one starts without records. Checked:
every line that was whole when the group was killed is there ever after, unchanged; only a last line
may be torn; no sweep fails by itself; one that ends has every candidate on record exactly once; no
process and, in the end, no temporary file is left.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import psutil
from onnx import helper, numpy_helper

from tvm_blislike.records import files

# Layers of the model: matrix products of 32 rows.
_WIDTHS = (48, 64, 96)
_PER_LAYER = 8


class LostError(Exception):
    """A check failed; the message says which."""


@dataclass
class Tally:
    """What happened.

    Parameters
    ----------
    moments : list of float
        Seconds after the start of a sweep at which it was killed.
    kept : int
        Records that sweeps wrote before they were killed.
    torn : int
        Lines that a kill tore.
    completed : int
        Sweeps that ended.
    """

    moments: list[float] = field(default_factory=list)
    kept: int = 0
    torn: int = 0
    completed: int = 0


class Victim:
    """A sweep in a folder of its own.

    Parameters
    ----------
    folder : Path
        Holds the model, the records and the temporary files.
    """

    def __init__(self, folder: Path) -> None:
        self.model, self.records = folder / "chain.onnx", folder / "records.jsonl"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._torn = 0
        _write_model(self.model)

    def start(self) -> subprocess.Popen[str]:
        """Start the command in a process group of its own."""
        command = [sys.executable, "-m", "tvm_blislike", "tune", str(self.model)]
        command += ["--threads", "1", "--cache", "warm", "--records", str(self.records)]
        return subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(self.temporary)},
        )

    def run(self, moment: float, tally: Tally) -> float:
        """Let a sweep run until a moment, kill it if it still does, and look at what it left.

        Returns the seconds it ran.
        """
        known = self.whole()
        process = self.start()
        started = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment if moment < math.inf else None)
        ended = process.poll()
        seconds = time.monotonic() - started
        if ended is None:
            tally.moments.append(seconds)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        _, messages = process.communicate()
        _check_nothing_runs(process.pid)
        whole = self.whole()
        if whole[: len(known)] != known:
            raise LostError("records that were written are gone or changed")
        if ended is None:
            self._look(len(whole) - len(known), tally)
        elif ended == 0:
            self._end(tally)
        else:
            raise LostError(f"a sweep ended with exit code {ended}: {messages}")
        return seconds

    def whole(self) -> list[bytes]:
        """Return the lines of the file that end with a newline."""
        return self._content().split(b"\n")[:-1]

    def _content(self) -> bytes:
        return self.records.read_bytes() if self.records.exists() else b""

    def _look(self, fresh: int, tally: Tally) -> None:
        """Check what a killed sweep left; what earlier kills tore is no record any more."""
        torn = bool(self._content().split(b"\n")[-1])
        bad = len(files.read(self.records)[1]) if self.records.exists() else 0
        self._torn += torn
        if bad > self._torn:
            raise LostError(f"{bad} lines are damaged, {self._torn} were torn")
        tally.torn += torn
        tally.kept += fresh

    def _end(self, tally: Tally) -> None:
        """Check what a sweep that ended left, and start anew."""
        good, bad = files.read(self.records)
        if len(bad) > self._torn:
            raise LostError(f"damaged: {'; '.join(map(str, bad))}")
        measured = [r for r in good if r.context == "warm" and r.status != "dropped"]
        alone = [(r.workload, r.config) for r in measured]
        counts = collections.Counter(workload for workload, _ in alone)
        if len(set(alone)) != len(alone):
            raise LostError("a candidate was measured twice")
        if sorted(counts.values()) != [_PER_LAYER] * (len(_WIDTHS) - 1):
            raise LostError(f"not every layer is complete: {counts}")
        if left := sorted(path.name for path in self.temporary.iterdir()):
            raise LostError(f"temporary files are left: {left}")
        self.records.unlink()
        self._torn = 0
        tally.completed += 1


def _write_model(path: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = list(itertools.pairwise(_WIDTHS))
    tensors = [
        numpy_helper.from_array(rng.standard_normal(shape).astype("float32"), f"w{k}")
        for k, shape in enumerate(shapes)
    ]
    nodes = [
        helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"x{k + 1}"]) for k in range(len(shapes))
    ]
    values = [
        helper.make_tensor_value_info(f"x{k}", onnx.TensorProto.FLOAT, [32, _WIDTHS[k]])
        for k in (0, len(shapes))
    ]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], tensors)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def _check_nothing_runs(group: int) -> None:
    """Check that no process of a group is left, after a moment for the system to notice."""
    end = time.monotonic() + 10
    while left := list(_processes(group)):
        if time.monotonic() > end:
            raise LostError(f"processes are left: {left}")
        time.sleep(0.05)


def _processes(group: int) -> Iterator[int]:
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                yield process.pid


def main() -> None:
    """Kill sweeps and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="kill nothing after them")
    arguments = parser.parse_args()
    rng, tally = random.Random(arguments.seed), Tally()
    with tempfile.TemporaryDirectory() as folder:
        victim = Victim(Path(folder))
        try:
            end = time.monotonic() + arguments.seconds
            life = victim.run(math.inf, Tally())
            while len(tally.moments) < arguments.kills and time.monotonic() < end:
                fresh, completed = not victim.whole(), tally.completed
                seconds = victim.run(rng.uniform(0, life), tally)
                if fresh and tally.completed > completed:
                    # The machine became faster.
                    life = seconds
            victim.run(math.inf, tally)
        except LostError as error:
            sys.exit(f"failed after {len(tally.moments)} kills: {error}")
    print(_summary(tally, life))


def _summary(tally: Tally, life: float) -> str:
    return (
        f"{len(tally.moments)} kills, {min(tally.moments):.2f} to {max(tally.moments):.2f} s after "
        f"the start of sweeps of {life:.1f} s: {tally.kept} records were written by sweeps that "
        f"were killed, 0 lost, {tally.torn} torn; {tally.completed} sweeps went on to their end, 0 "
        "failed; no process and no temporary file left"
    )


if __name__ == "__main__":
    main()
