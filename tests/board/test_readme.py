"""The README's way to a Raspberry Pi, command by command, with an emulated board behind ssh."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from debian import ROOT
from emulated_board import Board
from onnx import TensorProto, helper, numpy_helper

SECTION = "From ONNX to a Raspberry Pi"


def _commands() -> list[str]:
    text = (ROOT / "README.md").read_text().partition(f"## {SECTION}")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M)
    # What is marked as a shell's goes on in the background: tuning, which has a test of its own.
    return [line for language, block in blocks if not language for line in block.split("\n")]


def _network() -> onnx.ModelProto:
    rng = np.random.default_rng(4)
    weights = {"kernel": rng.standard_normal((8, 3, 3, 3)), "matrix": rng.standard_normal((8, 5))}
    nodes = [
        helper.make_node("Conv", ["input", "kernel"], ["c"], pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "matrix"], ["logits"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [value("input", TensorProto.FLOAT, [1, 3, 12, 12])],
        [value("logits", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(w.astype("float32"), name) for name, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _stubs(folder: Path, home: Path, board: Board) -> Path:
    """Write scp, ssh and the installed command: what they name on the board lies in `home`."""
    start = " ".join(replace(board, cpu="cortex-a72").command())
    scripts = {
        "ssh": f'shift; cd {home} && program=$1 && shift && exec {start} ./"$program" "$@"',
        "scp": f'exec cp $(echo "$@" | sed "s#pi@raspberrypi:#{home}/#")',
        "tvm-blislike": f'exec {sys.executable} -m tvm_blislike "$@"',
        "pip": "exit 0",
    }
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def test_works_as_written(board: Board, tmp_path: Path) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    onnx.save(_network(), here / "model.onnx")
    image = np.random.default_rng(5).standard_normal((1, 3, 12, 12), dtype=np.float32)
    np.save(here / "image.npy", image)
    path = f"{_stubs(tmp_path / 'bin', home, board)}{os.pathsep}{os.environ['PATH']}"
    commands = [command for command in _commands() if command]
    assert [command.split()[0] for command in commands] == [
        *("pip", "tvm-blislike", "scp", "ssh"),
        *("scp", "ssh", "scp"),
    ]
    for command in commands:
        done = subprocess.run(
            command,
            shell=True,
            cwd=here,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-500:]}{done.stderr[-1000:]}"
    session = onnxruntime.InferenceSession(_network().SerializeToString())
    expected = session.run(None, {"input": image})[0]
    np.testing.assert_allclose(np.load(here / "logits.npy"), expected, rtol=1e-5, atol=1e-5)
