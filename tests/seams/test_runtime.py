"""Threads and caches of TVM's runtime; workspaces are in test_workspaces.py."""

from __future__ import annotations

import os
import sys
import threading

import numpy as np
import pytest
import tvm
from small_kernels import TARGET, doubled, executable
from tvm import relax

from tvm_blislike.hardware.cpus import usable_cpus
from tvm_blislike.runtime.instruments import attached
from tvm_blislike.tvm_seams import runtime

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def in_a_thread(work) -> object:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_a_pool_uses_as_many_workers_as_asked_for() -> None:
    cpus = usable_cpus()
    counts = [1, len(cpus)]
    assert in_a_thread(lambda: [runtime.configure_pool(n, cpus) for n in [*counts, 1]]) == [
        *counts,
        1,
    ]


def test_each_worker_keeps_to_its_cpu() -> None:
    cpus = usable_cpus()

    def work() -> list[set[int]]:
        before = set(os.listdir("/proc/self/task"))
        runtime.configure_pool(len(cpus), cpus)
        runtime.use_workers()
        started = sorted(set(os.listdir("/proc/self/task")) - before, key=int)
        return [os.sched_getaffinity(int(task)) for task in started]

    found = in_a_thread(work)
    assert sorted(map(sorted, found)) == [[cpu] for cpu in cpus[1:]], "workers roam"


def test_workers_can_be_replaced() -> None:
    cpus = usable_cpus()
    library = tvm.compile(doubled(parallel=True), TARGET)

    def work() -> np.ndarray:
        runtime.configure_pool(len(cpus), cpus)
        runtime.use_workers()
        runtime.replace_workers()
        runtime.use_workers()
        result = tvm.runtime.empty((64, 64))
        library["doubled"](tvm.runtime.tensor(np.ones((64, 64), "float32")), result)
        return result.numpy()

    np.testing.assert_array_equal(in_a_thread(work), np.full((64, 64), 2, "float32"))


def test_a_tensor_leaves_the_caches_unharmed() -> None:
    tensor = tvm.runtime.tensor(np.arange(5000, dtype="float32"))
    runtime.evictor()(tensor)
    np.testing.assert_array_equal(tensor.numpy(), np.arange(5000))


def test_instruments_tell_kernels_from_what_the_machine_does() -> None:
    names: list[str] = []

    def note(_func: object, name: str, *_: object) -> int:
        names.append(str(name))
        return 0

    machine = relax.VirtualMachine(executable()[1], tvm.cpu())
    with attached(machine, note):
        machine["main"](tvm.runtime.tensor(np.ones((64, 64), "float32")))
    assert {name for name in names if runtime.is_kernel(name)} == {"add"}
    assert len(set(names)) > 1
