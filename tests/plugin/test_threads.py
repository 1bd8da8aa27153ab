"""Threads of TVM's pool: as many as asked for, changed at will, never silently fewer."""

import os
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import tvm
from tvm import te

from tvm_blislike.bench.turns import wait_until_idle
from tvm_blislike.hardware.cpus import Cpu, usable_cpus
from tvm_blislike.runtime import threads as pools
from tvm_blislike.runtime.threads import default_threads, use_threads


def _parallel_kernel() -> tuple[tvm.runtime.Executable, list]:
    a = te.placeholder((64, 20000), name="a")
    b = te.compute(a.shape, lambda i, j: te.sin(a[i, j]) * te.cos(a[i, j]), name="b")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, b]))
    schedule.parallel(schedule.get_loops(schedule.get_sblock("b"))[0])
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    values = [tvm.runtime.tensor(np.ones((64, 20000), "float32")) for _ in range(2)]
    return tvm.compile(tvm.IRModule({"main": schedule.mod["main"]}), target), values


def _used() -> int:
    return tvm.get_global_func("runtime.NumThreads")()


def _in_new_thread(function: object) -> None:
    """Run in a thread of its own, which has a pool of its own; raise what it raises."""
    failures = []

    def guarded() -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def test_count_can_go_up_and_down() -> None:
    usable = len(usable_cpus())

    def check() -> None:
        for threads in (1, usable, 1, usable):
            assert use_threads(threads) == threads
            assert _used() == threads

    _in_new_thread(check)


def test_one_thread_uses_one_cpu() -> None:
    kernel, values = _parallel_kernel()

    def cpus() -> float:
        wait_until_idle()  # new workers, and those of other engines, spin before they sleep
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(20):
            kernel["main"](*values)
        return (time.process_time() - cpu) / (time.perf_counter() - wall)

    def check() -> None:
        use_threads(1)
        kernel["main"](*values)
        # On a busy machine workers that spin look idle, as they yield; they end, a second one not.
        assert min(cpus() for _ in range(5)) <= 1.2

    _in_new_thread(check)


def test_fewer_threads_than_asked_for_is_a_warning() -> None:
    usable = len(usable_cpus())

    def check() -> None:
        with pytest.warns(RuntimeWarning, match=f"{usable} instead of {usable + 1} threads"):
            assert use_threads(usable + 1) == usable

    _in_new_thread(check)


def test_affinity_of_the_caller_is_unchanged() -> None:
    before = usable_cpus()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        use_threads(1)
    assert usable_cpus() == before


@pytest.mark.skipif(len(usable_cpus()) < 2, reason="there is no CPU beside that of a worker")
def test_a_run_begins_on_a_cpu_of_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or both would share it, next to an idle one: Linux does not part them."""
    sets, set_affinity = [], os.sched_setaffinity

    def seen(pid: int, cpus: set[int]) -> None:
        sets.append(set(cpus))
        set_affinity(pid, cpus)

    def check() -> None:
        usable = set(usable_cpus())
        use_threads(2)
        worker = pools.cpus_by_use()[1]
        set_affinity(0, {worker})
        set_affinity(0, usable)
        with monkeypatch.context() as patch:
            patch.setattr(os, "sched_setaffinity", seen)
            patch.setattr(pools, "_current_cpu", lambda: worker)
            use_threads(2)
            assert sets == [usable - {worker}, usable]
            patch.setattr(pools, "_current_cpu", lambda: min(usable - {worker}))
            use_threads(2)
        assert len(sets) == 2
        assert {*usable_cpus()} == usable
        set_affinity(0, {worker})
        # Nowhere else to go.
        use_threads(2)
        assert {*usable_cpus()} == {worker}
        set_affinity(0, usable)

    _in_new_thread(check)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_the_cpu_of_the_calling_thread_is_one_of_those_it_may_use() -> None:
    assert pools._current_cpu() in usable_cpus()


def test_less_than_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        use_threads(0)


def test_default_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    assert default_threads() == 3
    monkeypatch.setenv("TVM_NUM_THREADS", "many")
    assert 1 <= default_threads() <= len(usable_cpus())


def test_threads_run_on_the_kind_of_core_that_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four Cortex-A55 and four Cortex-A76: as many threads as big cores, and on these."""
    kinds = [*["0x41:0xd05"] * 4, *["0x41:0xd0b"] * 4]
    unlike = tuple(Cpu(number, key) for number, key in enumerate(kinds))
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    monkeypatch.setattr(pools, "_cpus", lambda usable: unlike)
    monkeypatch.setattr(pools.psutil, "cpu_count", lambda logical: 8)
    assert pools.cpus_by_use() == [4, 5, 6, 7, 0, 1, 2, 3]
    assert default_threads() == 4


def test_workers_get_a_core_each_before_any_second_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = tuple(Cpu(n, "GenuineIntel:6:0x8f", f"{n - n % 2}-{n - n % 2 + 1}") for n in range(4))
    monkeypatch.setattr(pools, "_cpus", lambda usable: pairs)
    assert pools.cpus_by_use() == [0, 2, 1, 3]
