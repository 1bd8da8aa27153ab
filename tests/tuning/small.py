"""A small model whose layers are tuned in seconds, and commands on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from tvm_blislike.cli.app import app


def small_model(path: Path) -> Path:
    """Write two different layers, one of them twice: 16 channels of 12x12, 3x3 and 1x1."""
    rng = np.random.default_rng(4)
    weights = {
        "first": rng.standard_normal((32, 16, 3, 3)) / 12,
        "second": rng.standard_normal((32, 32, 1, 1)) / 6,
        "third": rng.standard_normal((32, 32, 1, 1)) / 6,
    }
    nodes = [
        helper.make_node("Conv", ["image", "first"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second"], ["c"]),
        helper.make_node("Conv", ["c", "third"], ["out"]),
    ]
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, channels, 12, 12])
        for name, channels in (("image", 16), ("out", 32))
    ]
    tensors = [numpy_helper.from_array(w.astype("float32"), n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "small", values[:1], values[1:], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)
    return path


def run_command(*arguments: object) -> Any:
    """Run `tvm-blislike` with these arguments and assert that it succeeds."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result
