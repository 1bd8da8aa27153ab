"""A process that only runs a kept model imports nothing of TVM's compiler, until it needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import float_input, make_model, small_network, small_reference

import tvm_blislike

IMAGE = np.random.default_rng(3).standard_normal((1, 3, 8, 8)).astype("float32")

START = """
import os, sys
import numpy as np
import tvm_blislike

def is_light():
    return not {"tvm", "onnx"} & set(sys.modules)

model, image, light = sys.argv[1], np.load(sys.argv[2]), sys.argv[3] == "light"
compiled = tvm_blislike.compile(model, threads=2)
inputs = [image]
results = [compiled.run(inputs) for _ in range(3)]
runner = compiled.runner() if light else None
if runner is not None:
    results += [dict(runner.run(inputs)) for _ in range(2)]
assert is_light() == light, [name for name in sys.modules if name.startswith("tvm.")]
for result in results:
    for name, value in result.items():
        np.testing.assert_array_equal(value, results[0][name])
np.save(sys.argv[4], next(iter(results[0].values())))
assert compiled.profile(inputs, 1) and compiled.explain()
if light:
    assert is_light()
    assert "ret" in compiled.assembly()
    assert not is_light()
    np.testing.assert_array_equal(next(iter(compiled.run(inputs).values())), np.load(sys.argv[4]))
    pid = os.fork()
    if not pid:
        compiled.run(inputs)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for kept models, of this test alone."""
    monkeypatch.setenv("TVM_BLISLIKE_CACHE", str(tmp_path / "kept"))


def started(model: Path, image: np.ndarray, kind: str) -> np.ndarray:
    """Return the result of a new process that starts a kept model."""
    given, result = model.with_name("image.npy"), model.with_name("result.npy")
    np.save(given, image)
    command = [sys.executable, "-c", START, *map(str, (model, given)), kind, str(result)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return np.load(result)


def test_a_kept_model_runs_without_the_compiler(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    onnx.save(small_network(), path)
    expected = tvm_blislike.compile(path, threads=2).run([IMAGE])["scores"]
    np.testing.assert_allclose(expected, small_reference(IMAGE), rtol=1e-4)
    np.testing.assert_array_equal(started(path, IMAGE, "light"), expected)


def test_one_that_calls_functions_of_python_imports_tvm(tmp_path: Path) -> None:
    path = tmp_path / "places.onnx"
    nodes = [helper.make_node("NonZero", ["image"], ["places"])]
    output = helper.make_tensor_value_info("places", TensorProto.INT64, [2, None])
    onnx.save(make_model(nodes, [float_input("image", [4, 4])], [output], []), path)
    image = np.diag([1.0, 0.0, 2.0, 3.0]).astype("float32")
    tvm_blislike.compile(path, threads=2)
    np.testing.assert_array_equal(started(path, image, "compiler"), np.nonzero(image))


def test_one_that_sorts_does_not(tmp_path: Path) -> None:
    path = tmp_path / "order.onnx"
    nodes = [
        helper.make_node("Relu", ["image"], ["positive"]),
        helper.make_node("TopK", ["positive", "count"], ["largest", "places"], axis=1),
    ]
    counts = [helper.make_tensor("count", TensorProto.INT64, [1], [3])]
    output = helper.make_tensor_value_info("largest", TensorProto.FLOAT, [2, 3])
    onnx.save(make_model(nodes, [float_input("image", [2, 9])], [output], counts), path)
    image = np.random.default_rng(0).standard_normal((2, 9)).astype("float32")
    expected = -np.sort(-np.maximum(image, 0), axis=1)[:, :3]
    tvm_blislike.compile(path, threads=2)
    np.testing.assert_array_equal(started(path, image, "light"), expected)
