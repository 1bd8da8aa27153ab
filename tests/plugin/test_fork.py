"""Models in forked processes: right results, no deadlock, a clean end."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).with_name("forking.py")
_SCENARIOS = (
    "run",
    "exit_when_workers_slept",
    "threads_then_run",
    "use_all_threads",
    "compile",
    "fork_again",
    "multiprocessing",
    "while_another_thread_compiles",
    "while_another_thread_runs",
    "run_in_the_parent",
)
# Of those whose workers are asleep when they fork.
_SLEEPING = ("run", "use_all_threads", "compile", "multiprocessing", "run_in_the_parent")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")


@functools.cache
def _codes(spins: str, *scenarios: str) -> dict[str, int]:
    """Return the exit code of each scenario."""
    environment = {**os.environ, "TVM_THREAD_POOL_SPIN_COUNT": spins}
    command = [sys.executable, "-W", "ignore", str(_SCRIPT), *scenarios]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("scenario", _SCENARIOS)
def test_forked_process(scenario: str) -> None:
    assert _codes("100000", *_SCENARIOS)[scenario] == 0


@pytest.mark.parametrize("scenario", _SLEEPING)
def test_forked_process_whose_workers_cannot_be_replaced(scenario: str) -> None:
    """One thread does all; a warning says so."""
    assert _codes("0", *_SLEEPING)[scenario] == 0
