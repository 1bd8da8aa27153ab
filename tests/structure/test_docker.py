"""What can be told of the image for build hosts without a daemon: no image is built here."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from imports import ROOT

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

FILE = ROOT / "docker" / "Dockerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = "import sys, setuptools.build_meta as build; print(build.build_wheel(sys.argv[1]))"


def _steps() -> list[tuple[str, str]]:
    """Return the instructions with their arguments."""
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line]


def _values(name: str) -> list[str]:
    return [arguments for instruction, arguments in _steps() if instruction == name]


def _copied() -> list[tuple[Path, str]]:
    """Return what is copied, and the folder below /source it goes to."""
    found = []
    for arguments in _values("COPY"):
        *sources, place = arguments.split()
        inner = Path(place).relative_to("/source")
        found += [(ROOT / s, inner / (s if place.endswith("/") else "")) for s in sources]
    return found


def _ignored(path: Path) -> bool:
    rules = Path(f"{FILE}.dockerignore").read_text().split()
    return any(fnmatch.fnmatch(path.name, rule.removeprefix("**/")) for rule in rules)


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    for source, _ in _copied():
        assert source.exists() and not _ignored(source), source


@pytest.mark.filterwarnings("ignore")
def test_what_is_copied_installs(tmp_path: Path) -> None:
    """The package is built from it alone, and is complete: as a wheel of the whole checkout."""
    ignore = lambda folder, names: [n for n in names if _ignored(Path(n))]  # noqa: E731
    for source, place in _copied():
        if source.is_dir():
            shutil.copytree(source, tmp_path / "source" / place, ignore=ignore)
        else:
            (tmp_path / "source").mkdir(exist_ok=True)
            shutil.copyfile(source, tmp_path / "source" / place)
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path / "source", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    tops = tuple(f"{source.name}/" for source, _ in _copied() if source.is_dir())
    wanted = {name for name in listed.splitlines() if name.startswith(tops)}
    inside = {n if n.startswith("tvm_blislike/") else f"tvm_blislike/{n}" for n in wanted}
    assert "tvm_blislike/hardware/cortex-a72.toml" in held
    assert not {n for n in inside - held if not n.endswith((".md", ".gitignore"))}


def test_the_extras_exist_and_can_cross_compile() -> None:
    (install,) = [run for run in _values("RUN") if run.startswith("pip install")]
    extras = re.search(r"'/source\[(.*?)\]'", install)[1].split(",")
    assert set(extras) <= PROJECT["optional-dependencies"].keys()
    assert {"link", "rpc"} <= set(extras)


def test_its_python_is_one_of_the_project() -> None:
    (image,) = _values("FROM")
    version = re.fullmatch(r"python:(3\.\d+)-slim", image)[1]
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_it_runs_the_command_as_an_ordinary_user_in_a_volume() -> None:
    names = [instruction for instruction, _ in _steps()]
    (entry,) = _values("ENTRYPOINT")
    assert json.loads(entry)[0] in PROJECT["scripts"]
    (user,) = _values("USER")
    assert user not in ("root", "0") and f" {user}" in " ".join(_values("RUN"))
    assert names.index("USER") > max(i for i, name in enumerate(names) if name == "RUN")
    assert _values("WORKDIR") == _values("VOLUME")


@pytest.mark.skipif(
    shutil.which("docker") is None or not os.path.exists("/var/run/docker.sock"),
    reason="needs a Docker daemon",
)
def test_docker_reads_it() -> None:
    done = subprocess.run(
        ["docker", "build", "--check", "-f", str(FILE), str(ROOT)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
