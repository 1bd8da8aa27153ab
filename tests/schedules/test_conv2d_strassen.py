"""1x1 convolutions by seven products of half the size: images, strides, epilogues, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from conv_workloads import NATIVE, RUNNABLE
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx_runtime import exact_session

import tvm_blislike
from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.conv2d_strassen.config import ConvStrassenConfig
from tvm_blislike.cost_models.conv2d_strassen.product import product_of
from tvm_blislike.cost_models.gemm_strassen.candidates import kernels
from tvm_blislike.cost_models.gemm_strassen.config import LOOP_ORDERS
from tvm_blislike.hardware import Core
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_strassen.definition import IMPLEMENTATION
from tvm_blislike.tuning import operands
from tvm_blislike.tuning.kernels import CandidateGroup, build

OURS = IMPLEMENTATION.name


def layer(
    ci: int, size: tuple[int, int], co: int, stride: tuple[int, int] = (1, 1)
) -> Conv2dWorkload:
    return Conv2dWorkload(1, ci, *size, co, 1, 1, stride=stride)


@st.composite
def cases(draw: Any) -> tuple[Conv2dWorkload, ConvStrassenConfig, Core]:
    """Images of any size, even and odd; blocks of one tile and of several, cut and whole."""
    core = draw(st.sampled_from(RUNNABLE))
    lanes = core.lanes()
    ci, co = (2 * lanes * draw(st.integers(1, most)) for most in (3, 6))
    size = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    stride = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    w = layer(ci, size, co, stride)
    kernel = draw(st.sampled_from(list(kernels(product_of(w), core))))
    layout = f"NCHW{lanes}c"
    panels = co // 2 // kernel.nr
    config = ConvStrassenConfig(
        mr=kernel.mr,
        nr=kernel.nr,
        loop_order=draw(st.sampled_from(LOOP_ORDERS)),
        mc=kernel.mr * draw(st.integers(0, 4)),
        nc=kernel.nr * draw(st.sampled_from([0, *(n for n in range(1, 7) if panels % n == 0)])),
        prefetch=draw(st.integers(0, 1)),
        data_layout=layout,
        out_layout=layout,
    )
    return w, config, core


def error(w: Conv2dWorkload, config: ConvStrassenConfig, core: Core, threads: int) -> float:
    """Build and run; return the largest error over the largest result."""
    library = build(CandidateGroup(w, (config,), core, threads))
    data, weights = operands.operands(w)
    out = np.full(operands.result_shape(w, config), np.nan, "float32")
    packed = IMPLEMENTATION.pack(w, config, weights)
    values = (operands.in_layout(w, config.data_layout, data), packed, out)
    arguments = [tvm.runtime.tensor(np.ascontiguousarray(value)) for value in values]
    library["candidate_0"](*arguments)
    found = operands.from_layout(w, config, arguments[-1].numpy())
    wanted = operands.result(w, data, weights)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@given(cases(), st.sampled_from((1, 2)))
@examples(12)
def test_random_layers(case: Any, threads: int) -> None:
    w, config, core = case
    assert IMPLEMENTATION.applies(w, core) == ""
    allowed = 2 * IMPLEMENTATION.error_bound(w, config) + 1e-6
    assert error(w, config, core, threads) < allowed, (w, config)


def residual_block(channels: int, size: tuple[int, int]) -> onnx.ModelProto:
    """Return max(conv(y) + b + y, 0) of y = conv(x) + a."""
    rng = np.random.default_rng(0)
    found, nodes = [], []
    for data, result, bias in (("x", "y", "a"), ("y", "z", "b")):
        weights = rng.standard_normal((channels, channels, 1, 1)) / np.sqrt(channels)
        for name, array in ((f"w{bias}", weights), (bias, rng.standard_normal(channels))):
            found.append(numpy_helper.from_array(array.astype("float32"), name))
        nodes.append(helper.make_node("Conv", [data, f"w{bias}", bias], [result]))
    nodes += [
        helper.make_node("Add", ["z", "y"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["result"]),
    ]
    x, result = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, channels, *size))
        for name in ("x", "result")
    )
    made = helper.make_graph(nodes, "block", [x], [result], found)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("size", [(7, 7), (6, 8)])
@pytest.mark.parametrize("order", LOOP_ORDERS)
def test_what_is_fused_behind_it(size: tuple[int, int], order: str) -> None:
    """Bias, a residual and an activation, of odd numbers of pixels as well."""

    def override(workload: Conv2dWorkload) -> ConvStrassenConfig:
        start = IMPLEMENTATION.space(workload, NATIVE, 2).start
        kernel = next(k for k in kernels(product_of(workload), NATIVE) if k.mr > 4)
        return start.with_fields(mr=kernel.mr, nr=kernel.nr, loop_order=order, mc=2 * kernel.mr)

    model = residual_block(64, size)
    compiled = tvm_blislike.compile(model, threads=2, override=override, cache=False)
    layers = [each for each in compiled.explain().layers if each.kind == "conv2d"]
    assert [each.implementation for each in layers] == [OURS, OURS]
    assert [each.fused for each in layers] == [("add",), ("add", "add", "relu")]
    inputs = {"x": np.random.default_rng(1).standard_normal((1, 64, *size), np.float32)}
    (result,) = compiled.run(inputs).values()
    (wanted,) = exact_session(model).run(None, inputs)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (Conv2dWorkload(1, 64, 9, 9, 64, 3, 3), "only for 1x1"),
        (Conv2dWorkload(1, 64, 9, 9, 64, 1, 1, padding=(1, 1, 1, 1)), "without padding"),
        (Conv2dWorkload(1, 64, 9, 9, 64, 1, 1, groups=2), "groups"),
        (Conv2dWorkload(2, 64, 9, 9, 64, 1, 1), "several images"),
        (Conv2dWorkload(1, 48, 9, 9, 64, 1, 1), "half of 48 channels is no multiple of 16"),
        (Conv2dWorkload(1, 64, 9, 9, 48, 1, 1), "no halves of whole vectors"),
        (
            Conv2dWorkload(1, 64, 9, 9, 64, 1, 1, types=Types("uint8", "int8", "int32", "int32")),
            "only fp32",
        ),
    ],
)
def test_what_it_is_not_for(workload: Conv2dWorkload, reason: str) -> None:
    assert reason in IMPLEMENTATION.applies(workload, Core.named("zen4"))


def test_the_model_takes_it_for_many_channels_and_within_the_error() -> None:
    core, many, few = Core.named("zen4"), layer(1024, (14, 14), 512), layer(64, (28, 28), 64)
    assert Strategy(core, 1).choose(many).config.implementation == OURS
    assert Strategy(core, 1).choose(few).config.implementation != OURS
    exact = Strategy(core, 1, constraints=Constraints(max_error=0.0))
    assert exact.choose(many).config.implementation != OURS
