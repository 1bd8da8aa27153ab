"""Which files blis_run writes the outputs of a model to, and what is in them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import sanitized
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from sanitized import Programs
from small_models import float_input, make_model
from test_output_names import CASES

import tvm_blislike
from tvm_blislike.export.output_names import output_files


@pytest.fixture(scope="module")
def name_files(
    good_bundle: Programs, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[list[str]], list[str]]:
    """The rule of `blis_run` for the files of outputs."""
    folder = tmp_path_factory.mktemp("names")
    source = '#include "output_files.h"\nint main(int count, char** names) {'
    source += "Array<const char*> all; for (int i = 1; i < count; i++) all.push(names[i]);"
    source += (
        "Array<char*> files; output_files(all, &files); for (char* file : files) puts(file); }"
    )
    (folder / "names.cc").write_text(source)
    sanitized.build_test(good_bundle.folder, folder / "names.cc", folder / "names")

    def name(names: list[str]) -> list[str]:
        command = [folder / "names", *(name.encode() for name in names)]
        environment = sanitized.environment()
        done = subprocess.run(command, capture_output=True, check=True, env=environment)
        return done.stdout.decode().splitlines()

    return name


@pytest.mark.parametrize(("names", "files"), CASES)
def test_files_of_outputs_are_those_of_the_command(
    names: list[str], files: list[str], name_files: Callable[[list[str]], list[str]]
) -> None:
    assert name_files(names) == [f"{file}.npy" for file in files]


def test_files_of_any_outputs_are_those_of_the_command(
    name_files: Callable[[list[str]], list[str]],
) -> None:
    characters = st.sampled_from("aA_/.1é\n\x7f")

    @given(st.lists(st.text(characters) | st.text(characters, min_size=198), max_size=8))
    def agrees(names: list[str]) -> None:
        assert name_files(names) == output_files(names)

    agrees()


def _model_of(nodes: list, inputs: list, outputs: list) -> onnx.ModelProto:
    return make_model(nodes, inputs, outputs, [])


def test_outputs_never_share_a_file(good_bundle: Programs, tmp_path: Path) -> None:
    operators = {"a/b": "Relu", "a_b": "Neg", "A_b": "Abs"}
    nodes = [helper.make_node(operator, ["x"], [name]) for name, operator in operators.items()]
    model = _model_of(
        nodes, [float_input("x", [2, 3])], [float_input(name, [2, 3]) for name in operators]
    )
    x = np.random.default_rng(0).standard_normal((2, 3)).astype("float32")
    programs = _shipped(good_bundle, model, tmp_path)
    _run(programs, {"x": x}, tmp_path)
    for file, values in {"a_b.1": np.maximum(x, 0), "a_b": -x, "A_b.2": np.abs(x)}.items():
        np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{file}.npy"), values)


def test_outputs_of_sizes_known_at_run_time(good_bundle: Programs, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Slice", ["x", "start", "end"], ["part"]),
        helper.make_node("Greater", ["x", "x"], ["no"]),
    ]
    places = [helper.make_tensor_value_info(n, TensorProto.INT64, [1]) for n in ("start", "end")]
    outputs = [float_input("part", [None, 4])]
    outputs += [helper.make_tensor_value_info("no", TensorProto.BOOL, [5, 4])]
    model = _model_of(nodes, [float_input("x", [5, 4]), *places], outputs)
    programs = _shipped(good_bundle, model, tmp_path)
    assert json.loads((programs.folder / "manifest.json").read_text())["outputs"][0]["shape"] == [
        None,
        None,
    ]
    x = np.arange(20, dtype="float32").reshape(5, 4)
    _run(programs, {"x": x, "start": np.array([1]), "end": np.array([3])}, tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "part.npy"), x[1:3])
    found = np.load(tmp_path / "out" / "no.npy")
    assert (found.dtype, found.any()) == (np.bool_, False)


def _shipped(good_bundle: Programs, model: onnx.ModelProto, tmp_path: Path) -> Programs:
    """A bundle of another model, with the programs that have sanitizers."""
    folder = tvm_blislike.compile(model, threads=1).bundle(tmp_path / "ship").folder
    shutil.copy(good_bundle.folder / "blis_run", folder / "blis_run")
    return Programs(folder, good_bundle.address)


def _run(programs: Programs, inputs: dict[str, np.ndarray], tmp_path: Path) -> None:
    arguments: list[object] = ["--output", tmp_path / "out"]
    for name, array in inputs.items():
        np.save(tmp_path / f"{name}.npy", array)
        arguments += ["--input", f"{name}={tmp_path / name}.npy"]
    assert programs.run(programs.folder, *arguments).returncode == 0
