"""Every command and every piece of Python in the documents is run, on a tiny model."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
from fences import PAGES, ROOT, Block, blocks_of, lines_of
from small_models import documented_network
from typer.testing import CliRunner

from tvm_blislike.cli.app import app

# What a command of a page may be given in addition, so that it ends soon.
SHORTER = {
    "tune": ["--trials", "2"],
    "bench": ["--repeat", "2"],
    "report": ["--no-measure"],
    "probe": ["--quick"],
}
PROGRAMS = {"tvm-blislike", "pip", "python", "python3"}
RUN = {
    page: [block for block in blocks_of(page) if block.language in ("sh", "python", "")]
    for page in PAGES
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages name: models, samples, the examples."""
    for name in ("model", "a", "b"):
        onnx.save(documented_network(), tmp_path / f"{name}.onnx")
    onnx.save(documented_network("batch"), tmp_path / "open.onnx")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "samples.npz", input=rng.random((8, 3, 12, 12), dtype=np.float32))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TVM_BLISLIKE_RECORDS", str(tmp_path / "records.jsonl"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


@pytest.mark.parametrize("page", [p for p in PAGES if RUN[p]], ids=lambda p: p.stem)
def test_blocks_of_a_page(page: Path, here: Path) -> None:
    names: dict[str, object] = {}
    for block in RUN[page]:
        if block.remark:
            continue
        assert block.language, f"a fence without a language: {block.text}"
        if block.language == "python":
            exec(compile(_with_module(block, names), str(page), "exec"), names)
        else:
            for line in lines_of(block):
                _run(line, here)


def test_what_is_not_run_says_why() -> None:
    remarks = [block.remark for page in PAGES for block in RUN[page] if block.remark]
    assert remarks
    for remark in remarks:
        kind, _, text = remark.partition("not run: ")
        if text:
            assert len(text) > 20
        else:
            file = kind.removeprefix("run by ").split(",")[0]
            assert (ROOT / file).is_file(), file


def test_other_blocks_hold_no_commands() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            if block.language not in ("sh", "python", "") and not block.remark:
                first = {line.split()[0] for line in block.text.splitlines() if line.strip()}
                assert not first & PROGRAMS, (page, block.text)


def _with_module(block: Block, names: dict[str, object]) -> str:
    """Provide the module that pages of pipelines take for granted."""
    if "tvm.compile(module" in block.text and "module" not in names:
        from tvm_blislike.onnx import frontend

        names["module"] = frontend.load(documented_network()).module
    return block.text


def _run(line: str, here: Path) -> None:
    program, *arguments = shlex.split(line)
    if program == "tvm-blislike":
        extra = SHORTER.get(arguments[0], [])
        arguments += [] if extra and extra[0] in arguments else extra
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, f"{line}: {done.output}"
    elif program == "pip":
        _check_extras(arguments)
    elif program.startswith("python") and arguments[0] == "dev.py":
        # It runs all tests, and installs: `tests/structure` has its own test of it.
        assert f'"{arguments[1]}": {arguments[1]}' in (ROOT / "dev.py").read_text()
    elif program.startswith("python") and arguments[0].endswith(".py"):
        _run_script(arguments)
    else:
        command = line.replace("python", sys.executable, 1)
        subprocess.run(command, shell=True, cwd=here, check=True, capture_output=True)


def _run_script(arguments: list[str]) -> None:
    """Run it in a process of its own: examples register algorithms, and those stay."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "examples")}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )
    assert not done.returncode, f"{arguments}: {done.stdout}{done.stderr}"


def _check_extras(arguments: list[str]) -> None:
    """Nothing is installed by a test; the extras exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    command, source = arguments
    extras = source.removeprefix(".").strip("[]")
    assert command == "install" and source.startswith(".")
    assert {e for e in extras.split(",") if e} <= project["optional-dependencies"].keys()
