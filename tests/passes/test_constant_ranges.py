"""What kernels are told of their constants is true of every call, and reaches the code."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, te

from tvm_blislike.hardware import Core
from tvm_blislike.model.marks import CHOSEN, RANGES
from tvm_blislike.passes.constant_ranges import constant_ranges, with_ranges
from tvm_blislike.pipeline import blislike_pipeline


def f32(*values: float) -> np.ndarray:
    return np.array(values, "float32")


def kernel() -> tvm.tirx.PrimFunc:
    """Return the function (x, scale, y)."""
    x, scale = (te.placeholder((2,), name=name) for name in ("x", "scale"))
    return te.create_prim_func([x, scale, te.compute((2,), lambda i: x[i] * scale[i], name="y")])


def ranges(func: tvm.tirx.PrimFunc) -> dict[str, list[float]]:
    found = func.attrs[RANGES] if func.attrs and RANGES in func.attrs else {}
    return {str(name): [float(end) for end in ends] for name, ends in found.items()}


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([[None, f32(1, 3)]], {"scale": [1, 3]}),
        ([[None, f32(1, 3)], [None, f32(2, -4)]], {"scale": [-4, 3]}),
        ([[f32(0, 0), f32(1, 3)], [None, f32(2, 2)]], {"scale": [1, 3]}),
        ([[None, f32(1, 3)], [None, None]], {}),
        ([[None, f32(1, 3)], []], {}),
        ([[None, f32(1, np.nan)]], {}),
        ([[None, f32(1, np.inf)]], {}),
        ([[None, np.array([1, 2])]], {}),
        ([[None, f32()]], {}),
        ([], {}),
    ],
)
def test_what_all_calls_agree_on(calls: list, expected: dict) -> None:
    assert ranges(with_ranges(kernel(), calls)) == expected


def module(scales: list[np.ndarray | None]) -> tvm.IRModule:
    """Return a module that calls one kernel with each scale, None for a parameter."""
    builder = relax.BlockBuilder()
    shape = relax.TensorType((2,), "float32")
    x, given = relax.Var("x", shape), relax.Var("given", shape)
    gvar = builder.add_func(kernel(), "kernel")
    with builder.function("main", [x, given]):
        with builder.dataflow():
            value = x
            for scale in scales:
                constant = given if scale is None else relax.const(scale)
                value = builder.emit(relax.call_tir(gvar, [value, constant], shape))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()


def test_of_a_module() -> None:
    told = constant_ranges(module([f32(1, 2), f32(5, 3)]))["kernel"]
    assert ranges(told) == {"scale": [1, 5]}
    assert ranges(constant_ranges(module([f32(1, 2), None]))["kernel"]) == {}


def quantized(first_scale: float, last_scale: float) -> tvm.IRModule:
    """Return a convolution of bytes and another one with a residual addition, requantized both."""
    rng = np.random.default_rng(3)
    zero = relax.const(5, "uint8")
    builder = relax.BlockBuilder()

    def layer(x: relax.Expr) -> relax.Var:
        weights = relax.const(rng.integers(-100, 100, (64, 64, 1, 1), dtype="int8"))
        of_channels = relax.const(rng.uniform(0.005, 0.01, 64).astype("float32"))
        zeros = relax.const(np.zeros(64, "int8"))
        kernel = builder.emit(relax.op.dequantize(weights, of_channels, zeros, axis=0))
        return builder.emit(relax.op.nn.conv2d(x, kernel))

    def through_bytes(value: relax.Var, scale: float) -> relax.Var:
        steps = relax.op.quantize(value, relax.const(scale), zero, out_dtype="uint8")
        return builder.emit(relax.op.dequantize(builder.emit(steps), relax.const(scale), zero))

    x = relax.Var("x", relax.TensorType((1, 64, 8, 8), "uint8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            data = builder.emit(relax.op.dequantize(x, relax.const(0.02), zero))
            first = through_bytes(layer(data), first_scale)
            both = builder.emit(relax.op.add(layer(first), first))
            last = relax.op.quantize(both, relax.const(last_scale), zero, out_dtype="uint8")
            out = builder.emit_output(builder.emit(last))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("core", ["icelake-server", "x86-64-v3", "cortex-a76"])
@pytest.mark.parametrize(("scales", "are_below_1"), [((0.3, 0.3), True), ((1e-4, 1e-7), False)])
def test_quantized_layers(core: str, scales: tuple[float, float], are_below_1: bool) -> None:
    """Sums are stored through packs, where the factors of requantization are below 1."""
    described = Core.named(core)
    target = tvm.target.Target(described.target_config(1))
    with target:
        mod = blislike_pipeline(described)(quantized(*scales))
    layers = [str(f) for _, f in mod.functions_items() if f.attrs and CHOSEN in f.attrs]
    expected = are_below_1 and bool(described.isa.packs)
    assert ["blislike_packs_" in layer for layer in layers] == [expected, expected]
    # Others are narrowed in pairs: kernels of a model know the features of their target.
    pairs = not expected and "vbmi" in described.features
    assert ["blislike_low_bytes" in layer for layer in layers] == [pairs, pairs]
