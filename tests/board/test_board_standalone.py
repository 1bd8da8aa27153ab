"""Whole models as objects without TVM's runtime, on the emulated board."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import zoo
from emulated_board import Board
from use_standalone import results

from tvm_blislike import standalone


@pytest.mark.parametrize(("name", "core"), [("squeezenet1_1", "cortex-a53")])
def test_agrees_with_onnxruntime(name: str, core: str, board: Board, tmp_path: Path) -> None:
    model = zoo.build(name, image=64)
    image = np.random.default_rng(9).standard_normal((1, 3, 64, 64), dtype=np.float32)
    compiled = standalone.compile(model, core)
    found = results(compiled, [image], tmp_path, replace(board, cpu=core).run)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = session.run(None, {"input": image})[0]
    np.testing.assert_allclose(found["logits"], wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
