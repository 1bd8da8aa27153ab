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
from tvm_blislike.onnx.frontend import load, prepared
from tvm_blislike.onnx.shapes import complete, constants_of, inferred

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


def recurrence(name: str, sequence: str, most: str = "") -> list[onnx.NodeProto]:
    """Return a loop over time as TensorFlow writes it: h = tanh(x[t] w + h), for every t.

    It counts its steps in its state and ends at `length`; weights and length are state, too.
    """
    nodes = [
        NODE("Gather", [sequence, "t"], ["now"], axis=0),
        NODE("MatMul", ["now", "weights"], ["p"]),
        NODE("Add", ["p", "h"], ["sum"]),
        NODE("Tanh", ["sum"], ["next_h"]),
        NODE("Identity", ["next_h"], ["kept_h"]),
        NODE("Add", ["t", "one"], ["next_t"]),
        NODE("Cast", ["next_t"], ["step"], to=FLOAT),
        NODE("Cast", ["last"], ["limit"], to=FLOAT),
        NODE("Less", ["step", "limit"], ["goes"]),
    ]
    state = [VALUE("t", TensorProto.INT32, []), VALUE("h", FLOAT, ["rows", 4])]
    kept = [VALUE("last", TensorProto.INT32, []), VALUE("weights", FLOAT, [4, 4])]
    inputs = [VALUE("i", INT64, []), VALUE("go", BOOL, []), *state, *kept]
    results = [VALUE("next_t", TensorProto.INT32, []), VALUE("next_h", FLOAT, ["rows", 4])]
    results = [VALUE("goes", BOOL, []), *results, *kept, VALUE("kept_h", FLOAT, ["rows", 4])]
    body = helper.make_graph(nodes, "step", inputs, results)
    made = [f"{name}_{place}" for place in range(4)]
    return [
        NODE("Shape", [sequence], [f"{name}_sizes"], end=1),
        NODE("Squeeze", [f"{name}_sizes"], [f"{name}_size"]),
        NODE("Cast", [f"{name}_size"], [f"{name}_length"], to=TensorProto.INT32),
        NODE(
            "Loop",
            [most, "yes", "zero", "h0", f"{name}_length", "w"],
            [*made, name],
            f"{name} loop",
            body=body,
        ),
    ]


def recurrent_model(most: int | None, steps: int) -> onnx.ModelProto:
    """Return two of them, the second over the results of the first, reversed."""
    limit = "" if most is None else "most"
    nodes = [
        *recurrence("first", "x", limit),
        NODE("Slice", ["first", "last", "begin", "axis", "back"], ["reversed"]),
        *recurrence("second", "reversed"),
        NODE("Shape", ["second"], ["sizes"], start=1),
        NODE("Concat", ["rest", "sizes"], ["shape"], axis=0),
        NODE("Reshape", ["second", "shape"], ["y"]),
        NODE("ReduceSum", ["first_3"], ["sum_of_weights"], keepdims=0),
    ]
    weights = {
        "yes": np.array(True),
        "zero": np.array(0, np.int32),
        "one": np.array(1, np.int32),
        "w": RANDOM.standard_normal((4, 4)).astype(np.float32) / 4,
        "h0": np.zeros((2, 4), np.float32),
        "most": np.array(most or 0),
        "last": np.array([-1]),
        "begin": np.array([-1000]),
        "axis": np.array([0]),
        "back": np.array([-1]),
        "rest": np.array([1, -1]),
    }
    outputs = [
        VALUE("y", FLOAT, [1, None]),
        VALUE("sum_of_weights", FLOAT, []),
        VALUE("first_1", FLOAT, [2, 4]),
        VALUE("first", FLOAT, [None, 2, 4]),
    ]
    return model_of(nodes, [VALUE("x", FLOAT, [steps, 2, 4])], outputs, weights)


@pytest.mark.parametrize("steps", [1, 9, 70])
@pytest.mark.parametrize("most", [None, 5, 2**62])
def test_steps_that_the_state_counts(steps: int, most: int | None) -> None:
    assert_like_runtime(recurrent_model(most, steps), {"x": data(steps, 2, 4)})


def test_what_no_step_changes_is_read_from_outside() -> None:
    proto, _, _ = prepared(recurrent_model(None, 9), {})
    loops = [node for node in proto.graph.node if node.op_type == "Loop"]
    assert [len(node.input) for node in loops] == [4, 4]  # steps, condition, t and h
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    assert [int(constants[node.input[0]]) for node in loops] == [9, 9]
    layers = tvm_blislike.compile(recurrent_model(None, 9)).explain().layers
    products = [layer for layer in layers if "matmul" in layer.name]
    assert products
    assert all(layer.implementation != "default rule" for layer in products)


def choice(condition: str, result: str, *branches: list[onnx.NodeProto]) -> onnx.NodeProto:
    """Return an `If` whose branches give what their last nodes do."""
    graphs = [
        helper.make_graph(nodes, "branch", [], [onnx.ValueInfoProto(name=nodes[-1].output[0])])
        for nodes in branches
    ]
    settings = dict(zip(("then_branch", "else_branch"), graphs, strict=True))
    return NODE("If", [condition], [result], result, **settings)


