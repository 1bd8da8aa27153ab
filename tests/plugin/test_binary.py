"""Binary networks: layers of signs count bits, exactly as the graph says."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import helper
from rewrites import Arrays, reference, several_nodes

import tvm_blislike
from tvm_blislike.cost_models.data_types import missing_types
from tvm_blislike.hardware import native_core
from tvm_blislike.model.types import BITS
from tvm_blislike.onnx.frontend import load
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.tvm_seams import bindings, dtype_name, functions, op_name

NATIVE = native_core()
pytestmark = pytest.mark.skipif(
    bool(missing_types(BITS, NATIVE)), reason="this machine runs no kernels of signs"
)
SAME = [1, 1, 1, 1]


class Network:
    """A binary network as it grows, from `x` onwards."""

    def __init__(self, seed: int, *shape: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.x = self.rng.standard_normal(shape).astype("float32")
        # Zeros are no signs.
        self.x[self.rng.random(shape) < 0.1] = 0
        self.nodes: list[onnx.NodeProto] = []
        self.constants: Arrays = {}

    def put(self, operator: str, *operands: str, **attributes: object) -> str:
        result = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, operands, [result], **attributes))
        return result

    def constant(self, value: np.ndarray, dtype: str = "float32") -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def signs(self, value: str, form: str) -> str:
        zero, one, minus = (self.constant(number) for number in (0, 1, -1))
        if form == "Sign":
            return self.put("Sign", value)
        if form == "larq":
            shifted = self.put("Add", self.put("Sign", value), self.constant(0.1))
            return self.put("Sign", shifted)
        if form == "Where":
            held = self.put("GreaterOrEqual", value, zero)
            return self.put("Where", held, one, minus)
        if form == "Where less":
            return self.put("Where", self.put("Less", value, zero), minus, one)
        held = self.put("Cast", self.put("Greater", value, zero), to=onnx.TensorProto.FLOAT)
        return self.put("Sub", self.put("Mul", held, self.constant(2)), one)

    def weights(self, *shape: int) -> str:
        return self.constant(self.rng.choice([-1, 1], shape))

    def norm(self, value: str, channels: int) -> str:
        rng = self.rng
        drawn = rng.normal(0, 1, (3, channels)), rng.uniform(0.5, 2, channels)
        scale, bias, mean = drawn[0] * [[1], [1], [9]]
        parts = (self.constant(part) for part in (scale, bias, mean, drawn[1] * 50))
        return self.put("BatchNormalization", value, *parts)

    def model(self, *results: str) -> onnx.ModelProto:
        model = several_nodes(self.nodes, {"x": self.x}, self.constants)
        del model.graph.output[:]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in results)
        return model


def counted(model: onnx.ModelProto) -> list[str]:
    """Operators of the model before layouts are chosen, those of bits only."""
    module = Canonicalize(NATIVE)(load(model).module)
    values = [b.value for _, func in functions(module) for b in bindings(func)]
    calls = [value for value in values if op_name(value)]
    return [op_name(c) for c in calls if dtype_name(c) in ("uint32", "uint8", "int32")]


def layers(model: onnx.ModelProto) -> int:
    names = counted(model)
    return names.count("relax.nn.conv2d") + names.count("relax.matmul")


def check(network: Network, result: str, expected_layers: int) -> None:
    model = network.model(result)
    (got,) = tvm_blislike.compile(model).run({"x": network.x}).values()
    np.testing.assert_array_equal(got, reference(model, network.x))
    assert layers(model) == expected_layers


FORMS = ["Sign", "larq", "Where", "Where less", "Cast"]


@pytest.mark.parametrize("form", FORMS)
def test_convolutions_of_every_form_of_signs_with_zeros_and_padding(form: str) -> None:
    network = Network(1, 1, 40, 7, 9)
    signs = network.signs("x", form)
    check(network, network.put("Conv", signs, network.weights(24, 40, 3, 3), pads=SAME), 1)


@pytest.mark.parametrize("form, rows", list(itertools.product(FORMS, [1, 7])))
def test_matrix_products_of_every_form_of_signs(form: str, rows: int) -> None:
    network = Network(2, rows, 100)
    signs = network.signs("x", form)
    bias = network.constant(np.arange(50))
    check(network, network.put("Gemm", signs, network.weights(50, 100), bias, transB=1), 1)


@pytest.mark.parametrize(
    "shape, options",
    [
        ((8, 64, 1, 1), {}),
        ((33, 64, 3, 3), {"strides": [2, 2], "pads": [1, 0, 2, 1]}),
        ((8, 64, 3, 3), {"dilations": [2, 2], "pads": [2, 2, 2, 2]}),
        ((64, 32, 3, 3), {"group": 2, "pads": SAME}),
    ],
)
@pytest.mark.parametrize("form", ["Sign", "Where"])
def test_other_convolutions(shape: tuple, options: dict, form: str) -> None:
    network = Network(3, 2, 64, 9, 8)
    signs = network.signs("x", form)
    counts = form != "Sign" or "group" not in options
    check(network, network.put("Conv", signs, network.weights(*shape), **options), int(counts))


@pytest.mark.parametrize("form", FORMS)
def test_normalization_between_two_layers_is_a_threshold(form: str) -> None:
    network = Network(4, 1, 64, 8, 8)
    signs = network.signs("x", "Where")
    first = network.put("Conv", signs, network.weights(48, 64, 3, 3), pads=SAME)
    signs = network.signs(network.norm(first, 48), form)
    result = network.put("Conv", signs, network.weights(16, 48, 3, 3), pads=SAME)
    check(network, result, 2)
    names = counted(network.model(result))
    # Counts become codes; floats of the first layer are not computed.
    assert names.count("relax.subtract") == 1
    assert "blislike.codes_up_to" in names


def test_a_relu_between_is_part_of_the_threshold() -> None:
    network = Network(5, 3, 96)
    first = network.put("MatMul", network.signs("x", "Where"), network.weights(96, 80))
    shifted = network.put("Sub", network.put("Relu", first), network.constant(np.full(80, 6.5)))
    signs = network.signs(shifted, "Sign")
    check(network, network.put("MatMul", signs, network.weights(80, 20)), 2)


def test_a_sum_that_may_be_the_threshold_keeps_its_zero() -> None:
    """Sums of 64 signs are even: some are 0, and so are their signs."""
    network = Network(6, 50, 64)
    first = network.put("MatMul", network.signs("x", "Where"), network.weights(64, 40))
    network_signs = network.put("Sign", first)
    assert (reference(network.model(network_signs), network.x) == 0).any()
    check(network, network.put("MatMul", network_signs, network.weights(40, 24)), 2)


def test_a_residual_reads_the_floats_of_a_layer() -> None:
    network = Network(7, 1, 32, 6, 6)
    signs = network.signs("x", "Where")
    first = network.put("Conv", signs, network.weights(32, 32, 3, 3), pads=SAME)
    normed = network.norm(first, 32)
    second = network.put(
        "Conv", network.signs(normed, "Where"), network.weights(32, 32, 3, 3), pads=SAME
    )
    model = network.model(network.put("Add", second, normed))
    (got,) = tvm_blislike.compile(model).run({"x": network.x}).values()
    np.testing.assert_allclose(got, reference(model, network.x), rtol=1e-5, atol=1e-5)
    assert layers(model) == 2


def test_sizes_of_weights_by_output_and_of_data_are_factors() -> None:
    network = Network(8, 1, 64, 5, 5)
    sizes = network.rng.uniform(0.1, 2, (16, 1, 1, 1))
    weights = network.constant(network.rng.choice([-1, 1], (16, 64, 1, 1)) * sizes)
    half = network.put("Mul", network.signs("x", "Where"), network.constant(0.5))
    model = network.model(network.put("Conv", half, weights))
    (got,) = tvm_blislike.compile(model).run({"x": network.x}).values()
    np.testing.assert_allclose(got, reference(model, network.x), rtol=1e-5, atol=1e-5)
    assert layers(model) == 1


def test_what_is_no_number_is_on_the_side_that_the_graph_says() -> None:
    for form in ("Where", "Where less", "Cast"):
        network = Network(9, 4, 64)
        network.x[::2, ::3] = np.nan
        check(network, network.put("MatMul", network.signs("x", form), network.weights(64, 20)), 1)


@pytest.mark.parametrize(
    "weights, reason",
    [
        (np.where(np.arange(640).reshape(64, 10) % 7, 1.0, 0.0), "weights of 0 are no signs"),
        (np.arange(1, 641).reshape(64, 10), "its weights are no signs of one size by output"),
    ],
)
def test_what_is_no_product_of_signs_stays_in_floats_and_is_named(weights, reason: str) -> None:
    network = Network(10, 5, 64)
    result = network.put("MatMul", network.signs("x", "Where"), network.constant(weights))
    check(network, result, 0)
    notes = tvm_blislike.compile(network.model(result)).explain().notes
    assert any(reason in note and "in float32" in note for note in notes)


def test_layers_that_no_implementation_may_compute_are_right_too() -> None:
    for operator, shape in (("MatMul", (96, 20)), ("Conv", (8, 64, 3, 3))):
        network = Network(11, *((5, 96) if operator == "MatMul" else (1, 64, 6, 6)))
        result = network.put(operator, network.signs("x", "Sign"), network.weights(*shape))
        model = network.model(result)
        without = ("gemm", "conv2d_direct")
        limits = tvm_blislike.Constraints(without=without)
        compiled = tvm_blislike.compile(model, constraints=limits)
        (got,) = compiled.run({"x": network.x}).values()
        np.testing.assert_array_equal(got, reference(model, network.x))
        assert layers(model) == 1


def residual_network(network: Network) -> str:
    """A first layer of floats, stages of binary layers with pools, a classifier of signs."""
    value = network.put("Conv", "x", network.constant(network.rng.normal(0, 1, (32, 3, 3, 3))))
    channels = 32
    for wanted, stride in ((32, 1), (64, 2), (64, 1), (128, 2)):
        signs = network.signs(network.norm(value, channels), "larq")
        weights = network.weights(wanted, channels, 3, 3)
        made = network.put("Conv", signs, weights, pads=SAME, strides=[stride, stride])
        value, channels = made, wanted
    flat = network.put("Flatten", network.signs(network.norm(value, channels), "Where"))
    return network.put("Gemm", flat, network.weights(128 * 16, 10), network.constant(np.zeros(10)))


def test_a_whole_network_is_exact() -> None:
    network = Network(12, 1, 3, 18, 18)
    check(network, residual_network(network), 5)
