"""Products of 16 bits in place of fp32: which layers have them, their errors, what a user sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_blislike
from tvm_blislike.choose import precision_choice
from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.data_types import missing_types
from tvm_blislike.errors import UsageError
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.types import BFLOAT_DOT, FLOAT32, PRECISIONS, Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload

NATIVE, ZEN4 = native_core(), Core.named("zen4")
LARGEST = {"bf16": 6e-3, "fp16": 2e-3}
RUNS = [
    pytest.param(name, marks=pytest.mark.skipif(bool(reason), reason=reason))
    for name in LARGEST
    for reason in [missing_types(PRECISIONS[name][0], NATIVE)]
]


def model(channels: int = 24, size: int = 12) -> onnx.ModelProto:
    """Two convolutions, a residual addition, a pooling, a product; the addition is shown, too."""
    rng, float_ = np.random.default_rng(7), TensorProto.FLOAT

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        spread = np.sqrt(2 / np.prod(shape[1:]))
        return numpy_helper.from_array((spread * rng.standard_normal(shape)).astype("f4"), name)

    c, pads = channels, {"pads": [1] * 4}
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], **pads),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], **pads),
        helper.make_node("Add", ["c1", "r0"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], group=c, **pads),
        helper.make_node("GlobalAveragePool", ["c2"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w3"], ["y"], transB=1),
    ]
    parameters = [
        *(weights("w0", c, 3, 3, 3), weights("b0", c)),
        *(weights("w1", c, c, 3, 3), weights("w2", c, 1, 3, 3), weights("w3", 50, c)),
    ]
    inputs = [helper.make_tensor_value_info("x", float_, [1, 3, size, size])]
    shapes = {"y": [1, 50], "sum": [1, c, size, size]}
    outputs = [helper.make_tensor_value_info(name, float_, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, parameters)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    return made


def compiled(precision: str, **limits: float) -> tvm_blislike.CompiledModel:
    constraints = Constraints(**limits) if limits else None
    options = {"constraints": constraints, "records": "none", "precision": precision}
    return tvm_blislike.compile(model(), threads=1, **options)


def outputs(made: tvm_blislike.CompiledModel) -> list[np.ndarray]:
    x = np.random.default_rng(3).standard_normal((1, 3, 12, 12)).astype("f4")
    return list(made.run({"x": x}).values())


@pytest.mark.parametrize("precision", RUNS)
def test_models_are_computed_within_the_error(precision: str) -> None:
    made = compiled(precision)
    for ours, exact in zip(outputs(made), outputs(compiled("fp32")), strict=True):
        error = np.linalg.norm(ours - exact) / np.linalg.norm(exact)
        assert 0 < error <= LARGEST[precision]
    layers = [layer for layer in made.explain().layers if layer.types]
    narrow = [layer for layer in layers if Types(*layer.types) in PRECISIONS[precision]]
    # A depthwise convolution has kernels of fp16, but none of bf16.
    assert len(narrow) == {"bf16": 3, "fp16": 4}[precision]
    assert all(0 < layer.weights_error <= LARGEST[precision] for layer in narrow)
    left = any("in float32: conv 1x24x12x12" in note for note in made.explain().notes)
    assert left == (precision == "bf16")


@pytest.mark.parametrize("precision", RUNS)
def test_values_between_narrow_layers_are_rounded_in_the_kernel_that_makes_them(
    precision: str,
) -> None:
    layers = compiled(precision).explain().layers
    assert [layer for layer in layers if "relu" in layer.name and "cast" in layer.name]
    alone = [layer.workload for layer in layers if layer.name.rstrip("0123456789") == "cast"]
    # The input is nobody's result.
    assert all(workload.startswith("1x3x12x12") for workload in alone)


def test_precisions_that_allow_nothing_change_nothing() -> None:
    exact = outputs(compiled("fp32"))
    for made in (compiled("fast", max_error=1e-4), compiled("bf16", max_error=1e-4)):
        for ours, expected in zip(outputs(made), exact, strict=True):
            np.testing.assert_array_equal(ours, expected)


def test_cores_without_products_say_so() -> None:
    made = tvm_blislike.compile(model(), "skylake-avx512", threads=1, precision="bf16")
    notes = " ".join(made.explain().notes)
    assert "skylake-avx512 has no products of bf16" in notes


def test_fast_takes_what_is_predicted_to_be_fastest() -> None:
    layer = Conv2dWorkload(1, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1))
    for core in (ZEN4, Core.named("sapphirerapids")):
        strategy = Strategy(core, 1, constraints=Constraints(precision="fast"))
        seconds = {
            types: strategy.choose(replace(layer, types=types)).seconds
            for types in (FLOAT32, *precision_choice.offered(core, "fast"))
        }
        types, reason = precision_choice.types_of(strategy, layer)
        fastest = min(seconds, key=seconds.get)
        assert types == fastest or "as fast" in reason


def test_errors_above_the_limit_leave_types_out() -> None:
    layer = GemmWorkload(64, 64, 64)
    for limit, expected in ((1e-2, BFLOAT_DOT), (1e-3, FLOAT32)):
        limits = Constraints(max_error=limit, precision="bf16")
        assert (
            precision_choice.types_of(Strategy(ZEN4, 1, constraints=limits), layer)[0] == expected
        )


def test_unknown_precisions_are_named() -> None:
    with pytest.raises(
        UsageError, match=r"nothing is computed in 'int8'\n.* fp32, bf16, fp16, fast"
    ):
        tvm_blislike.compile(model(), precision="int8")


def test_a_core_that_starts_few_products_of_bfloat16_computes_in_others() -> None:
    """Emerald Rapids without its tiles: half of the products of fp32, a quarter of float16's."""
    tiles = ("amx_tile", "amx_int8", "amx_bf16")
    whole = Core.named("emeraldrapids")
    core = replace(whole, features=tuple(f for f in whole.features if f not in tiles))
    layer = Conv2dWorkload(1, 512, 28, 28, 256, 1, 1)
    seconds = {
        starts: Strategy(replace(core, bf16_per_cycle=starts), 1)
        .choose(replace(layer, types=BFLOAT_DOT))
        .seconds
        for starts in (0.5, 2.0)
    }
    assert seconds[0.5] > 3 * seconds[2.0]
    assert core.bf16_per_cycle == 0.5
    fast = Strategy(core, 1, constraints=Constraints(precision="fast"))
    assert precision_choice.types_of(fast, layer) == (Types.of("float16"), "")
    without = replace(core, features=tuple(f for f in core.features if f != "fp16"))
    fast = Strategy(without, 1, constraints=Constraints(precision="fast"))
    types, reason = precision_choice.types_of(fast, layer)
    assert types == FLOAT32 and "fp32 is predicted to be as fast" in reason
