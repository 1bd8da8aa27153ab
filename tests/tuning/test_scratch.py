"""Temporary folders of processes that live, and of those that were killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tvm_blislike.tuning.scratch import Scratch, remove_orphans

_HOLDER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from tvm_blislike.tuning.scratch import Scratch
held = Scratch()
print(held.make("library"), flush=True)
time.sleep(1000)
"""


def test_temporary_folders_of_killed_sweeps_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    foreign = tmp_path / "tvm-blislike-without-lock"
    foreign.mkdir()
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        library = Path(holder.stdout.readline().strip())
        mine = Scratch()
        remove_orphans()
        in_use = [library.is_dir(), mine.path.is_dir()]
        holder.kill()
    assert in_use == [True, True]
    remove_orphans()
    assert set(tmp_path.iterdir()) == {mine.path, foreign}
    mine.close()
    assert set(tmp_path.iterdir()) == {foreign}
