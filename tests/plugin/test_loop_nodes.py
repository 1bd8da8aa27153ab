"""`Loop` and `Scan` against ONNX Runtime: counted, endless, ended by their state, in each other."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_runtime import exact_session
from rewrites import Arrays

import tvm_blislike
from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx.frontend import load

RANDOM = np.random.default_rng(9)
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
NODE, VALUE = helper.make_node, helper.make_tensor_value_info


def loop_body(scans: int, ends: bool = False) -> onnx.GraphProto:
    """Return a step: a = a + tanh(w a) x, which ends where the sum of a is beyond a limit."""
    nodes = [
        NODE("MatMul", ["a", "w"], ["p"]),
        NODE("Tanh", ["p"], ["t"]),
        NODE("Mul", ["t", "x"], ["m"]),
        NODE("Add", ["a", "m"], ["next"]),
        NODE("Cast", ["i"], ["number"], to=FLOAT),
        NODE("Mul", ["next", "number"], ["scaled"]),
    ]
    if ends:
        nodes += [
            NODE("ReduceSum", ["next"], ["sum"], keepdims=0),
            NODE("Less", ["sum", "limit"], ["goes"]),
        ]
    else:
        nodes.append(NODE("Identity", ["go"], ["goes"]))
    results = [VALUE("goes", BOOL, []), VALUE("next", FLOAT, [2, 4])]
    results += [VALUE("scaled", FLOAT, [2, 4]), VALUE("p", FLOAT, [2, 4])][:scans]
    inputs = [VALUE("i", INT64, []), VALUE("go", BOOL, []), VALUE("a", FLOAT, [2, 4])]
    return helper.make_graph(nodes, "step", inputs, results)


def loop_model(body: onnx.GraphProto, most: int | None, scans: int) -> onnx.ModelProto:
    """Return the model of a loop whose number of steps is an input where it is None."""
    inputs = [VALUE("a0", FLOAT, [2, 4]), VALUE("x", FLOAT, [2, 4])]
    weights = {
        "w": RANDOM.standard_normal((4, 4)).astype(np.float32) / 4,
        "limit": np.array(30, np.float32),
        "yes": np.array(True),
    }
    if most is None:
        inputs.append(VALUE("most", INT64, []))
    else:
        weights["most"] = np.array(most)
    names = ["y", "z1", "z2"][: 1 + scans]
    shapes = [[2, 4], [None, 2, 4], [None, 2, 4]]
    outputs = [VALUE(name, FLOAT, shape) for name, shape in zip(names, shapes, strict=False)]
    node = NODE("Loop", ["most", "yes", "a0"], names, "it", body=body)
    return model_of([node], inputs, outputs, weights)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: Arrays,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(a, name) for name, a in weights.items()]
    graph = helper.make_graph(nodes, "loops", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def assert_like_runtime(model: onnx.ModelProto, inputs: Arrays) -> None:
    ours = tvm_blislike.compile(model).run(inputs)
    expected = exact_session(model, optimized=True).run(None, inputs)
    for given, theirs in zip(ours.values(), expected, strict=True):
        assert given.shape == theirs.shape
        np.testing.assert_allclose(given, theirs, rtol=1e-4, atol=1e-4)


def data(*shape: int) -> np.ndarray:
    return RANDOM.random(shape).astype(np.float32)


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
@pytest.mark.parametrize("scans", [0, 2])
def test_counted_steps(steps: int, scans: int) -> None:
    model = loop_model(loop_body(scans), steps, scans)
    assert_like_runtime(model, {"a0": data(2, 4), "x": data(2, 4) / 10})


def test_no_steps_leave_the_state() -> None:
    inputs = {"a0": data(2, 4), "x": data(2, 4)}
    ours = tvm_blislike.compile(loop_model(loop_body(0), 0, 0)).run(inputs)
    np.testing.assert_array_equal(ours["y"], inputs["a0"])


@pytest.mark.parametrize("ends", [False, True])
def test_steps_of_run_time(ends: bool) -> None:
    model = loop_model(loop_body(0, ends), None, 0)
    compiled = tvm_blislike.compile(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for steps in (0, 1, 63, 64, 65, 1000):
        inputs = {"a0": data(2, 4), "x": data(2, 4) / 10, "most": np.array(steps)}
        ours, theirs = compiled.run(inputs)["y"], session.run(None, inputs)[0]
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("directions", [[0, 0], [1, 0], [1, 1]])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scans(directions: list[int], axis: int) -> None:
    shape = [3, 4]
    shape.insert(axis if axis >= 0 else 2, 9)
    body = helper.make_graph(
        [NODE("Add", ["s", "e"], ["n"]), NODE("Mul", ["n", "e"], ["r"])],
        "step",
        [VALUE("s", FLOAT, [3, 4]), VALUE("e", FLOAT, [3, 4])],
        [VALUE("n", FLOAT, [3, 4]), VALUE("r", FLOAT, [3, 4])],
    )
    attributes = {
        "num_scan_inputs": 1,
        "scan_input_axes": [axis],
        "scan_output_axes": [axis],
        "scan_input_directions": directions[:1],
        "scan_output_directions": directions[1:],
    }
    node = NODE("Scan", ["s0", "x"], ["y", "z"], "it", body=body, **attributes)
    inputs = [VALUE("s0", FLOAT, [3, 4]), VALUE("x", FLOAT, shape)]
    outputs = [VALUE("y", FLOAT, [3, 4]), VALUE("z", FLOAT, shape)]
    model = model_of([node], inputs, outputs, {})
    assert_like_runtime(model, {"s0": data(3, 4), "x": data(*shape)})


def test_products_of_steps_have_kernels() -> None:
    layers = tvm_blislike.compile(loop_model(loop_body(1), 50, 1)).explain().layers
    products = [layer for layer in layers if "matmul" in layer.name]
    assert products
    assert all(layer.implementation != "default rule" for layer in products)


def test_loops_inside_branches() -> None:
    loop = loop_model(loop_body(0), 5, 0)
    then = helper.make_graph(list(loop.graph.node), "then", [], list(loop.graph.output))
    other = helper.make_graph(
        [NODE("Neg", ["a0"], ["other"])], "else", [], [VALUE("other", FLOAT, [2, 4])]
    )
    node = NODE("If", ["c"], ["result"], then_branch=then, else_branch=other)
    inputs = [*loop.graph.input, VALUE("c", BOOL, [])]
    model = model_of([node], inputs, [VALUE("result", FLOAT, [2, 4])], {})
    model.graph.initializer.extend(loop.graph.initializer)
    for condition in (True, False):
        given = {"a0": data(2, 4), "x": data(2, 4), "c": np.array(condition)}
        assert_like_runtime(model, given)


def test_refusals(capfd: pytest.CaptureFixture[str]) -> None:
    counted = loop_model(loop_body(1), None, 1)
    with pytest.raises(UnsupportedOperatorError, match=r"Loop \(node 'it'\).*results of each step"):
        load(counted)
    growing = loop_model(loop_body(0), 3, 0)
    body = growing.graph.node[0].attribute[0].g
    body.node.append(NODE("Concat", ["next", "next"], ["longer"], axis=0))
    body.output[1].CopyFrom(VALUE("longer", FLOAT, [None, 4]))
    with pytest.raises(UnsupportedOperatorError, match=r"Loop \(node 'it'\).*changes shape"):
        load(growing)
    assert not capfd.readouterr().err
