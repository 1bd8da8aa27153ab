"""ONNX through TVM's own default pipeline: tells TVM's limits apart from the library's."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx


def run(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs by name; raises whatever TVM raises. Inputs are in the graph's order."""
    with contextlib.redirect_stdout(io.StringIO()):  # the importer prints about failures
        module = from_onnx(model, sanitize_input_names=False)
    executable = tvm.compile(module, tvm.target.Target({"kind": "llvm"}))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    results = machine["main"](*map(tvm.runtime.tensor, inputs.values()))
    results = [results] if isinstance(results, tvm.runtime.Tensor) else list(results)
    outputs = [value.name for value in model.graph.output]
    return {name: result.numpy() for name, result in zip(outputs, results, strict=True)}
