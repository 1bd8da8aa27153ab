"""The source archive holds what is needed to build, test and document the package."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

from imports import ROOT

BUILD = (
    "import sys, setuptools.build_meta as build\n"
    "print(build.build_sdist(sys.argv[1], {'--global-option': ['egg_info', '-e', sys.argv[2]]}))"
)


def test_it_holds_every_file_of_the_repository(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    wanted = {name for name in listed.stdout.splitlines() if name.endswith((".py", ".toml", ".md"))}
    command = [sys.executable, "-c", BUILD, str(tmp_path), str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        held = {name.partition("/")[2] for name in file.getnames()}
    assert "examples/zoo.py" in held and "tests/conftest.py" in held
    assert not wanted - held
