"""A step is left out where nothing that it is about occurs: there it would change nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from cases import case
from effort import EFFORT
from onnx import helper, numpy_helper
from small_models import float_input, make_model, small_network, two_convolutions

from tvm_blislike.errors import BlislikeError
from tvm_blislike.hardware import Core
from tvm_blislike.onnx.frontend import load
from tvm_blislike.passes.canonicalize import STEPS, Canonicalize
from tvm_blislike.passes.constants import TIDY
from tvm_blislike.passes.steps import SEVERAL_TYPES, occurring

GIVEN = Canonicalize(Core.named("zen4"))
# Random graphs of each test: with few operators each, so that most steps have nothing to do.
SEEDS, CHUNK = 60 * EFFORT, 20


def single(operator: str, shape: tuple[int, ...], *constants: np.ndarray, **attrs) -> object:
    """A model of one node of an input and constants."""
    names = [f"k{i}" for i in range(len(constants))]
    nodes = [helper.make_node(operator, ["x", *names], ["y"], **attrs)]
    weights = [numpy_helper.from_array(c, name) for c, name in zip(constants, names, strict=True)]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    return make_model(nodes, [float_input("x", list(shape))], [output], weights)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


MODELS = {
    "network": small_network(),
    "convolutions": two_convolutions(2),
    "signal": single("Conv", (1, 3, 9), ones(4, 3, 3)),
    "transposed": single("ConvTranspose", (1, 3, 5, 5), ones(3, 4, 2, 2), strides=[2, 2]),
    "rows": single("MatMul", (2, 3, 4), ones(4, 5)),
    "lrn": single("LRN", (1, 8, 4, 4), size=3),
    "lstm": single("LSTM", (5, 1, 4), ones(1, 16, 4), ones(1, 16, 4), hidden_size=4),
    "quotient": single("Div", (3, 4), ones(1)),
    "sign": single("Sign", (3, 4)),
    "softmax": single("Softmax", (3, 4)),
}


def differing(mod: tvm.IRModule, steps=STEPS) -> list[int]:
    """Run the steps of a module; return those left out that would have changed something."""
    found = []
    mod = TIDY(mod)
    for number, step in enumerate(steps):
        after = TIDY(step.make(GIVEN)(mod))
        if step.concerns(occurring(mod)):
            mod = after
        elif not tvm_ffi.structural_equal(after, mod):
            found.append(number)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_of_small_models(name: str) -> None:
    assert differing(load(MODELS[name]).module) == []


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_of_random_graphs(first: int) -> None:
    wrong, seen = {}, 0
    for seed in range(first, first + CHUNK):
        try:
            mod = load(case(seed).model).module
        except BlislikeError:
            continue  # refused by name
        seen += 1
        if found := differing(mod):
            wrong[seed] = found
    assert seen > CHUNK // 2
    assert not wrong


def test_a_step_of_a_wrong_trigger_is_told() -> None:
    about_nothing = [replace(step, about=({"relax.nothing"},)) for step in STEPS]
    # The importer's own operators, signals as images, a layer's rows.
    for name in ("network", "signal", "rows", "lrn", "lstm"):
        assert differing(load(MODELS[name]).module, about_nothing)


def test_every_step_but_one_is_left_out_somewhere() -> None:
    left_out = {
        number
        for model in MODELS.values()
        for number, step in enumerate(STEPS)
        if not step.concerns(occurring(load(model).module))
    }
    always = [number for number, step in enumerate(STEPS) if not step.about]
    assert len(always) == 1
    assert left_out == set(range(len(STEPS))) - set(always)


def test_what_occurs() -> None:
    found = occurring(load(small_network()).module)
    assert {"relax.nn.conv2d", "relax.nn.relu", "float32"} <= found
    assert not found & {SEVERAL_TYPES, "float16", "relax.nn.softmax"}
    half = single("Cast", (3, 4), to=onnx.TensorProto.FLOAT16)
    half.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    assert {SEVERAL_TYPES, "float16", "float32", "relax.astype"} <= occurring(load(half).module)
