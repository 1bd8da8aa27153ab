"""NaN and infinities: what ONNX Runtime computes with them, and at no cost in the kernels."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from relax_graphs import conv, graph
from tvm import relax
from tvm.relax import op

import tvm_blislike
from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.pipeline import compile_module

RNG = np.random.default_rng(2)
SHAPE = (2, 6, 5, 7)
NUMBER = np.float32(0.3)
EACH = np.linspace(-1, 1, 6, dtype="float32").reshape(6, 1, 1)


def model(
    operator: str, *constants: np.ndarray, inputs: int = 1, opset: int = 18, **attributes: object
) -> onnx.ModelProto:
    given = [f"x{i}" for i in range(inputs)]
    known = [f"c{i}" for i in range(len(constants))]
    node = helper.make_node(operator, [*given, *known], ["y"], name="the node", **attributes)
    dtype = TensorProto.INT64 if operator.startswith("Arg") else TensorProto.FLOAT
    made = helper.make_graph(
        [node],
        operator,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in given],
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(c, name) for name, c in zip(known, constants, strict=True)],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(made, opset_imports=opsets, ir_version=8)


def data(*special: float) -> np.ndarray:
    """Normal numbers, some of them replaced, one channel and one row of them entirely."""
    x = RNG.standard_normal(SHAPE).astype("float32")
    for value in special:
        x[RNG.random(SHAPE) < 0.1] = value
    x[1, 2], x[0, 4, 3] = special[0], special[-1]
    return x


def check(made: onnx.ModelProto, *cases: tuple[np.ndarray, ...]) -> None:
    """Compile a model once, and compare all cases with ONNX Runtime."""
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    compiled = tvm_blislike.compile(made, threads=1)
    for arrays in cases:
        feeds = {f"x{i}": array for i, array in enumerate(arrays)}
        (expected,) = session.run(None, feeds)
        actual = compiled.run(feeds)["y"]
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)


def full(value: float) -> np.ndarray:
    return np.full(SHAPE, value, "float32")


ELEMENTWISE = {
    "Relu": ((), {}),
    "LeakyRelu": ((), {}),
    "PRelu": ((EACH,), {}),
    "Clip": ((np.float32(-0.5), np.float32(0.5)), {}),
    "HardSigmoid": ((), {}),
    "HardSwish": ((), {}),
    "Elu": ((), {}),
    "Selu": ((), {}),
    "Sign": ((), {}),
    "Max": ((EACH,), {}),
    "Min": ((EACH, NUMBER), {}),
    "Softmax": ((), {"axis": -1}),
}


@pytest.mark.parametrize("operator", ELEMENTWISE)
def test_elementwise_operators(operator: str) -> None:
    constants, attributes = ELEMENTWISE[operator]
    made = model(operator, *constants, **attributes)
    check(made, (data(np.nan, np.inf, -np.inf),))


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_extrema_of_several_tensors(operator: str) -> None:
    arrays = data(np.nan, np.inf), data(-np.inf, np.nan), data(np.inf, np.nan)
    check(model(operator, inputs=3), arrays)


@pytest.mark.parametrize("alpha", [1.0, 0.0, -2.0])
def test_thresholded_relu_of_infinities_is_zero_or_infinite(alpha: float) -> None:
    check(model("ThresholdedRelu", alpha=alpha), (data(np.inf, -np.inf),))


AXES = [None, [-1], [3, 1], [0, 1, 2, 3]]


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("operator", ["ReduceLogSumExp", "ReduceMax", "ReduceMin"])
def test_reductions_of_infinities(operator: str, axes: list[int] | None, keepdims: int) -> None:
    constants = () if axes is None else (np.array(axes, "int64"),)
    made = model(operator, *constants, keepdims=keepdims)
    check(made, (data(np.inf, -np.inf),), (data(-np.inf),), (full(-np.inf),), (full(np.inf),))


@pytest.mark.parametrize("keepdims", [0, 1])
def test_sums_of_powers_with_axes_as_attributes(keepdims: int) -> None:
    for axes in ({}, {"axes": [1, -1]}):
        made = model("ReduceLogSumExp", opset=13, keepdims=keepdims, **axes)
        check(made, (data(np.inf, -np.inf),), (data(0.5),))


def test_sums_of_powers_keep_nan_and_large_numbers() -> None:
    made = model("ReduceLogSumExp", np.array([3], "int64"))
    check(made, (data(np.nan),), (data(0.0) * np.float32(1e37),))


def test_errors_still_name_the_operator_of_the_model() -> None:
    made = model("ReduceLogSumExp", inputs=1)
    made.graph.node[0].input.append("axes")
    made.graph.input.append(helper.make_tensor_value_info("axes", TensorProto.INT64, [1]))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"] * 4))
    with pytest.raises(tvm_blislike.errors.UnsupportedOperatorError, match="the node"):
        tvm_blislike.compile(made)


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_places_of_infinities_exist(operator: str, axis: int, keepdims: int) -> None:
    made = model(operator, axis=axis, keepdims=keepdims)
    infinite = [(full(value),) for value in (-np.inf, np.inf, np.nan)]
    check(made, (data(np.inf, -np.inf),), *infinite)


def test_no_place_is_that_of_nan() -> None:
    x = data(np.nan)
    x[1, 2] = 0
    x[:, :, :, 0] = -9
    actual = tvm_blislike.compile(model("ArgMax", axis=-1, keepdims=0)).run({"x0": x})["y"]
    np.testing.assert_array_equal(actual, np.where(np.isnan(x), -np.inf, x).argmax(axis=-1))


# --- kernels ----------------------------------------------------------------

STEPS: dict[str, Callable[[relax.BlockBuilder, relax.Expr], relax.Expr]] = {
    "relu": lambda b, y: op.nn.relu(y),
    "clip": lambda b, y: op.minimum(
        b.emit(op.maximum(y, relax.const(np.float32(0)))), relax.const(np.float32(6))
    ),
}
IMPLEMENTATIONS = ["conv2d_direct", "conv2d_im2col", "conv2d_winograd"]


def behind_conv(steps: str) -> tvm.IRModule:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(op.add(conv(b, x, 32), relax.const(np.ones((1, 32, 1, 1), "float32"))))
        return STEPS[steps](b, y)

    return graph(function, (1, 32, 14, 14))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("steps", STEPS)
def test_nan_goes_through_convolutions(steps: str, implementation: str) -> None:
    strategy = Strategy(native_core(), 1, constraints=Constraints(only=(implementation,)))
    executable, _ = compile_module(behind_conv(steps), strategy)
    x = RNG.standard_normal((1, 32, 14, 14)).astype("float32")
    x[0, 3, 6, 7] = np.nan
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](tvm.runtime.tensor(x)).numpy()
    assert np.isnan(result[:, :, 5:8, 6:9]).all()
    # Winograd spreads it over the tiles that read it.
    near = 6 if implementation == "conv2d_winograd" else 1
    far = np.ones((14, 14), bool)
    far[max(0, 6 - near) : 7 + near, max(0, 7 - near) : 8 + near] = False
    assert np.isfinite(result[:, :, far]).all()


@pytest.mark.parametrize("core", ["sapphirerapids", "haswell", "cortex-a76", "cortex-a53"])
@pytest.mark.parametrize("steps", STEPS)
def test_one_instruction_for_each_maximum(steps: str, core: str) -> None:
    """No comparison and no blend beside them: as many as without NaN in mind."""

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(op.matmul(x, relax.const(np.ones((8, 96), "float32"))))
        return STEPS[steps](b, b.emit(op.add(y, relax.const(np.ones(96, "float32")))))

    executable, _ = compile_module(graph(function, (28, 8)), Strategy(Core.named(core), 1))
    libraries = [m for m in (executable.mod, *executable.mod.imports) if m.kind == "llvm"]
    code = "\n".join(library.inspect_source("asm") for library in libraries)
    (kernel,) = re.findall(r"^\w*gemm\w*_compute_:\n(.*?)^\.Lfunc_end", code, re.M | re.S)
    largest = re.findall(r"^\t(?:fmax|vmaxps)\s", kernel, re.M)
    smallest = re.findall(r"^\t(?:fmin|vminps)\s", kernel, re.M)
    assert largest and len(smallest) == (len(largest) if steps == "clip" else 0)
    arm, x86 = r"fmaxnm|fminnm|fcm\w+|bif|bit|bsl|bic", r"vcmp\w*ps|vblend\w*|vandn?ps"
    assert not re.findall(rf"^\t(?:{arm}|{x86})\s", kernel, re.M)
