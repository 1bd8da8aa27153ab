"""Models whose convolutions are forced to Winograd, from ONNX to the result."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import reference
from onnx import helper, numpy_helper
from small_models import float_input, make_model

import tvm_blislike
from tvm_blislike import Config, Conv2dWorkload
from tvm_blislike.hardware import native_core
from tvm_blislike.model.workload import Workload
from tvm_blislike.schedules import get_implementation

CORE = native_core()
RNG = np.random.default_rng(4)
IMAGE = RNG.standard_normal((2, 32, 15, 13), dtype=np.float32)
WEIGHTS = {
    "square": RNG.standard_normal((48, 32, 3, 3), dtype=np.float32) / 17,
    "wide": RNG.standard_normal((48, 48, 1, 7), dtype=np.float32) / 18,
    "tall": RNG.standard_normal((48, 48, 5, 1), dtype=np.float32) / 15,
}
BIAS = RNG.standard_normal(48, dtype=np.float32)


def forced(order: str, threads: int):
    """An override: the fastest configuration of this loop order."""
    implementation = get_implementation("conv2d_winograd")

    def override(workload: Workload) -> Config | None:
        if not isinstance(workload, Conv2dWorkload):
            return None
        configs = implementation.configs(workload, CORE, threads)
        return min(
            (c for c in configs if c.loop_order == order),
            key=lambda c: implementation.estimate(workload, c, CORE, threads).seconds,
        )

    return override


def model(constant: bool) -> onnx.ModelProto:
    """3x3 with bias and ReLU, 1x7, 5x1, and the first result added at the end."""
    nodes = [
        helper.make_node("Conv", ["image", "square", "bias"], ["c"], pads=[1, 0, 0, 1]),
        helper.make_node("Relu", ["c"], ["first"]),
        helper.make_node("Conv", ["first", "wide"], ["second"], pads=[0, 3, 0, 3]),
        helper.make_node("Conv", ["second", "tall"], ["third"], pads=[2, 0, 2, 0]),
        helper.make_node("Add", ["third", "first"], ["sum"]),
        helper.make_node("LeakyRelu", ["sum"], ["out"], alpha=0.25),
    ]
    inputs = [float_input("image", list(IMAGE.shape))]
    constants = [numpy_helper.from_array(BIAS, "bias")]
    for name, weights in WEIGHTS.items():
        if constant:
            constants.append(numpy_helper.from_array(weights, name))
        else:
            inputs.append(float_input(name, list(weights.shape)))
    return make_model(nodes, inputs, [float_input("out", [2, 48, 14, 12])], constants)


def expected() -> np.ndarray:
    first = reference.conv2d(IMAGE, WEIGHTS["square"], BIAS, (1, 1), (1, 0, 0, 1))
    first = reference.relu(first)
    second = reference.conv2d(first, WEIGHTS["wide"], None, (1, 1), (0, 3, 0, 3))
    third = reference.conv2d(second, WEIGHTS["tall"], None, (1, 1), (2, 0, 2, 0))
    total = first + third
    return np.where(total > 0, total, 0.25 * total)


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "input"])
@pytest.mark.parametrize("order, threads", [("tiles", 1), ("channels", 2)])
def test_weights_known_at_compile_time_or_not(order: str, threads: int, constant: bool) -> None:
    compiled = tvm_blislike.compile(
        model(constant), threads=threads, override=forced(order, threads)
    )
    layers = [layer.implementation for layer in compiled.explain().layers]
    assert layers.count("conv2d_winograd") == 3
    inputs = {"image": IMAGE} if constant else {"image": IMAGE, **WEIGHTS}
    out, wanted = compiled.run(inputs)["out"], expected()
    assert out.shape == wanted.shape
    assert np.abs(out - wanted).max() < 2e-5 * np.abs(wanted).max()


def test_weights_of_one_run_are_not_those_of_the_next() -> None:
    compiled = tvm_blislike.compile(model(False), threads=1, override=forced("tiles", 1))
    zeros = {name: np.zeros_like(weights) for name, weights in WEIGHTS.items()}
    first = compiled.run({"image": IMAGE, **WEIGHTS})["out"]
    nothing = compiled.run({"image": IMAGE, **zeros})["out"]
    np.testing.assert_allclose(
        nothing, np.broadcast_to(reference.relu(BIAS)[None, :, None, None], nothing.shape)
    )
    np.testing.assert_array_equal(compiled.run({"image": IMAGE, **WEIGHTS})["out"], first)
