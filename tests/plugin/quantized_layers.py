"""Quantized models as they grow, and what becomes of them."""

from __future__ import annotations

import numpy as np
from onnx import helper
from rewrites import Arrays, computed, runtime, several_nodes

from tvm_blislike.hardware import Core
from tvm_blislike.onnx.frontend import load
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.tvm_seams import bindings, dtype_name, functions, op_name


class Layers:
    """A quantized model as it grows, from `x` onwards."""

    def __init__(self, seed: int, *shape: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.x = self.rng.standard_normal(shape).astype("float32")
        self.nodes: list = []
        self.constants: Arrays = {}

    def put(self, operator: str, *operands: str, **attributes: object) -> str:
        result = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, operands, [result], **attributes))
        return result

    def constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def quantized(self, value: str, scale: float, zero: int, dtype: str) -> tuple[str, list[str]]:
        steps = [self.constant(np.float32(scale)), self.constant(np.array(zero, dtype))]
        return self.put("QuantizeLinear", value, *steps), steps

    def steps(self, value: str, scale: float = 0.03, zero: int = 5, dtype: str = "uint8") -> str:
        quantized, steps = self.quantized(value, scale, zero, dtype)
        return self.put("DequantizeLinear", quantized, *steps)

    def weights(self, shape: tuple[int, ...], dtype: str, zero: int, axis: int | None) -> str:
        limits = np.iinfo("int8")
        values = self.rng.integers(limits.min, limits.max, shape, endpoint=True)
        values = np.clip(values + zero, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
        count = () if axis is None else shape[axis]
        scales = self.rng.uniform(1e-3, 4e-3, count).astype("float32")
        operands = [values, scales, np.full(count, zero, dtype)]
        along = {} if axis is None else {"axis": axis}
        return self.put("DequantizeLinear", *map(self.constant, operands), **along)

    def model(self, *results: str) -> object:
        model = several_nodes(self.nodes, {"x": self.x}, self.constants)
        kept = [value for value in model.graph.output if value.name in results]
        del model.graph.output[:]
        model.graph.output.extend(kept)
        return model


def assert_within_a_step(model: object, x: np.ndarray) -> np.ndarray:
    """Compare 8-bit results with those of the floats; return them."""
    ours, theirs = computed(model, x), runtime(model, x)
    assert ours.dtype == theirs.dtype
    difference = np.abs(ours.astype(int) - theirs.astype(int))
    assert difference.max(initial=0) <= 1
    assert (difference > 0).mean() < 0.02
    return ours


def call_types(model: object, core: str = "zen4") -> list[tuple[str, str]]:
    """Operators and types of the calls that a core's choices are made for."""
    mod = Canonicalize(Core.named(core))(load(model).module)
    values = [b.value for _, func in functions(mod) for b in bindings(func)]
    return [(op_name(v).removeprefix("relax."), dtype_name(v)) for v in values if op_name(v)]
