"""What a run through a Runner takes beyond its kernels, and what it allocates.

    python benchmarks/runner.py                       squeezenet1_1 at 64x64, 1 and 2 threads
    python benchmarks/runner.py -m mobilenet_v2 --image 96 -t 1

Three ways take turns, run by run. "run" is `runner.run()`; "calls" goes through the same table of
kernels by the compiled loop alone, as a program in C would; "idle" goes in that loop through a
table of as many kernels, which take the same arguments, check them as all of TVM's kernels do, and
compute nothing. The overhead is what Python adds, "run" less "calls", and what calling adds,
"idle". Medians, in microseconds; behind Python's part half the distance of the quartiles of what
hundreds of runs each, some seconds apart, say of it.

"malloc" counts what the C library has given out and not got back after ten thousand runs
(`mallinfo2`), "Python" the blocks of the interpreter's own allocator; "at most" is the most that
Python's objects took at a moment of a run (numbers, views), which is reused by the next.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median, quantiles
from typing import Any

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from zoo_runs import in_turns, timed, zoo

import tvm_blislike
from tvm_blislike.bench.turns import wait_until_idle
from tvm_blislike.passes.tir_pipeline import compiled
from tvm_blislike.tvm_seams.tapes import Recorder, Tape

_RUNS, _MANY = 300, 10_000


class MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


def bytes_in_use() -> int:
    """Return the bytes that `malloc` has given out, in all arenas and mappings."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = MallocInfo
    info = mallinfo()
    return info.uordblks + info.hblkhd


@cache
def idle_kernel(signature: tuple[Any, ...]) -> Any:
    """Return a kernel of these arguments, each None or a tensor's shape and type."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("idle")
        T.func_attr({"global_symbol": "idle"})
        for i, argument in enumerate(signature):
            if argument is None:
                T.arg(f"n{i}", T.int64())
            else:
                T.match_buffer(T.arg(f"t{i}", T.handle()), *argument)
        T.evaluate(0)
    target = tvm.target.Target(tvm_blislike.native_core().target_config(1))
    return compiled(tvm.IRModule({"idle": builder.get()}), target)["idle"]


def idle_tape(tape: Tape) -> Tape:
    """Return a tape whose kernels compute nothing."""
    recorder = Recorder()
    for _, arguments in tape.calls:
        signature = tuple(
            (tuple(map(int, a.shape)), str(a.dtype)) if hasattr(a, "shape") else None
            for a in arguments
        )
        recorder.calls.append((idle_kernel(signature), arguments))
    return Tape(recorder)


def turn(runs: Sequence[Callable[[], Any]]) -> list[float]:
    """Return the median microseconds of each function; they are called one after the other.

    Turns of a hundred runs each differ by more than what Python adds: that is 2 % of a run.
    """
    wait_until_idle()
    samples = [[1e6 * timed(run) for run in runs] for _ in range(_RUNS)]
    return [median(each) for each in zip(*samples, strict=True)]


def allocated(run: Callable[[], Any]) -> str:
    """Return what many runs leave, and the most that one takes."""

    def loop(times: int) -> None:
        for _ in range(times):
            run()

    loop(_RUNS)
    gc.collect()
    blocks, before = sys.getallocatedblocks(), bytes_in_use()
    loop(_MANY)
    given, kept = bytes_in_use() - before, sys.getallocatedblocks() - blocks
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    loop(1)
    most = tracemalloc.get_traced_memory()[1] - start
    tracemalloc.stop()
    return f"malloc {given} bytes  Python {kept} blocks  at most {most} bytes"


def line(name: str, image: int, threads: int, seconds: float) -> str:
    """Return a line of the table."""
    model = tvm_blislike.compile(zoo.build(name, image=image), threads=threads)
    runner = model.runner()
    runner.run()
    runner.run()
    tape = runner._recorded.runs.replays[0].tape
    loops = (runner.run, tape.run, idle_tape(tape).run)
    (turns,) = in_turns([lambda: turn(loops)], seconds, 9)
    run, calls, idle = map(median, zip(*turns, strict=True))
    low, python, high = quantiles([one - other for one, other, _ in turns], n=4)
    return (
        f"{name:14s} {image}x{image} {threads}t  run {run:.1f}  calls {calls:.1f}"
        f"  idle {idle:.1f} ({len(tape.calls)} calls)"
        f"  overhead {python:.1f}±{(high - low) / 2:.1f} + {idle:.1f} = {python + idle:.1f} us\n"
        f"    {allocated(runner.run)}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="squeezenet1_1", choices=zoo.names())
    parser.add_argument("--image", type=int, default=64, metavar="PIXELS")
    parser.add_argument("-t", "--threads", action="append", type=int, metavar="N")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each line")
    options = parser.parse_args(arguments)
    for threads in options.threads or (1, 2):
        print(line(options.model, options.image, threads, options.seconds), flush=True)


if __name__ == "__main__":
    main()
