"""Whole models as objects without TVM's runtime, on the emulated board."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import zoo
from emulated_board import Board
from use_standalone import build, results

from tvm_blislike import standalone


@pytest.mark.parametrize(("name", "core"), [("squeezenet1_1", "cortex-a53")])
def test_agrees_with_onnxruntime(name: str, core: str, board: Board, tmp_path: Path) -> None:
    model = zoo.build(name, image=64)
    image = np.random.default_rng(9).standard_normal((1, 3, 64, 64), dtype=np.float32)
    compiled = standalone.compile(model, core)
    found = results(compiled, [image], tmp_path, replace(board, cpu=core).run)
    _check(model, image, found["logits"])


def test_threads_of_a_folder(board: Board, tmp_path: Path) -> None:
    """Linked and run with the C library of the board, more threads than the kernels are cut for."""
    model = zoo.build("squeezenet1_1", image=64)
    image = np.random.default_rng(9).standard_normal((1, 3, 64, 64), dtype=np.float32)
    compiled = standalone.compile(model, "cortex-a76", threads=2)
    program = build(compiled, tmp_path, as_package=True)
    run = replace(board, cpu="cortex-a76").run
    found = results(compiled, [image], tmp_path, run, program, [3, 4])
    _check(model, image, found["logits"])


def _check(model: onnx.ModelProto, image: np.ndarray, found: np.ndarray) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = session.run(None, {"input": image})[0]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
