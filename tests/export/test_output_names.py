"""Which file each output of a model is written to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from small_models import float_input, make_model
from typer.testing import CliRunner

from tvm_blislike.cli.app import app
from tvm_blislike.export.output_names import output_files

CASES = [
    (["scores", "boxes.1", "T-2_x"], ["scores", "boxes.1", "T-2_x"]),
    (["a/b", "a_b"], ["a_b.1", "a_b"]),
    (["a/b", "a:b"], ["a_b", "a_b.1"]),
    (["A", "a", "a.1"], ["A", "a.2", "a.1"]),
    (["", ".", "..", "_"], ["_.1", "_.2", "_.", "_"]),
    ([".hidden", "é"], ["_hidden", "__"]),
    (["x" * 300, "x" * 301], ["x" * 200, "x" * 200 + ".1"]),
    (["a", "a"], ["a", "a.1"]),
]


@pytest.mark.parametrize(("names", "files"), CASES)
def test_files_are_those_of_the_rule(names: list[str], files: list[str]) -> None:
    assert output_files(names) == [f"{file}.npy" for file in files]


@given(st.lists(st.text(st.sampled_from("aA_/.1é")) | st.text(min_size=198), max_size=8))
def test_no_two_outputs_share_a_file(names: list[str]) -> None:
    files = output_files(names)
    assert len({file.lower() for file in files}) == len(names)
    for name, file in zip(names, files, strict=True):
        assert len(file.encode()) <= 255
        assert file == Path(file).name
        assert not file.startswith(".")
        if names == [name] and name.isidentifier() and name.isascii() and len(name) <= 200:
            assert file == f"{name}.npy"


def test_run_writes_every_output(tmp_path: Path) -> None:
    names = {"a/b": "Relu", "a_b": "Neg", "n" * 300: "Abs"}
    nodes = [helper.make_node(operator, ["x"], [name]) for name, operator in names.items()]
    outputs = [float_input(name, [2, 3]) for name in names]
    onnx.save(make_model(nodes, [float_input("x", [2, 3])], outputs, []), tmp_path / "net.onnx")
    x = np.random.default_rng(0).standard_normal((2, 3)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    arguments = ["run", f"{tmp_path}/net.onnx", "--input", f"x={tmp_path}/x.npy", "--threads", "1"]
    result = CliRunner().invoke(app, [*arguments, "--output", f"{tmp_path}/out", "--json"])
    assert result.exit_code == 0, result.output
    written = {name: facts["file"] for name, facts in json.loads(result.stdout)["outputs"].items()}
    assert sorted(written.values()) == sorted(map(str, (tmp_path / "out").iterdir()))
    wanted = dict(zip(names, (np.maximum(x, 0), -x, np.abs(x)), strict=True))
    for name, values in wanted.items():
        np.testing.assert_array_equal(np.load(written[name]), values)
