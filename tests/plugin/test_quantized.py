"""Models of QuantizeLinear and DequantizeLinear: steps are exactly those of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rewrites import computed, one_node, runtime, runtime_results, several_nodes

import tvm_blislike

RNG = np.random.default_rng(23)
INTEGERS = ["int8", "uint8", "int16", "uint16"]


def halves(scale: float, dtype: str, count: int = 400) -> np.ndarray:
    """Return multiples of half a scale around the range of a type: every second one is a tie."""
    info = np.iinfo(dtype)
    whole = np.r_[np.arange(-count, count), info.min * 2 - 5 : info.min * 2 + 5]
    whole = np.r_[whole, info.max * 2 - 5 : info.max * 2 + 5, -(2**40), 2**40]
    return (whole * (scale / 2)).astype("float32")


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("scale", [0.25, 1.0, 0.0123456])
@pytest.mark.parametrize("zero", [0, 3])
def test_ties_go_to_even_numbers_and_ranges_saturate(dtype: str, scale: float, zero: int) -> None:
    x = halves(scale, dtype)
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])
    constants = {"scale": np.float32(scale), "zero": np.array(zero, dtype)}
    model = one_node(node, x, constants, opset=21)
    np.testing.assert_array_equal(computed(model, x), runtime(model, x))


def test_infinities_saturate() -> None:
    x = np.array([np.inf, -np.inf, 3e38, -3e38], "float32")
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])
    model = one_node(node, x, {"scale": np.float32(0.5), "zero": np.int8(-3)})
    np.testing.assert_array_equal(computed(model, x), [127, -128, 127, -128])


def test_division_is_division() -> None:
    # Products with the reciprocal round otherwise here and there.
    scale = np.float32(0.0117)
    x = ((np.arange(-127, 127) + 0.5).astype("float32")[:, None] * scale).repeat(64, 1)
    x = np.nextafter(x, RNG.choice([-1e9, 1e9], x.shape).astype("float32"))
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])
    model = one_node(node, x, {"scale": scale, "zero": np.int8(0)})
    expected = np.rint(x / scale).astype("int8")
    assert (expected != np.rint(x * (1 / scale)).astype("int8")).any()
    np.testing.assert_array_equal(computed(model, x), expected)


@pytest.mark.parametrize("first", ["Relu", "Tanh", "Sqrt", "Asinh"])
@pytest.mark.parametrize("scale", [0.11, 0.07])
def test_one_rounding_inside_of_another(first: str, scale: float) -> None:
    x = np.abs(RNG.standard_normal((3, 5, 17))).astype("float32")
    steps = [["s", "z"], ["t", "w"]]
    nodes = [helper.make_node(first, ["x"], ["d0"])]
    for i, own in enumerate(steps):
        nodes += [
            helper.make_node("QuantizeLinear", [f"d{i}", *own], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", *own], [f"d{i + 1}"]),
        ]
    constants = {"s": np.float32(0.11), "z": np.int8(9), "t": np.float32(scale), "w": np.int8(6)}
    model = several_nodes(nodes, {"x": x}, constants)
    del model.graph.output[:-1]
    np.testing.assert_allclose(computed(model, x), runtime(model, x), atol=1e-6)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("zero", [9, 6])
def test_terms_that_only_an_addition_reads(zero: int, again: bool) -> None:
    """Rounded twice by the same steps or once, and read with their zero point or another one."""
    x, y = (RNG.integers(-600, 600, (3, 5, 17)).astype("float32") / 4 for _ in "xy")
    nodes = [
        helper.make_node("QuantizeLinear", ["y", "s", "z"], ["y1"]),
        helper.make_node("DequantizeLinear", ["y1", "s", "z"], ["y2"]),
        helper.make_node("Relu", ["x"], ["x0"]),
        helper.make_node("QuantizeLinear", ["x0", "s", "z"], ["x1"]),
    ]
    if again:
        nodes += [
            helper.make_node("DequantizeLinear", ["x1", "s", "z"], ["x2"]),
            helper.make_node("QuantizeLinear", ["x2", "s", "z"], ["x3"]),
        ]
    nodes += [
        helper.make_node("DequantizeLinear", ["x3" if again else "x1", "s", "w"], ["x4"]),
        helper.make_node("Add", ["x4", "y2"], ["sum"]),
        helper.make_node("QuantizeLinear", ["sum", "t", "z"], ["q"]),
    ]
    constants = {"s": np.float32(0.5), "t": np.float32(2), "z": np.int8(9), "w": np.int8(zero)}
    model = several_nodes(nodes, {"x": x, "y": y}, constants)
    del model.graph.output[:-1]
    found = tvm_blislike.compile(model).run({"x": x, "y": y})["q"]
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x, "y": y})
    np.testing.assert_array_equal(found, expected)


def test_steps_that_a_product_of_sixteen_bits_reads() -> None:
    """One number, named where it is divided, times a vector of weights."""
    x = RNG.standard_normal(31).astype("float32")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("MatMul", ["d", "b"], ["y"]),
    ]
    weights = RNG.standard_normal((31, 5)).astype("float32")
    constants = {"s": np.float32(0.02), "z": np.int8(-9), "b": weights}
    model = several_nodes(nodes, {"x": x}, constants)
    del model.graph.output[:-1]
    for precision in ("fast", "fp32"):
        assert tvm_blislike.compile(model, "zen4", precision=precision).explain().layers
    (found,) = tvm_blislike.compile(model, precision="fast").run({"x": x}).values()
    np.testing.assert_allclose(found, runtime(model, x), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("core", ["native", "x86-64-v3"])
def test_kernels_of_constants(core: str) -> None:
    """A table of steps and a product of bytes, both of constants: left to the machine's kernels."""
    x = RNG.standard_normal((3, 9)).astype("float32")
    given = RNG.standard_normal((3, 9)).astype("float32")
    weights = RNG.integers(-100, 100, (9, 5)).astype("int8")
    steps = {"s": np.float32(0.0217), "z": np.uint8(120), "t": np.float32(0.05), "w": np.int8(4)}
    nodes = [
        helper.make_node("QuantizeLinear", ["k", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "t", "w"], ["mq"]),
        helper.make_node("DequantizeLinear", ["mq", "t", "w"], ["md"]),
        helper.make_node("DequantizeLinear", ["b", "s"], ["bd"]),
        helper.make_node("MatMul", ["d", "bd"], ["p"]),
        helper.make_node("QuantizeLinear", ["p", "t", "w"], ["pq"]),
        helper.make_node("DequantizeLinear", ["pq", "t", "w"], ["pd"]),
        helper.make_node("Add", ["x", "md"], ["y"]),
    ]
    model = several_nodes(nodes, {"x": x}, {"k": given, "b": weights, **steps})
    shown = [value for value in model.graph.output if value.name in ("pd", "y")]
    del model.graph.output[:]
    model.graph.output.extend(shown)
    found = tvm_blislike.compile(model, core).run({"x": x})
    for one, expected in zip(found.values(), runtime_results(model, x), strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-6)