def model_of_choices(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    """Return a model of a sequence x of unknown sizes and a flag."""
    weights = {
        "yes": np.array(True),
        "zero": np.array(0, np.int32),
        "one": np.array(1, np.int32),
        "w": RANDOM.standard_normal((4, 4)).astype(np.float32) / 4,
        "five by four": RANDOM.standard_normal((5, 4)).astype(np.float32),
        "h0": np.zeros((2, 4), np.float32),
        "nine": np.array([9]),
    }
    inputs = [VALUE("x", FLOAT, ["t", 2, "k"]), VALUE("c", BOOL, [])]
    return model_of(nodes, inputs, [VALUE("y", FLOAT, None)], weights)


def operators(graph: onnx.GraphProto) -> list[str]:
    return [node.op_type for node in graph.node]


@pytest.mark.parametrize("steps", [9, 5])
def test_steps_decide_a_choice_behind_one_that_is_ruled_out(steps: int) -> None:
    """The shape of `first` follows from the one branch that can be, what follows from `first`."""
    again = [*recurrence("second", "first"), NODE("Exp", ["second"], ["e"])]
    nodes = [
        choice(
            "c", "a", [NODE("Neg", ["x"], ["n"])], [NODE("MatMul", ["x", "five by four"], ["p"])]
        ),
        *recurrence("first", "a"),
        NODE("Shape", ["first"], ["n_first"], end=1),
        NODE("Equal", ["n_first", "nine"], ["is_nine"]),
        NODE("Squeeze", ["is_nine"], ["are_nine"]),
        choice("are_nine", "y", again, [NODE("Abs", ["first"], ["m"])]),
    ]
    model, shape = model_of_choices(nodes), (steps, 2, 4)
    proto, _, _ = prepared(model, {"x": shape})
    assert operators(proto.graph).count("If") == 1
    assert operators(proto.graph).count("Loop") == (2 if steps == 9 else 1)
    inputs = {"x": data(*shape), "c": np.array(True)}
    (found,) = tvm_blislike.compile(model, shapes={"x": shape}).run(inputs).values()
    (expected,) = exact_session(model, optimized=True).run(None, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("c", [True, False])
def test_steps_that_the_state_counts_inside_a_branch(c: bool) -> None:
    then = [*recurrence("all", "x"), NODE("ReduceSum", ["all"], ["s"], keepdims=0)]
    model = model_of_choices(
        [choice("c", "y", then, [NODE("ReduceMax", ["x"], ["m"], keepdims=0)])]
    )
    inputs = {"x": data(9, 2, 4), "c": np.array(c)}
    (found,) = tvm_blislike.compile(model, shapes={"x": (9, 2, 4)}).run(inputs).values()
    (expected,) = exact_session(model, optimized=True).run(None, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_loops_without_a_first_result_have_shapes_of_their_own() -> None:
    nodes = []
    for rows in "ab":
        body = helper.make_graph(
            [NODE("Neg", ["s"], ["n"]), NODE("Identity", ["go"], ["goes"])],
            "step",
            [VALUE("i", INT64, []), VALUE("go", BOOL, []), VALUE("s", FLOAT, ["rows", 4])],
            [VALUE("goes", BOOL, []), *(VALUE("n", FLOAT, ["rows", 4]) for _ in range(2))],
        )
        nodes.append(NODE("Loop", ["most", "", rows], ["", f"all_{rows}"], body=body))
    nodes.append(NODE("Concat", ["all_a", "all_b"], ["y"], axis=1))
    inputs = [VALUE("a", FLOAT, [2, 4]), VALUE("b", FLOAT, [3, 4])]
    model = model_of(nodes, inputs, [VALUE("y", FLOAT, None)], {"most": np.array(6)})
    types = inferred(model, {}, constants_of(model))
    assert complete(types.output[0].type.tensor_type) == (6, 5, 4)


def states(results: list[str], scans: list[str]) -> onnx.ModelProto:
    """Return a loop of the states a and b, which become `results`."""
    body = helper.make_graph(
        [NODE("Add", ["a", "b"], ["sum"]), NODE("Identity", ["go"], ["goes"])],
        "step",
        [VALUE("i", INT64, []), VALUE("go", BOOL, []), *(VALUE(n, FLOAT, [3]) for n in "ab")],
        [VALUE("goes", BOOL, []), *(VALUE(n, FLOAT, [3]) for n in [*results, *scans])],
    )
    names = ["y", "z", *(f"all_{name}" for name in scans)]
    node = NODE("Loop", ["most", "", "a0", "b0"], names, "it", body=body)
    outputs = [VALUE(name, FLOAT, None) for name in names]
    inputs = [VALUE(name, FLOAT, [3]) for name in ("a0", "b0")]
    return model_of([node], inputs, outputs, {"most": np.array(3)})


@pytest.mark.parametrize("results", [["a", "b"], ["b", "a"], ["a", "a"], ["sum", "b"]])
@pytest.mark.parametrize("scans", [[], ["sum"]])
def test_states_that_are_kept_and_exchanged(results: list[str], scans: list[str]) -> None:
    assert_like_runtime(states(results, scans), {"a0": data(3), "b0": data(3)})


def test_a_state_that_grows_is_told_nothing_of_by_its_beginning() -> None:
    model = loop_model(loop_body(0), 3, 0)
    body = model.graph.node[0].attribute[0].g
    body.node.append(NODE("Concat", ["next", "next"], ["longer"], axis=0))
    body.output[1].CopyFrom(VALUE("longer", FLOAT, [None, 4]))
    types = inferred(model, {}, constants_of(model))
    (y,) = types.output
    assert complete(y.type.tensor_type) is None


def test_loops_that_never_end_are_refused() -> None:
    model = recurrent_model(None, 5)
    body = next(node for node in model.graph.node if node.op_type == "Loop").attribute[0].g
    body.node[-1].input[1] = "step"
    body.node[-1].op_type = "Equal"
    with pytest.raises(UnsupportedOperatorError, match=r"Loop \(node 'first loop'\)|not known"):
        load(model)


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
