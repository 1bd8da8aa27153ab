"""No test reads or writes the records and the kept models of the user who runs it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from effort import EFFORT
from hypothesis import settings

# `python -m pytest` finds the folder tvm_blislike first, which is the package only in part.
if importlib.util.find_spec("tvm_blislike.schedules") is None:
    sys.exit(
        "this checkout is not installed: run `python dev.py test`, or `pip install -e .[test]` "
        "before; to test an installed wheel, run `pytest` instead of `python -m pytest`"
    )

# What is tested does not depend on how fast this machine is at the moment. Test modules ask for the
# core while they are collected, so no fixture would come in time.
os.environ["TVM_BLISLIKE_PROBE"] = "0"
# Nor on what was compiled before.
os.environ["TVM_BLISLIKE_CACHE"] = "0"


def _jobs() -> int:
    from tvm_blislike.hardware.cpus import usable_cpus

    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return max(1, len(usable_cpus()) // processes)


def _parse_faster() -> None:
    from tvm_blislike.tvm_seams.scripts import know_importers

    know_importers()


# Many tests write TVMScript.
_parse_faster()
# Every process of the suite has its share of the CPUs. Where each took all of two CPUs, to compile
# and to wait for the next call of a kernel, both together took 1.6 times the time.
os.environ.setdefault("TVM_BLISLIKE_JOBS", str(_jobs()))
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "1000")
# Nor on chance: who changes something is told what the change broke. With more effort other
# examples are tried each time, to find what was always broken.
settings.register_profile("tests", derandomize=EFFORT == 1)
settings.load_profile("tests")


@pytest.fixture(autouse=True, scope="session")
def no_records_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Name a default file of records that does not exist."""
    path = tmp_path_factory.mktemp("records") / "none.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_BLISLIKE_RECORDS", str(path))
        yield path
