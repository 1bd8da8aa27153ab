"""Models of one product by constant weights that lie in memory in fewer bytes."""

from __future__ import annotations

import numpy as np
from onnx import helper
from rewrites import several_nodes

import tvm_blislike


def compiled(rows: int, weights: np.ndarray, name: str) -> tvm_blislike.CompiledModel:
    """Return the product of so many rows by weights (k, n) that are stored in a type."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x = np.zeros((1, rows, len(weights)), np.float32)
    model = several_nodes([node], {"x": x}, {"w": weights})
    return tvm_blislike.compile(model, threads=1, weights=name, records="none", cache=False)


def product(model: tvm_blislike.CompiledModel, x: np.ndarray) -> np.ndarray:
    """Return the product of rows (m, k) by the weights of a model of `compiled`, float64 (m, n)."""
    (y,) = model.run({"x": x[None]}).values()
    return y[0].astype(np.float64)
