"""Branches of `If` that sizes decide for, or rule out."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from rich.console import Console

import tvm_blislike
from tvm_blislike.cli.overview import print_overview
from tvm_blislike.errors import InputError, ModelError, UnsupportedOperatorError
from tvm_blislike.onnx.alternatives import folded
from tvm_blislike.onnx.graphs import all_nodes

RANDOM = np.random.default_rng(7)
FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
NODE, VALUE = helper.make_node, helper.make_tensor_value_info
WIDE = RANDOM.standard_normal((6, 4)).astype(np.float32)
Arrays = dict[str, np.ndarray]


def branch(nodes: list[onnx.NodeProto], weights: Arrays | None = None) -> onnx.GraphProto:
    """Return a graph whose results are all those of its last node."""
    tensors = [numpy_helper.from_array(a, name) for name, a in (weights or {}).items()]
    results = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output]
    return helper.make_graph(nodes, "branch", [], results, tensors)


def choice(
    condition: str, then: onnx.GraphProto, other: onnx.GraphProto, *results: str, name: str = "it"
) -> onnx.NodeProto:
    return NODE("If", [condition], list(results), name, then_branch=then, else_branch=other)


def model_of(
    nodes: list[onnx.NodeProto], constants: Arrays | None = None, results: tuple[str, ...] = ("y",)
) -> onnx.ModelProto:
    """Return a model of a matrix x of unknown sizes and of two flags."""
    inputs = [VALUE("x", FLOAT, ["n", "k"]), VALUE("c", BOOL, []), VALUE("d", BOOL, [])]
    tensors = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    outputs = [VALUE(name, FLOAT, [None]) for name in results]
    graph = helper.make_graph(nodes, "choices", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def operators(model: onnx.ModelProto, shape: tuple[int, ...]) -> list[str]:
    """Return the operators of a folded model, those of branches, too."""
    before = model.SerializeToString(deterministic=True)
    made, _ = folded(model, {"x": shape, "c": (), "d": ()}, owned=False)
    assert model.SerializeToString(deterministic=True) == before
    return [node.op_type for node in all_nodes(made.graph)]


def inputs(shape: tuple[int, ...], c: bool = True, d: bool = True) -> Arrays:
    x = RANDOM.standard_normal(shape).astype(np.float32)
    return {"x": x, "c": np.array(c), "d": np.array(d)}


def compiled(model: onnx.ModelProto, shape: tuple[int, ...]) -> tvm_blislike.CompiledModel:
    return tvm_blislike.compile(model, shapes={"x": shape})


def assert_like_reference(
    model: onnx.ModelProto, made: tvm_blislike.CompiledModel, arrays: Arrays
) -> None:
    expected = ReferenceEvaluator(model).run(None, arrays)
    found = made.run({spec.name: arrays[spec.name] for spec in made.inputs})
    for mine, theirs in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


# --- decided by sizes -------------------------------------------------------------------------

SIZES = [
    NODE("Shape", ["x"], ["sizes"]),
    NODE("Gather", ["sizes", "zero"], ["n"]),
    NODE("Equal", ["n", "one"], ["is_one"]),
]
NUMBERS = {"zero": np.array(0), "one": np.array(1)}


@pytest.mark.parametrize("n", [1, 3])
def test_a_branch_that_sizes_decide_for_takes_the_place_of_its_node(n: int) -> None:
    then = branch([NODE("Squeeze", ["x", "axes"], ["s"])], {"axes": np.array([0])})
    other = branch([NODE("ReduceSum", ["x", "axes"], ["s"], keepdims=0)], {"axes": np.array([0])})
    nodes = [*SIZES, choice("is_one", then, other, "i"), NODE("Neg", ["i"], ["y"])]
    model = model_of(nodes, NUMBERS)
    wanted = "Squeeze" if n == 1 else "ReduceSum"
    assert operators(model, (n, 4)) == [wanted, "Identity", "Neg"]
    assert_like_reference(model, compiled(model, (n, 4)), inputs((n, 4)))


def test_tensors_of_the_same_name_in_branches_stay_apart() -> None:
    def same(operator: str, row: int) -> onnx.GraphProto:
        inner = branch([NODE("Exp", ["t"], ["deep"])])
        nodes = [NODE(operator, ["x"], ["t"]), choice("c", inner, inner, "u")]
        return branch([*nodes, NODE("Add", ["u", "w"], ["r"])], {"w": WIDE[row]})

    nodes = [
        *SIZES,
        choice("is_one", same("Neg", 0), same("Abs", 1), "a"),
        choice("is_one", same("Abs", 2), same("Neg", 3), "b"),
        NODE("Sub", ["a", "b"], ["y"]),
    ]
    model = model_of(nodes, NUMBERS)
    assert operators(model, (3, 4)).count("If") == 2
    assert_like_reference(model, compiled(model, (3, 4)), inputs((3, 4)))


def test_a_choice_follows_from_what_another_makes() -> None:
    """The size of `a` is known only once the first one's branches are."""
    rows = [NODE("Shape", ["x"], ["sizes"]), NODE("Reshape", ["x", "flat"], ["f"])]
    flat = {"flat": np.array([-1])}
    then, other = branch([*rows, NODE("Exp", ["f"], ["p"])], flat), branch([*rows[1:]], flat)
    nodes = [
        choice("c", then, other, "a", name="first"),
        NODE("Shape", ["a"], ["sizes"]),
        NODE("Size", ["sizes"], ["rank"]),
        NODE("Equal", ["rank", "one"], ["is_vector"]),
        choice(
            "is_vector",
            branch([NODE("Neg", ["a"], ["v"])]),
            branch([NODE("Strange", ["a"], ["w"])]),
            "y",
            name="second",
        ),
    ]
    model = model_of(nodes, NUMBERS)
    assert "Strange" not in operators(model, (3, 4))
    for c in (True, False):
        made, arrays = compiled(model, (3, 4)), inputs((3, 4), c)
        expected = np.exp(arrays["x"]) if c else arrays["x"]
        (found,) = made.run({spec.name: arrays[spec.name] for spec in made.inputs}).values()
        np.testing.assert_allclose(found, -expected.ravel(), rtol=1e-5)


