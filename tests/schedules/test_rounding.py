"""Roundings to 8 bits by the low byte of a sum: equal to the plain form, ties and ends included."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import native_core
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.pipeline import compile_module
from tvm_blislike.schedules.lowering import rounding as rounding_step
from tvm_blislike.schedules.lowering.rounding import by_low_bits

NATIVE = native_core()
RUNS = bool(kernels_for(NATIVE, quantized_types(NATIVE)))
NO_ZERO = relax.const(0, "int8")
LOWEST = {"uint8": 0, "int8": -128, "int16": 0}


def rounding(
    count: int, dtype: str, zero: int, low: float, high: float, nearest=te.nearbyint
) -> tirx.PrimFunc:
    """Return the function (x, y): y = clip(nearest(x) + zero) in 8 bits."""
    x = te.placeholder((count,), "float32", name="x")

    def value(i: tirx.Var) -> tirx.Expr:
        whole = nearest(x[i])
        moved = whole + tirx.const(float(zero), "float32") if zero else whole
        inside = te.max(te.min(moved, tirx.const(high, "float32")), tirx.const(low, "float32"))
        return inside.astype(dtype)

    return te.create_prim_func([x, te.compute((count,), value, name="y")])


def lowered(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function as loops, as `lower` hands it on."""
    steps = [tvm.s_tir.transform.ConvertBlocksToOpaque(), tvm.s_tir.transform.LowerOpaqueBlock()]
    return tvm.transform.Sequential(steps)(tvm.IRModule({"main": func}))["main"]


def values() -> np.ndarray:
    """Return ties and their neighbours around both ranges, and what is far beyond them."""
    ties = np.arange(-600, 600, 0.5, dtype="float32")
    beside = (np.nextafter(ties, -np.inf), np.nextafter(ties, np.inf))
    far = np.array([1e6, -1e6, 2**23 + 1, -(2**31), 2**31, 3e38, -3e38, np.inf, -np.inf])
    return np.concatenate([ties, *beside, far]).astype("float32")


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
@pytest.mark.parametrize("zero", [0, 1, 2, 127, 128, -7, -128])
@pytest.mark.parametrize("cut", [(0, 0), (3, 0), (0, 50)])
def test_equals_the_plain_form(dtype: str, zero: int, cut: tuple[int, int]) -> None:
    low, high = LOWEST[dtype] + cut[0], LOWEST[dtype] + 255 - cut[1]
    x = values()
    func = by_low_bits(lowered(rounding(len(x), dtype, zero, low, high)))
    assert "nearbyint" not in str(func)
    y = tvm.runtime.tensor(np.zeros(len(x), dtype))
    tvm.compile(func.with_attr("global_symbol", "main"), "llvm")["main"](tvm.runtime.tensor(x), y)
    expected = np.clip(np.rint(x.astype("float64")) + zero, low, high).astype(dtype)
    np.testing.assert_array_equal(y.numpy(), expected)


@pytest.mark.parametrize("zero", [0, 1, 2, 127, -7])
def test_an_integer_that_stays_a_float(zero: int) -> None:
    x = te.placeholder((len(values()),), "float32", name="x")

    def value(i: tirx.Var) -> tirx.Expr:
        moved = te.nearbyint(x[i])
        moved = moved + tirx.const(float(zero), "float32") if zero else moved
        inside = te.max(te.min(moved, tirx.const(200.0, "float32")), tirx.const(3.0, "float32"))
        return inside * tirx.const(0.7, "float32")

    func = by_low_bits(lowered(te.create_prim_func([x, te.compute(x.shape, value, name="y")])))
    assert "nearbyint" not in str(func)
    y = tvm.runtime.tensor(np.zeros(len(values()), "float32"))
    function = tvm.compile(func.with_attr("global_symbol", "main"), "llvm")["main"]
    function(tvm.runtime.tensor(values()), y)
    expected = np.clip(np.rint(values()) + np.float32(zero), 3, 200) * np.float32(0.7)
    np.testing.assert_array_equal(y.numpy(), expected)


def test_a_product_is_a_float_before_it_is_an_integer() -> None:
    """Where it is a tie in float32 it is rounded as one, though not quite a tie before."""
    x = np.array([50, 150, 8388607.0, 4194303.0], "float32")
    scale = np.concatenate([np.full(2, 0.11, "float32"), np.float32(2.5) / x[2:]])
    a, b = (te.placeholder((4,), "float32", name=name) for name in "ab")

    def value(i: tirx.Var) -> tirx.Expr:
        rounded = te.nearbyint(a[i] * b[i])
        inside = te.min(rounded, tirx.const(255.0, "float32"))
        return te.max(inside, tirx.const(0.0, "float32")).astype("uint8")

    func = by_low_bits(lowered(te.create_prim_func([a, b, te.compute((4,), value, name="y")])))
    y = tvm.runtime.tensor(np.zeros(4, "uint8"))
    target = tvm.target.Target(NATIVE.target_config(1))
    function = tvm.compile(func.with_attr("global_symbol", "main"), target)["main"]
    function(tvm.runtime.tensor(x), tvm.runtime.tensor(scale), y)
    np.testing.assert_array_equal(y.numpy(), np.rint(x * scale))
    exact = x.astype("float64") * scale.astype("float64")
    assert np.any(np.rint(exact) != np.rint(x * scale))


@pytest.mark.parametrize("bounds", [(-np.inf, 255.0), (0.0, np.inf), (0.5, 255.0), (0.0, 2.0**22)])
def test_other_bounds_stay(bounds: tuple[float, float]) -> None:
    func = lowered(rounding(8, "uint8", 3, *bounds))
    assert "nearbyint" in str(func)
    tvm.ir.assert_structural_equal(by_low_bits(func), func)


def test_another_rounding_stays() -> None:
    func = lowered(rounding(8, "uint8", 3, 0.0, 255.0, te.round))
    tvm.ir.assert_structural_equal(by_low_bits(func), func)


@pytest.mark.skipif(not RUNS, reason="this machine runs no integer micro-kernels")
def test_a_quantized_layer_is_rounded_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pass on quantized models emits is what this step knows."""
    found = []
    plain = rounding_step._rounded
    monkeypatch.setattr(rounding_step, "_rounded", lambda v: found.append(plain(v)) or found[-1])
    rng = np.random.default_rng(3)
    weights = rng.integers(-100, 100, (32, 32, 3, 3), dtype="int8")
    x = relax.Var("x", relax.TensorType((1, 32, 9, 9), "uint8"))
    scale, zero = relax.const(0.02), relax.const(5, "uint8")
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            data = builder.emit(relax.op.dequantize(x, scale, zero))
            kernel = relax.op.dequantize(relax.const(weights), relax.const(0.01), NO_ZERO)
            layer = builder.emit(relax.op.nn.conv2d(data, builder.emit(kernel)))
            result = relax.op.quantize(layer, relax.const(0.3), zero, out_dtype="uint8")
            out = builder.emit_output(builder.emit(result))
        builder.emit_func_output(out)
    compile_module(builder.get(), Strategy(NATIVE, 1))
    assert [step for step in found if step is not None]
