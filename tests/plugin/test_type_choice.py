"""Quantized layers in fp32 where that is faster: where Winograd's algorithm makes up for bytes."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import helper
from rewrites import runtime, several_nodes

import tvm_blislike
from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.choose.type_choice import may_gain, why_floats
from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.workload import Conv2dWorkload

# Products of pairs of 16 bits: hardly more a cycle than of fp32.
AVX2, VNNI = Core.named("x86-64-v3"), Core.named("zen4")
SAME = (1, 1, 1, 1)
# Of so many channels that Winograd's algorithm computes them in floats only.
LAYER = Conv2dWorkload(1, 2048, 28, 28, 256, 3, 3, padding=SAME)
# What only the direct algorithm computes.
STRIDED = dataclasses.replace(LAYER, co=128, stride=(2, 2))


def reason(core: Core, layer: Conv2dWorkload, constraints: Constraints | None = None) -> str:
    strategy = Strategy(core, 1, constraints=constraints or Constraints())
    return why_floats(strategy, layer, quantized_types(core))


def test_floats_are_chosen_where_they_are_faster() -> None:
    assert "predicted to be faster" in reason(AVX2, LAYER)
    assert reason(AVX2, STRIDED) == ""
    few = dataclasses.replace(LAYER, ci=64)
    assert reason(AVX2, few) == ""


def test_bytes_that_four_are_multiplied_at_once_stay() -> None:
    assert not may_gain(VNNI, LAYER, quantized_types(VNNI))
    assert may_gain(AVX2, LAYER, quantized_types(AVX2))
    assert reason(VNNI, LAYER) == ""


def test_constraints_decide_with_it() -> None:
    """Without Winograd's algorithms fp32 gains nothing."""
    without = Constraints(without=("conv2d_winograd", "conv2d_winograd_1d"))
    assert reason(AVX2, LAYER, without) == ""


def conv_twice(x: np.ndarray) -> onnx.ModelProto:
    """Return a quantized model: a layer that Winograd's algorithm computes, then a strided one."""
    rng = np.random.default_rng(5)
    constants = {"s0": np.float32(0.02), "z": np.uint8(3), "sw": np.float32(0.01)}
    # Of the second result a step is worth several of the first: one more there is one here at most.
    constants |= {"zw": np.int8(0), "s1": np.float32(3), "s2": np.float32(30)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s0", "z"], ["q0"])]
    for n, (stride, co, ci) in enumerate(((1, 256, 2048), (2, 64, 256))):
        constants[f"w{n}"] = rng.integers(-99, 99, (co, ci, 3, 3)).astype("int8")
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{n}", f"s{n}", "z"], [f"d{n}"]),
            helper.make_node("DequantizeLinear", [f"w{n}", "sw", "zw"], [f"k{n}"]),
            helper.make_node(
                "Conv", [f"d{n}", f"k{n}"], [f"y{n}"], pads=SAME, strides=[stride, stride]
            ),
            helper.make_node("QuantizeLinear", [f"y{n}", f"s{n + 1}", "z"], [f"q{n + 1}"]),
        ]
    model = several_nodes(nodes, {"x": x}, constants)
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name="q2"))
    return model


@pytest.mark.skipif(native_core().isa.name not in ("avx2", "avx512"), reason="runs code of AVX2")
def test_a_model_of_both() -> None:
    """The layer in fp32 is named, the one of integers behind it is not."""
    x = np.random.default_rng(6).normal(size=(1, 2048, 28, 28)).astype("float32")
    model = conv_twice(x)
    compiled = tvm_blislike.compile(model, AVX2, threads=1, records="none")
    (note,) = (n for n in compiled.explain().notes if n.startswith("in float32"))
    assert "predicted to be faster" in note and note.count("conv2d") == 1
    (ours,) = compiled.run({"x": x}).values()
    difference = np.abs(ours.astype(int) - runtime(model, x).astype(int))
    assert difference.max() <= 1 and (difference > 0).mean() < 0.02
    assert len(np.unique(ours)) > 50
