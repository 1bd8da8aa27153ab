"""The guide's way to a Raspberry Pi, command by command, with an emulated board behind ssh."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from debian import ROOT
from emulated_board import Board
from small_models import documented_network

from tvm_blislike.records import files

GUIDE = ROOT / "docs" / "guides" / "board.md"


def _blocks(language: str) -> list[str]:
    """Commands of the page; what is marked as a shell's goes on in the background: tuning."""
    text = GUIDE.read_text()
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M)
    return [block for marked, block in found if marked == language]


def _stubs(folder: Path, home: Path, board: Board) -> Path:
    """Write scp, ssh and the installed command: what they name on the board lies in `home`."""
    start = " ".join(replace(board, cpu="cortex-a72").command())
    scripts = {
        "ssh": f'while [ "${{1#-}}" != "$1" ]; do shift 2; done; shift; cd {home} && program=$1 '
        f'&& shift && exec {start} ./"$program" "$@"',
        "scp": f'exec cp $(echo "$@" | sed "s#pi@raspberrypi:#{home}/#")',
        "tvm-blislike": f'exec {sys.executable} -m tvm_blislike "$@"',
        "python": f'exec {sys.executable} "$@"',
        "pip": "exit 0",
    }
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def here(tmp_path: Path, board: Board, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder with a model, and the commands of the section in PATH."""
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    onnx.save(documented_network(), here / "model.onnx")
    stubs = _stubs(tmp_path / "bin", home, board)
    monkeypatch.setenv("PATH", f"{stubs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TVM_BLISLIKE_RECORDS", str(tmp_path / "records.jsonl"))
    return here


def _run(command: str, folder: Path) -> None:
    done = subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-500:]}{done.stderr[-1000:]}"


def test_works_as_written(here: Path) -> None:
    image = np.random.default_rng(5).standard_normal((1, 3, 12, 12), dtype=np.float32)
    np.save(here / "image.npy", image)
    commands = [line for block in _blocks("") for line in block.split("\n") if line]
    assert [command.split()[0] for command in commands] == [
        *("pip", "tvm-blislike", "scp", "ssh"),
        *("scp", "ssh", "scp"),
    ]
    for command in commands:
        _run(command, here)
    session = onnxruntime.InferenceSession(documented_network().SerializeToString())
    expected = session.run(None, {"input": image})[0]
    np.testing.assert_allclose(np.load(here / "logits.npy"), expected, rtol=1e-5, atol=1e-5)


def test_tuning_works_as_written(here: Path, tmp_path: Path) -> None:
    for command in ("tvm-blislike compile model.onnx --target cortex-a72 --bundle ship", "scp -r"):
        (line,) = {x for x in "".join(_blocks("")).split("\n") if x.startswith(command)}
        _run(line, here)
    (block,) = _blocks("sh")
    # Ports of the guide may be taken here by other tests; TVM's tracker takes none from 9199 on.
    for port, free in (("9190", _free_port(range(9100, 9190))), ("9090", _free_port([0]))):
        assert port in block
        block = block.replace(port, str(free))
    (here / "ship" / "model.so").unlink()
    output = tmp_path / "output"
    with output.open("w") as file:
        shell = subprocess.Popen(
            ["sh", "-ec", block], cwd=here, stdout=file, stderr=file, start_new_session=True
        )
        try:
            assert shell.wait(timeout=300) == 0, output.read_text()[-2000:]
        finally:
            os.killpg(shell.pid, signal.SIGTERM)
    text = output.read_text()
    assert "the boards are emulated" in text
    records, bad = files.read(tmp_path / "records.jsonl")
    assert records and not bad and {record.core for record in records} == {"cortex-a72"}
    assert (here / "ship" / "model.so").exists()


def _free_port(among: Iterable[int]) -> int:
    """Return the first port that is free; 0 is any."""
    for port in among:
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return found.getsockname()[1]
    raise AssertionError("no free port")