def test_sizes_inside_a_branch_follow_from_what_another_choice_makes() -> None:
    """Inside, nothing is computed ahead before the sizes of `a` are known."""
    goal = [NODE("Shape", ["x"], ["of_x"]), NODE("ReduceProd", ["of_x"], ["goal"])]
    then = branch([*goal, NODE("Reshape", ["x", "goal"], ["t"])])
    other = branch([*goal, NODE("Reshape", ["x", "goal"], ["e"]), NODE("Neg", ["e"], ["m"])])
    count = [NODE("Size", ["a"], ["n"]), NODE("Reshape", ["n", "one"], ["row"])]
    flat = branch([*count, NODE("Reshape", ["a", "row"], ["f"])], {"one": np.array([1])})
    nodes = [
        choice("c", then, other, "a", name="first"),
        choice("d", flat, flat, "y", name="second"),
    ]
    model = model_of(nodes)
    assert not {"Shape", "Size", "ReduceProd"} & {*operators(model, (3, 4))}
    for c in (True, False):
        assert_like_reference(model, compiled(model, (3, 4)), inputs((3, 4), c))


@pytest.mark.parametrize("c", [True, False])
def test_sizes_are_computed_ahead_inside_branches(c: bool) -> None:
    """Inside: x of n rows and k columns becomes k and n, by arithmetic of sizes."""
    turn = [
        NODE("Shape", ["x"], ["inner"]),
        NODE("Gather", ["inner", "turned"], ["goal"]),
        NODE("Reshape", ["x", "goal"], ["r"]),
    ]
    then = branch(turn, {"turned": np.array([1, 0])})
    other = branch([NODE("Transpose", ["x"], ["t"], perm=[1, 0])])
    model = model_of([choice("c", then, other, "y")])
    assert sorted(operators(model, (3, 4))) == ["If", "Reshape", "Transpose"]
    assert_like_reference(model, compiled(model, (3, 4)), inputs((3, 4), c))