def test_sums_of_quantized_constants() -> None:
    x = RNG.standard_normal((2, 3)).astype("float32")
    nodes = [
        helper.make_node("DequantizeLinear", ["k", "s"], ["d"]),
        helper.make_node("ReduceSum", ["d", "axes"], ["r"], keepdims=0),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    constants = {"k": np.int8([[1, 2, 3], [4, 5, -6]]), "s": np.float32(0.02)}
    model = several_nodes(nodes, {"x": x}, {**constants, "axes": np.array([0])})
    del model.graph.output[:-1]
    np.testing.assert_allclose(computed(model, x), runtime(model, x), rtol=1e-6)


@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1, -2])
@pytest.mark.parametrize("operator", ["QuantizeLinear", "DequantizeLinear"])
def test_scales_along_an_axis(operator: str, axis: int | None) -> None:
    shape = (3, 4, 5)
    count = shape[1 if axis is None else axis]
    constants = {
        "scale": RNG.uniform(0.1, 2, count).astype("float32"),
        "zero": RNG.integers(-9, 9, count).astype("int8"),
    }
    attributes = {} if axis is None else {"axis": axis}
    node = helper.make_node(operator, ["x", "scale", "zero"], ["y"], **attributes)
    if operator == "QuantizeLinear":
        x = (RNG.standard_normal(shape) * 90).astype("float32")
    else:
        x = RNG.integers(-128, 128, shape).astype("int8")
    model = one_node(node, x, constants)
    np.testing.assert_array_equal(computed(model, x), runtime(model, x))


