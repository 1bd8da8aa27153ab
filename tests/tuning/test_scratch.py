"""Temporary folders of processes that live, and of those that were killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tvm_blislike.tuning.scratch import Scratch

_HOLDER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from tvm_blislike.tuning.scratch import Scratch
held = Scratch()
print(held.make("library"), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, empty."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def _opened_and_closed() -> Path:
    scratch = Scratch()
    scratch.close()
    return scratch.path


def test_temporary_folders_of_killed_sweeps_are_removed(temporary: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(temporary)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        library = Path(holder.stdout.readline().strip())
        mine = Scratch()
        _opened_and_closed()
        in_use = [library.is_dir(), mine.path.is_dir()]
        holder.kill()
    assert in_use == [True, True]
    _opened_and_closed()
    assert list(mine.path.parent.iterdir()) == [mine.path]
    mine.close()
    assert not list(temporary.iterdir())


@pytest.fixture
def orphan(temporary: Path) -> Path:
    """The folder of a sweep that was killed."""
    scratch = Scratch()
    dead = scratch.path.with_name("sweep-dead")
    shutil.copytree(scratch.path, dead)
    scratch.close()
    return dead


def test_nothing_else_is_removed(orphan: Path, temporary: Path) -> None:
    root = orphan.parent
    names = ["new-tvm-blislike-x", "tvm-blislike-x", "my-tvm-blislike-notes", f"{root.name}/mine"]
    for name in names:
        shutil.copytree(orphan, temporary / name)
        os.utime(temporary / name, (0, 0))
    for number, marker in enumerate(["", "my notes", None]):
        shutil.copytree(orphan, root / f"sweep-{number}")
        (root / f"sweep-{number}" / "README").unlink()
        if marker is not None:
            (root / f"sweep-{number}" / "README").write_text(marker)
    (root / "sweep-linked").symlink_to(temporary / "tvm-blislike-x")
    before = set(temporary.rglob("*"))
    _opened_and_closed()
    gone = {orphan, orphan / "README", orphan / "lock"}
    assert before - set(temporary.rglob("*")) == gone


def _open_to_others(root: Path) -> None:
    root.chmod(0o755)


def _linked(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    root.symlink_to("elsewhere")


def _a_file(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    root.write_text("mine")


@pytest.mark.parametrize(
    "change",
    [_open_to_others, _linked, _a_file],
    ids=lambda f: f.__name__,
)
def test_a_folder_of_that_name_which_is_not_ours_is_left_alone(
    change: Callable[[Path], None], orphan: Path, temporary: Path
) -> None:
    change(orphan.parent)
    before = sorted(temporary.rglob("*"))
    scratch = Scratch()
    assert scratch.path.parent == temporary
    scratch.close()
    assert sorted(temporary.rglob("*")) == before