def test_what_a_branch_computes_for_nobody_is_left_out() -> None:
    unread = [NODE("Strange", ["x"], ["s"]), NODE("Exp", ["s"], ["e"]), NODE("Neg", ["x"], ["n"])]
    model = model_of([choice("c", branch(unread), branch([NODE("Abs", ["x"], ["a"])]), "y")])
    assert sorted(operators(model, (3, 4))) == ["Abs", "If", "Neg"]


# --- ruled out by sizes -----------------------------------------------------------------------


def by_width(narrow: int = 5) -> onnx.ModelProto:
    """Return a model whose branches take rows of 6, or of another width, and each two results."""
    branches = []
    for width in (6, narrow):
        weights = {"w": RANDOM.standard_normal((width, 4)).astype(np.float32)}
        nodes = [
            NODE("MatMul", ["x", "w"], ["p"], f"of_{width}"),
            NODE("Split", ["p"], ["a", "b"], f"halves_{width}", axis=1),
        ]
        branches.append(branch(nodes, weights))
    results = [NODE("Neg", ["l"], ["y"]), NODE("Exp", ["r"], ["z"])]
    return model_of([choice("c", *branches, "l", "r"), *results], results=("y", "z"))


@pytest.mark.parametrize("width", [6, 5])
def test_the_other_branch_is_compiled(width: int) -> None:
    model = by_width()
    made, fits = compiled(model, (3, width)), width == 6
    assert_like_reference(model, made, inputs((3, width), c=fits))
    which = "else" if fits else "then"
    taken = inputs((3, width), c=not fits)
    other = 5 if fits else 6
    said = rf"the {which} branch of If \(node 'it'\) cannot be computed at these sizes: "
    said += rf"MatMul \(node 'of_{other}'\) of 3x{width}, {other}x4: "
    for _ in range(2):
        with pytest.raises(InputError, match=said):
            made.run({spec.name: taken[spec.name] for spec in made.inputs})
    assert_like_reference(model, made, inputs((3, width), c=fits))


