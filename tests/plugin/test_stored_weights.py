"""Weights in fewer bytes: how they are rounded, which layers have them, what a user sees."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from rewrites import several_nodes

import tvm_blislike
from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.storage_choice import why_whole
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.errors import UsageError
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.report import Report
from tvm_blislike.model.types import MASKED, STORED, WORDS, WORDS_BY_BYTES, Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload
from tvm_blislike.passes import storage
from tvm_blislike.schedules import implementations

FLOATS = [name for name in STORED if name != "int8"]
# Without the two largest exponents of e4m3, and the largest one of e5m2 (`byte_codes`).
LARGEST = {"fp8": 120.0, "fp8_e5m2": 28672.0}
COLUMNS, DEPTH, CHANNELS = 200, 600, 96


@cache
def numbers(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the finite numbers of a type without negative zero, ascending, and their bits."""
    bits = 8 * np.dtype(dtype).itemsize
    codes = np.arange(2**bits, dtype=f"uint{bits}")
    with np.errstate(invalid="ignore"):
        values = codes.view(dtype).astype(np.float64)
    kept = np.isfinite(values) & ~((values == 0) & (codes > 0))
    order = np.argsort(values[kept])
    return values[kept][order], codes[kept][order]


def nearest(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return the nearest numbers of a type, of two equally near the one with an even last bit."""
    table, codes = numbers(dtype)
    high = np.clip(np.searchsorted(table, values), 1, len(table) - 1)
    low = high - 1
    up, down = table[high] - values, values - table[low]
    takes_high = (up < down) | ((up == down) & (codes[high] % 2 == 0))
    return np.where(takes_high, table[high], table[low])


@examples(15)
@given(seed=st.integers(0, 2**32 - 1), spread=st.integers(0, 12), name=st.sampled_from(FLOATS))
def test_rounding_is_to_the_nearest_even_number(seed: int, spread: int, name: str) -> None:
    rng, dtype = np.random.default_rng(seed), STORED[name]
    weights = rng.standard_normal((70, 40)) * 2.0 ** rng.integers(-spread, 4, (70, 40))
    # Numbers of the type, and what lies half between two.
    table, _ = numbers(dtype)
    small = np.flatnonzero(np.abs(table) < 8)[:-1]
    places = rng.choice(small, 40)
    weights[3], weights[4] = (table[places] + table[places + 1]) / 2, table[places]
    weights = weights.astype(np.float32)
    found = storage.stored(weights, dtype, axis=1)
    scales = np.float64(1) if found.scales is None else found.scales.astype(np.float64)
    assert np.array_equal(found.values.astype(np.float64), nearest(weights / scales, dtype))
    if found.scales is not None:
        assert np.array_equal(np.frexp(found.scales)[0], np.full(40, 0.5))
        most, largest = LARGEST[name], np.abs(weights).max(0)
        assert (largest <= most * scales).all() and (largest > most * scales / 2).all()
    again = found.values.astype(np.float64) * scales
    error = np.sqrt(np.square(again - weights).sum() / np.square(weights, dtype=float).sum())
    assert found.error == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_integers_have_a_scale_for_each_channel(axis: int) -> None:
    weights = np.random.default_rng(1).standard_normal((130, 140)).astype(np.float32)
    weights[5] = 0
    weights[:, 7] = 0
    found = storage.stored(weights, "int8", axis)
    largest = np.abs(weights).max(1 - axis, keepdims=True)
    scales = np.where(largest == 0, 1, largest / np.float32(127))
    assert np.array_equal(found.scales.reshape(scales.shape), scales)
    assert np.array_equal(found.values, np.rint(weights / scales))


@pytest.mark.parametrize("name", [*STORED])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_weights_that_are_not_finite_are_not_stored(name: str, value: float) -> None:
    weights = np.ones((3, 4), np.float32)
    weights[1, 2] = value
    assert storage.stored(weights, STORED[name], 1) is None


def test_weights_beyond_the_range_of_half_precision_are_not_stored() -> None:
    weights = np.full((3, 4), 1e5, np.float32)
    assert storage.stored(weights, "float16", 1) is None
    assert storage.stored(weights, "bfloat16", 1) is not None
    assert not storage.is_exact(weights, "float16")
    assert storage.is_exact(weights.astype(ml_dtypes.bfloat16).astype(np.float32), "bfloat16")


def model(exact: bool = False) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """Return a convolution to one pixel and a fully connected layer, and their weights."""
    rng = np.random.default_rng(4)
    conv = rng.standard_normal((CHANNELS, 64, 5, 5)).astype(np.float32) / 40
    dense = rng.standard_normal((CHANNELS, COLUMNS)).astype(np.float32) / 10
    if exact:
        conv, dense = (x.astype(np.float16).astype(np.float32) for x in (conv, dense))
    bias = np.linspace(-1, 1, CHANNELS, dtype=np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "c", "b"], ["i"]),
        helper.make_node("Relu", ["i"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "d"], ["y"]),
    ]
    sides = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 64, 5, 5]), ("y", [1, COLUMNS]))
    ]
    constants = [
        numpy_helper.from_array(array, name)
        for name, array in (("c", conv), ("b", bias), ("d", dense))
    ]
    graph = helper.make_graph(nodes, "m", sides[:1], sides[1:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return made, conv, dense


def expected(conv: np.ndarray, dense: np.ndarray, x: np.ndarray) -> np.ndarray:
    image = conv.reshape(CHANNELS, -1).astype(np.float64) @ x.ravel().astype(np.float64)
    image += np.linspace(-1, 1, CHANNELS, dtype=np.float32)
    return np.maximum(image, 0) @ dense.astype(np.float64)


@pytest.mark.parametrize("name", [*STORED])
def test_layers_compute_with_rounded_weights(name: str) -> None:
    made, *weights = model()
    x = np.random.default_rng(5).standard_normal((1, 64, 5, 5)).astype(np.float32)
    found = [storage.stored(w, STORED[name], axis) for axis, w in enumerate(weights)]
    again = [f.values.astype(np.float64) for f in found]
    if found[0].scales is not None:
        again[0] *= found[0].scales.reshape(-1, 1, 1, 1)
        again[1] *= found[1].scales
    compiled = tvm_blislike.compile(made, threads=1, weights=name, records="none")
    report = Report.from_json(compiled.explain().to_json())
    layers = [layer for layer in report.layers if layer.types]
    assert [layer.types[1] for layer in layers] == [STORED[name]] * 2
    assert [layer.weights_error for layer in layers] == [f.error for f in found]
    assert not re.findall(r"(?:call\w*|bl?)\s+\S*hfsf2", compiled.assembly())
    y = compiled.run({"x": x})["y"]
    wanted = expected(*again, x)
    assert np.abs(y - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_weights_of_sixteen_bits_are_stored_unasked() -> None:
    made, *weights = model(exact=True)
    compiled = tvm_blislike.compile(made, threads=1, records="none")
    layers = [layer for layer in compiled.explain().layers if layer.types]
    assert [(layer.types[1], layer.weights_error) for layer in layers] == [("float16", 0.0)] * 2
    x = np.random.default_rng(5).standard_normal((1, 64, 5, 5)).astype(np.float32)
    wanted = expected(*weights, x)
    assert np.abs(compiled.run({"x": x})["y"] - wanted).max() <= 1e-5 * np.abs(wanted).max()
    whole = tvm_blislike.compile(model()[0], threads=1, records="none")
    layers = [layer for layer in whole.explain().layers if layer.types]
    assert {layer.types[1] for layer in layers} == {"float32"}


@pytest.mark.parametrize("core", ["zen3", "zen4", "neoverse-n1"])
def test_only_layers_that_memory_bounds_are_stored_so(core: str) -> None:
    strategy = Strategy(Core.named(core), 1)
    for dtype in STORED.values():
        assert why_whole(strategy, GemmWorkload(1, 4096, 9216), Types.stored(dtype)) == ""
        many = why_whole(strategy, GemmWorkload(512, 512, 512), Types.stored(dtype))
        assert "memory does not bound it" in many
    many = Conv2dWorkload(1, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1))
    assert "memory does not bound it" in why_whole(strategy, many, Types.stored("bfloat16"))


def test_other_algorithms_refuse_them_with_the_reason() -> None:
    core = Core.named("zen4")
    types = Types.stored("bfloat16")
    conv = Conv2dWorkload(1, 64, 14, 14, 64, 3, 3, padding=(1, 1, 1, 1), types=types)
    able = {i.name for i in implementations("conv2d") if not i.applies(conv, core)}
    assert able == {"conv2d_direct"}


def test_the_option_names_its_types(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'int4'") as found:
        Constraints(weights="int4")
    assert "bf16, fp16, int8, fp8" in str(found.value.hint)
    onnx.save(model()[0], tmp_path / "m.onnx")
    sizes = {}
    for name in (None, "bf16", "int8"):
        library = tmp_path / f"{name}.so"
        compiled = tvm_blislike.compile(tmp_path / "m.onnx", threads=1, weights=name)
        compiled.export(library)
        sizes[name] = library.stat().st_size
    weights = 4 * (CHANNELS * 64 * 25 + CHANNELS * COLUMNS)
    assert sizes[None] - sizes["bf16"] > 0.4 * weights
    assert sizes[None] - sizes["int8"] > 0.65 * weights


def quantized(x: np.ndarray, columns: int) -> tuple[onnx.ModelProto, np.ndarray]:
    """Return two fully connected layers of 8 bits, the second one small, and what is right."""
    rng = np.random.default_rng(7)
    constants = {"s": np.float32(0.5), "z": np.uint8(128), "zw": np.int8(0)}
    values, nodes = np.clip(np.rint(x / 0.5) + 128, 0, 255), []
    nodes.append(helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q0"]))
    for n, (steps, width) in enumerate(((x.shape[1], columns), (columns, 12))):
        weights = rng.integers(-128, 128, (steps, width)).astype(np.int8)
        weights[0, :2] = -128, 127
        constants |= {f"w{n}": weights, f"sw{n}": np.float32(0.25 / np.sqrt(steps) / 64)}
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{n}", "s", "z"], [f"d{n}"]),
            helper.make_node("DequantizeLinear", [f"w{n}", f"sw{n}", "zw"], [f"k{n}"]),
            helper.make_node("MatMul", [f"d{n}", f"k{n}"], [f"y{n}"]),
            helper.make_node("QuantizeLinear", [f"y{n}", "s", "z"], [f"q{n + 1}"]),
        ]
        sums = (values.astype(np.int64) - 128) @ weights.astype(np.int64)
        values = np.clip(np.rint(sums * np.float64(constants[f"sw{n}"])) + 128, 0, 255)
    made = several_nodes(nodes, {"x": x}, constants)
    del made.graph.output[:]
    made.graph.output.append(onnx.ValueInfoProto(name="q2"))
    return made, values


@pytest.mark.skipif(native_core().isa.name not in ("avx2", "avx512"), reason="runs code of AVX2")
def test_weights_of_integers_are_bytes_where_memory_bounds_layers() -> None:
    """All values of both signs, and sums that are exact: rounding may tell but one step."""
    x = np.random.default_rng(8).normal(0, 40, (1, 1600)).astype(np.float32)
    made, wanted = quantized(x, 2000)
    compiled = tvm_blislike.compile(made, Core.named("x86-64-v3"), threads=1, records="none")
    layers = [layer for layer in compiled.explain().layers if layer.types]
    assert [layer.types[:3] for layer in layers] == [
        WORDS_BY_BYTES.product,
        MASKED.product,
    ]
    (ours,) = compiled.run({"x": x}).values()
    assert len(np.unique(ours)) > 6 and np.abs(ours - wanted).max() <= 1


@pytest.mark.parametrize("types", [WORDS, MASKED], ids=["words", "masked"])
def test_products_of_bytes_and_many_rows_keep_their_weights(types: Types) -> None:
    strategy = Strategy(Core.named("zen3"), 1)
    assert why_whole(strategy, GemmWorkload(1, 4096, 9216, types=types), WORDS_BY_BYTES) == ""
    many = why_whole(strategy, GemmWorkload(512, 512, 512, types=types), WORDS_BY_BYTES)
    assert "memory does not bound it" in many and "ms in int16" in many
    lacking = why_whole(
        Strategy(Core.named("zen4"), 1), GemmWorkload(1, 64, 64, types=types), WORDS_BY_BYTES
    )
    assert lacking
