"""What becomes of models in forked processes; prints one JSON object, scenario to exit code.

    python forking.py [SCENARIO...]

Run by `test_fork.py` in a process of its own, since forking one of pytest's would copy its state.
A child that hangs is ended by SIGALRM, which counts as exit code -14.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable

import numpy as np
from small_models import small_network, two_convolutions

import tvm_blislike
from tvm_blislike.errors import UsageError
from tvm_blislike.onnx.inputs import random_inputs
from tvm_blislike.runtime import instruments
from tvm_blislike.runtime.threads import use_threads

# Idle workers of TVM's pool have been asleep for long.
_ASLEEP_SECONDS = 1.5
_MOST_SECONDS = 60

model = tvm_blislike.compile(two_convolutions(), threads=2)
inputs = random_inputs(model.inputs)
expected = model.run(inputs)["out"]


def runs_right() -> bool:
    """Run the model and compare."""
    return np.array_equal(model.run(inputs)["out"], expected)


def forked(function: Callable[[], bool]) -> int:
    """Call a function in a forked process, which then ends as any Python program does.

    With workers that cannot be replaced it ends as processes of multiprocessing do.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(_MOST_SECONDS)
        leave = os._exit if os.environ.get("TVM_THREAD_POOL_SPIN_COUNT") == "0" else sys.exit
        leave(0 if function() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_in_threads() -> bool:
    """Run the model in new threads, which may lie in memory where the lost workers lay."""
    right: list[bool] = []
    threads = [threading.Thread(target=lambda: right.append(runs_right())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return right == [True] * 3 and runs_right()


def compile_and_run() -> bool:
    fresh = tvm_blislike.compile(two_convolutions(), threads=2)
    return np.array_equal(fresh.run(inputs)["out"], expected)


def fork_again() -> bool:
    return runs_right() and forked(runs_right) == 0


def all_threads_are_used() -> bool:
    """Whether as many threads are used as in the parent, or a warning says why not."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        used = use_threads(2)
    told = [str(item.message) for item in caught]
    return used == used_here or (used == 1 and "forked" in "".join(told))


def process_of_multiprocessing() -> int:
    context = multiprocessing.get_context("fork")
    process = context.Process(target=lambda: sys.exit(0 if runs_right() else 1))
    process.start()
    process.join(_MOST_SECONDS)
    return -1 if process.exitcode is None else process.exitcode


def while_another_thread_compiles() -> int:
    """The child may run models; to compile there is refused."""
    inside, over = threading.Event(), threading.Event()

    def override(_workload: object) -> None:
        inside.set()
        over.wait()

    def is_refused() -> bool:
        try:
            tvm_blislike.compile(small_network(), threads=1)
        except UsageError as error:
            return "forked while another thread was compiling" in str(error) and runs_right()
        return False

    arguments = {"threads": 1, "override": override}
    thread = threading.Thread(
        target=tvm_blislike.compile, args=(small_network(),), kwargs=arguments
    )
    thread.start()
    inside.wait()
    code = forked(is_refused)
    over.set()
    thread.join()
    return code


def while_another_thread_runs() -> int:
    """The same model, whose lock that thread holds."""
    inside, over = threading.Event(), threading.Event()

    class Stop(instruments.KernelClock):
        def __call__(self, *call: object) -> int:
            inside.set()
            over.wait()
            return super().__call__(*call)

    instruments.KernelClock, clock = Stop, instruments.KernelClock
    thread = threading.Thread(target=model.profile, args=(inputs,))
    thread.start()
    inside.wait()
    code = forked(runs_right)
    over.set()
    thread.join()
    instruments.KernelClock = clock
    return code


used_here = use_threads(2)
# In this order: the first one forks while the workers still spin.
SCENARIOS: dict[str, Callable[[], int]] = {
    "run": lambda: forked(runs_right),
    "exit_when_workers_slept": lambda: time.sleep(_ASLEEP_SECONDS) or forked(lambda: True),
    "threads_then_run": lambda: forked(run_in_threads),
    "use_all_threads": lambda: forked(all_threads_are_used),
    "compile": lambda: forked(compile_and_run),
    "fork_again": lambda: forked(fork_again),
    "multiprocessing": process_of_multiprocessing,
    "while_another_thread_compiles": while_another_thread_compiles,
    "while_another_thread_runs": while_another_thread_runs,
    "run_in_the_parent": lambda: not (runs_right() and use_threads(2) == used_here),
}

if __name__ == "__main__":
    wanted = sys.argv[1:] or SCENARIOS
    print(json.dumps({name: int(SCENARIOS[name]()) for name in wanted}))
