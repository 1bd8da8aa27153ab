"""Processes as an executor: they stay, those that die or hang are replaced, and all end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import wait

import cloudpickle
import psutil
import pytest

from tvm_blislike.tuning import processes
from tvm_blislike.tuning.processes import Processes

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def _nothing() -> None:
    pass


def _slowly(number: int) -> tuple[int, int]:
    time.sleep(0.3)
    return number, os.getpid()


@pytest.fixture
def two() -> Iterator[Processes]:
    """Two of them, whose calls may take three seconds."""
    made = Processes(2, _nothing, _nothing, 3.0)
    yield made
    made.shutdown()


def test_calls_are_divided_and_the_processes_stay(two: Processes) -> None:
    first = [two.submit(_slowly, number) for number in range(6)]
    found = [future.result() for future in first]
    assert [number for number, _ in found] == list(range(6))
    pids = {pid for _, pid in found}
    assert len(pids) == 2 and os.getpid() not in pids
    assert {two.submit(_slowly, 0).result()[1] for _ in range(3)} <= pids


def test_what_dies_or_hangs_costs_the_call_alone(two: Processes) -> None:
    dead, late = two.submit(os._exit, 3), two.submit(time.sleep, 60)
    after = [two.submit(_slowly, number) for number in range(4)]
    with pytest.raises(ChildProcessError):
        dead.result()
    with pytest.raises(TimeoutError):
        late.result()
    assert [future.result()[0] for future in after] == list(range(4))
    with pytest.raises(ZeroDivisionError):
        two.submit(divmod, 1, 0).result()


def test_after_many_calls_another_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_USES", 3)
    one = Processes(1, _nothing, _nothing, 20.0)
    try:
        # The first call was the preparation.
        pids = [one.submit(os.getpid).result() for _ in range(8)]
    finally:
        one.shutdown()
    assert len(set(pids)) == 3
    assert len(set(pids[:2])) == len(set(pids[2:5])) == len(set(pids[5:])) == 1


def test_the_end_waits_for_no_call() -> None:
    made = Processes(1, _nothing, _nothing, 100.0)
    pid = made.submit(os.getpid).result()
    hanging, never = made.submit(time.sleep, 100), made.submit(os.getpid)
    wait([hanging], 0.3)
    started = time.monotonic()
    made.shutdown()
    assert time.monotonic() - started < 20
    assert never.cancelled() and isinstance(hanging.exception(), ChildProcessError)
    assert not psutil.pid_exists(pid)