def test_recorded_runs_raise_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the branch is taken before any run was recorded, or after it."""
    model = by_width()
    made = compiled(model, (3, 6))
    runner = made.runner()
    for fits in (False, True, False, False, True):
        arrays = inputs((3, 6), c=fits)
        given = {spec.name: arrays[spec.name] for spec in made.inputs}
        for run in (runner.run, made.run):
            if not fits:
                with pytest.raises(InputError, match="the else branch of If"):
                    run(given)
                continue
            expected = ReferenceEvaluator(model).run(None, arrays)
            for mine, theirs in zip(run(given).values(), expected, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(made._machine, "started", object())  # no machine
    assert all(run(given) for run in (runner.run, made.run))


def test_each_size_of_a_library_has_its_branch() -> None:
    model = by_width()
    made = tvm_blislike.compile(model, shapes={"x": (3, (5, 6))})
    for width, c in ((5, True), (6, True), (5, False), (6, False)):
        arrays = inputs((3, width), c)
        if c == (width == 6):
            assert_like_reference(model, made, arrays)
        else:
            with pytest.raises(InputError, match=rf"cannot be computed .* of 3x{width}, "):
                made.run({spec.name: arrays[spec.name] for spec in made.inputs})


def test_onnx_runtime_takes_the_same_branches() -> None:
    session = onnxruntime.InferenceSession(
        by_width().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = {item.name for item in session.get_inputs()}
    for width in (6, 5):
        for c in (True, False):
            arrays = {k: v for k, v in inputs((3, width), c).items() if k in names}
            if c == (width == 6):
                assert session.run(None, arrays)
            else:
                with pytest.raises(Exception, match="MatMul"):
                    session.run(None, arrays)


def test_explain_names_the_branch() -> None:
    report = compiled(by_width(), (3, 6)).explain()
    (said,) = report.impossible
    assert "the else branch of If (node 'it') cannot be computed at these sizes" in said
    assert "'of_5'" in said
    assert said in report.notes
    assert not [layer for layer in report.layers if "impossible" in layer.name]
    file = io.StringIO()
    print_overview(Console(file=file, width=100), report, "it.onnx")
    assert f"left out {said}" in " ".join(file.getvalue().split())
    assert not compiled(by_width(6), (3, 6)).explain().impossible


def test_a_kept_library_raises_the_same(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    compiled(by_width(), (3, 6)).export(path)
    arrays = inputs((3, 6), c=False)
    loaded = tvm_blislike.CompiledModel.load(path)
    with pytest.raises(InputError, match="the else branch of If"):
        loaded.run({spec.name: arrays[spec.name] for spec in loaded.inputs})


def nested(inner: onnx.NodeProto) -> onnx.ModelProto:
    other = branch([NODE("Tanh", ["x"], ["t"])])
    return model_of([choice("c", branch([inner]), other, "y", name="outer")])


def product(width: int) -> onnx.GraphProto:
    return branch([NODE("MatMul", ["x", "w"], ["p"], f"of_{width}")], {"w": WIDE[:width]})


@pytest.mark.parametrize("c", [True, False])
def test_branches_inside_branches(c: bool) -> None:
    flat = branch([NODE("Sigmoid", ["x"], ["s"])])
    model = nested(choice("d", product(5), flat, "i", name="inner"))
    made = compiled(model, (3, 6))
    assert_like_reference(model, made, inputs((3, 6), c, d=False))
    arrays = inputs((3, 6), c=True, d=True)
    with pytest.raises(InputError, match=r"the then branch of If .node 'inner'"):
        made.run({spec.name: arrays[spec.name] for spec in made.inputs})


def test_a_choice_without_a_way_rules_out_the_branch_around_it() -> None:
    model = nested(choice("d", product(5), product(4), "i", name="inner"))
    made = compiled(model, (3, 6))
    assert_like_reference(model, made, inputs((3, 6), c=False))
    arrays = inputs((3, 6), c=True)
    said = r"the then branch of If .node 'outer'.*neither.*'inner'.*'of_5'.*'of_4'"
    with pytest.raises(InputError, match=said):
        made.run({spec.name: arrays[spec.name] for spec in made.inputs})


def test_a_model_without_a_way_is_refused() -> None:
    model = model_of([choice("c", product(5), product(4), "y")])
    with pytest.raises(ModelError, match=r"neither branch of If .node 'it'.*'of_5'.*'of_4'"):
        compiled(model, (3, 6))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (NODE("Strange", ["x"], ["s"], "odd"), "Strange .node 'odd'"),
        (NODE("Reshape", ["x", "goal"], ["s"], "odd"), "'odd'.*'goal' is known at run time only"),
    ],
)
def test_what_is_merely_not_supported_is_refused_as_elsewhere(
    fault: onnx.NodeProto, said: str
) -> None:
    goal = [NODE("Shape", ["x"], ["sizes"]), NODE("Cast", ["d"], ["number"], to=TensorProto.INT64)]
    goal.append(NODE("Mul", ["sizes", "number"], ["goal"]))
    # Behind it sizes are not known, so that nothing is proved: 6 columns may be what they are.
    after = NODE("MatMul", ["s", "w"], ["p"])
    then, other = branch([fault, after], {"w": WIDE}), branch([NODE("MatMul", ["x", "w"], ["q"])])
    model = model_of([*goal, choice("c", then, other, "y")], {"w": WIDE})
    with pytest.raises(UnsupportedOperatorError, match=said):
        compiled(model, (3, 6))