@pytest.mark.parametrize("dtype", [*INTEGERS, "int32"])
@pytest.mark.parametrize("zero", [True, False])
def test_dequantizing(dtype: str, zero: bool) -> None:
    info = np.iinfo(dtype)
    x = np.r_[RNG.integers(info.min, info.max, 500, endpoint=True), info.min, info.max]
    x = x.astype(dtype)
    constants = {"scale": np.float32(0.0123), "zero": np.array(0 if dtype == "int32" else 5, dtype)}
    operands = ["x", "scale", "zero"] if zero else ["x", "scale"]
    model = one_node(helper.make_node("DequantizeLinear", operands, ["y"]), x, constants, opset=21)
    np.testing.assert_array_equal(computed(model, x), runtime(model, x))


@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
def test_scales_of_run_time(shift: float) -> None:
    x = (RNG.standard_normal((6, 50)) + shift).astype("float32")
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    model = one_node(node, x)
    ours = list(tvm_blislike.compile(model).run({"x": x}).values())
    theirs = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(runtime(model, x), ours[0])
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


class Chain:
    """A model of quantized operators, one after the other.

    Scales are powers of two and weights small, so that sums are exact in whatever order, and
    elements to quantize often lie in the middle of two steps.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.quantized: list[str] = []

    def put(self, operator: str, operands: list[str], **attributes: object) -> str:
        result = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, operands, [result], **attributes))
        return result

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def steps(self, value: str, scale: float) -> str:
        """Quantize and dequantize a tensor."""
        dtype = self.rng.choice(["int8", "uint8"])
        zero = self.rng.integers(0, 9) if dtype == "int8" else self.rng.integers(100, 140)
        operands = [self.constant(np.float32(scale)), self.constant(np.array(zero, dtype))]
        quantized = self.put("QuantizeLinear", [value, *operands])
        self.quantized.append(quantized)
        return self.put("DequantizeLinear", [quantized, *operands])

    def weights(self, dtype: str, *shape: int, axis: int = 0) -> str:
        """Return dequantized weights, with a scale for each of their first axis."""
        most = 100 if dtype == "int32" else 7
        scales = self.rng.choice([0.125, 0.25, 0.5], shape[axis]).astype("float32")
        numbers = self.rng.integers(-most, most, shape).astype(dtype)
        operands = [self.constant(numbers), self.constant(scales)]
        return self.put("DequantizeLinear", operands, axis=axis)

    def convolution(self, value: str, channels: int, outputs: int, kernel: int) -> str:
        weights = self.weights("int8", outputs, channels, kernel, kernel)
        bias = self.weights("int32", outputs)
        return self.put("Conv", [value, weights, bias], pads=[kernel // 2] * 4)


def network(seed: int) -> tuple[Chain, np.ndarray]:
    """Return convolutions with a skipped one, pooling and products, and an input."""
    chain = Chain(seed)
    x = chain.rng.integers(-200, 200, (1, 5, 8, 8)).astype("float32") / 8
    first = chain.steps("x", 0.25)
    value = chain.steps(chain.put("Relu", [chain.convolution(first, 5, 16, 3)]), 4.0)
    inner = chain.steps(chain.convolution(value, 16, 16, 1), 32.0)
    value = chain.steps(chain.put("Add", [value, inner]), 32.0)
    value = chain.steps(chain.put("Clip", [value, chain.constant(np.float32(-512))]), 16.0)
    value = chain.put("MaxPool", [value], kernel_shape=[2, 2], strides=[2, 2])
    value = chain.steps(chain.convolution(chain.steps(value, 32.0), 16, 24, 3), 512.0)
    value = chain.steps(chain.put("GlobalAveragePool", [value]), 256.0)
    value = chain.put("Flatten", [value])
    product = chain.put("MatMul", [value, chain.weights("int8", 24, 12, axis=1)])
    value = chain.steps(chain.put("Add", [product, chain.weights("int32", 12)]), 1024.0)
    result = chain.put("Gemm", [value, chain.weights("int8", 7, 12)], transB=1)
    chain.steps(result, 4096.0)
    return chain, x


@pytest.mark.parametrize("seed", range(2))
def test_chains_take_the_same_steps(seed: int) -> None:
    chain, x = network(seed)
    everything = several_nodes(chain.nodes, {"x": x}, chain.constants)
    del everything.graph.output[:-1]
    for name in chain.quantized:
        everything.graph.output.append(onnx.ValueInfoProto(name=name))
    expected = runtime_results(everything, x)
    results = tvm_blislike.compile(everything).run({"x": x})
    for name, array in zip(results, expected, strict=True):
        np.testing.assert_array_equal(results[name], array, err_msg=name)
        assert np.unique(array).size > 3, "all elements lie beyond the range"
    # Without the tensors in between as results, operators fuse across them.
    del everything.graph.output[1:]
    (result,) = tvm_blislike.compile(everything).run({"x": x}).values()
    np.testing.assert_array_equal(result, expected[0])


def test_rounding_errors_move_nothing_but_ties() -> None:
    # Sums of other scales depend on their order. A step may differ from ONNX Runtime's only where
    # the sum lies in the middle of two, as far as single precision can tell.
    x = RNG.standard_normal((1, 40, 20, 20)).astype("float32")
    constants = {
        "scale": np.float32(0.0173),
        "zero": np.uint8(117),
        "weights": RNG.integers(-127, 127, (48, 40, 3, 3)).astype("int8"),
        "scales": RNG.uniform(1e-4, 2e-4, 48).astype("float32"),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["quantized"]),
        helper.make_node("DequantizeLinear", ["quantized", "scale", "zero"], ["image"]),
        helper.make_node("DequantizeLinear", ["weights", "scales"], ["kernel"], axis=0),
        helper.make_node("Conv", ["image", "kernel"], ["sum"]),
        helper.make_node("QuantizeLinear", ["sum", "scale", "zero"], ["steps"]),
    ]
    model = several_nodes(nodes, {"x": x}, constants)
    theirs = dict(zip([v.name for v in model.graph.output], runtime_results(model, x), strict=True))
    ours = tvm_blislike.compile(model).run({"x": x})
    np.testing.assert_array_equal(ours["quantized"], theirs["quantized"])
    own = np.rint(ours["sum"] / constants["scale"]) + constants["zero"]
    np.testing.assert_array_equal(ours["steps"], np.clip(own, 0, 255))
    exact = theirs["sum"] / constants["scale"]
    from_ties = np.abs(np.abs(exact - np.floor(exact)) - 0.5)
    differ = ours["steps"] != theirs["steps"]
    assert not differ[from_ties > 1e-4].any()
    assert differ.mean() < 1e-3


def test_opsets_before_13_have_one_scale() -> None:
    x = halves(0.5, "uint8")
    node = helper.make_node("QuantizeLinear", ["x", "scale"], ["y"])
    model = one_node(node, x, {"scale": np.float32(0.5)}, opset=10)
    result = computed(model, x)
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, runtime(model, x))


def test_half_precision() -> None:
    x = (RNG.standard_normal((4, 500)) * 20).astype("float16")
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"])
    back = helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"])
    constants = {"scale": np.float16(0.3), "zero": np.int8(4)}
    model = several_nodes([node, back], {"x": x}, constants)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    results = tvm_blislike.compile(model).run({"x": x})
    for result, array in zip(results.values(), runtime_results(model, x), strict=True):
        assert result.dtype == array.dtype
        np.testing.assert_array_equal(result, array)
