"""Work done by copies of a process: the same results, whatever becomes of the copies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from tvm_blislike import Conv2dWorkload, Core, GemmWorkload
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.copies import in_copies

_HERE = os.getpid()
forks = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")


def _slowly(item: int) -> tuple[int, int]:
    time.sleep(0.05)
    return item * item, os.getpid()


@pytest.fixture(autouse=True)
def _nobody_is_left() -> object:
    before = psutil.Process().children()
    yield
    assert psutil.Process().children() == before


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_results_are_in_the_order_of_the_items(processes: int, count: int) -> None:
    found = in_copies(lambda item: item * item, range(count), processes)
    assert found == [item * item for item in range(count)]


@forks
def test_copies_do_a_part_of_the_work() -> None:
    found = in_copies(_slowly, range(9), 3)
    assert [square for square, _ in found] == [item * item for item in range(9)]
    assert len({pid for _, pid in found}) == 3
    assert [pid for _, pid in found[::3]] == [os.getpid()] * 3


def _fail(item: int) -> tuple[int, int]:
    if os.getpid() != _HERE:
        raise ValueError("only here")
    return item, os.getpid()


def _die(item: int) -> tuple[int, int]:
    if os.getpid() != _HERE:
        os._exit(3)
    return item, os.getpid()


def _hang(item: int) -> tuple[int, int]:
    if os.getpid() != _HERE:
        signal.pause()
    return item, os.getpid()


def _send_what_cannot_be_sent(item: int) -> object:
    return (item, os.getpid()) if os.getpid() == _HERE else lambda: item


@forks
@pytest.mark.parametrize("work", [_fail, _die, _hang, _send_what_cannot_be_sent])
def test_what_copies_do_not_send_is_done_here(work: Callable[[int], object]) -> None:
    global _HERE
    _HERE = os.getpid()
    assert in_copies(work, range(6), 2) == [(item, _HERE) for item in range(6)]


def test_where_no_process_can_be_made_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refuse)
    assert {pid for _, pid in in_copies(_slowly, range(4), 2)} == {os.getpid()}


def test_what_fails_here_is_raised() -> None:
    def fail(item: int) -> int:
        raise KeyError(item)

    with pytest.raises(KeyError):
        in_copies(fail, range(4), 2)


@forks
def test_signals_are_as_before() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    in_copies(_slowly, range(4), 2)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_choices_are_those_of_one_process() -> None:
    """Two algorithms for the products, more of the convolutions: some apply, some do not."""
    core = Core.named("zen4")
    workloads = [
        Conv2dWorkload(1, 16, 14, 14, 32, 3, 3, padding=(1, 1, 1, 1)),
        GemmWorkload(8, 64, 32),
        Conv2dWorkload(1, 32, 7, 7, 32, 1, 1),
        Conv2dWorkload(1, 16, 14, 14, 16, 3, 3, groups=16),
    ]
    one, several = Strategy(core, 1), Strategy(core, 1)
    several.estimate_all(workloads)
    for workload in workloads:
        assert several.choose(workload) == one.choose(workload)
        assert several.options(workload) == one.options(workload)


@forks
def test_a_copy_ends_with_the_process_that_was_killed() -> None:
    # Results that fill a pipe: whoever writes them waits until somebody reads.
    script = """
import os, signal, sys, time
from tvm_blislike.copies import in_copies
own = os.getpid()
def work(item):
    if os.getpid() != own:
        print(os.getpid(), flush=True)
        return bytes(1 << 20)
    time.sleep(60)
in_copies(work, range(4), 2)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    copy = psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.wait()
    _, left = psutil.wait_procs([copy], timeout=20)
    # Where nobody asks how it ended it stays listed.
    left = [each for each in left if each.status() != psutil.STATUS_ZOMBIE]
    for each in left:
        each.kill()
    process.stdout.close()
    assert not left
