"""Models that take several sizes: each as if it were compiled for that size alone."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from small_models import float_input, make_model, small_network, small_reference
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike.cli.app import app
from tvm_blislike.cli.options import parse_shapes
from tvm_blislike.errors import InputError, UsageError
from tvm_blislike.onnx.inputs import random_inputs
from tvm_blislike.onnx.open_sizes import frozen, sizes_of

Shapes = dict[str, object]


def compiled(proto: onnx.ModelProto, shapes: Shapes) -> tvm_blislike.CompiledModel:
    return tvm_blislike.compile(proto, shapes=shapes, threads=1)


def attention(heads: int = 2) -> onnx.ModelProto:
    """Rows of 16, each of which reads all of them: (batch, rows, 16) to (batch, rows, 16)."""
    rng = np.random.default_rng(5)
    weights = [
        numpy_helper.from_array(rng.standard_normal((16, 16)).astype("float32") / 4, name)
        for name in ("q", "k", "v")
    ]
    weights.append(numpy_helper.from_array(np.array([0, 0, heads, 16 // heads]), "split"))
    weights.append(numpy_helper.from_array(np.array([0, 0, 16]), "join"))
    nodes = []
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            helper.make_node("MatMul", ["x", name], [f"{name}x"]),
            helper.make_node("Reshape", [f"{name}x", "split"], [f"{name}s"]),
            helper.make_node("Transpose", [f"{name}s"], [f"{name}h"], perm=order),
        ]
    nodes += [
        helper.make_node("MatMul", ["qh", "kh"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "vh"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "join"], ["y"]),
    ]
    shape = ["batch", "rows", 16]
    return make_model(nodes, [float_input("x", shape)], [float_input("y", shape)], weights)


def centred() -> onnx.ModelProto:
    """What each image differs from the mean of its batch by, behind a product."""
    matrix = numpy_helper.from_array(
        np.random.default_rng(1).standard_normal((6, 4)).astype("float32"), "matrix"
    )
    nodes = [
        helper.make_node("MatMul", ["x", "matrix"], ["p"]),
        helper.make_node("ReduceMean", ["p"], ["m"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["p", "m"], ["y"]),
    ]
    names = [float_input("x", ["n", 6])], [float_input("y", ["n", 4])]
    return make_model(nodes, *names, [matrix])


def branches() -> onnx.ModelProto:
    """Twice the rows or their negatives, as a condition says: both branches are functions."""
    rows = ["rows", 4]

    def branch(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([node], name, [], [float_input(name, rows)])

    matrix = numpy_helper.from_array(np.eye(4, dtype="float32") * 2, "twice")
    then = branch("t", helper.make_node("MatMul", ["x", "twice"], ["t"]))
    other = branch("o", helper.make_node("Neg", ["x"], ["o"]))
    node = helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    return make_model([node], [float_input("x", rows), flag], [float_input("y", rows)], [matrix])


def require_same(
    model: tvm_blislike.CompiledModel, proto: onnx.ModelProto, names: Shapes, seed: int = 0
) -> None:
    """Compare a run at one size with a model compiled for it alone."""
    alone = compiled(proto, names)
    inputs = random_inputs(alone.inputs, seed)
    found, wanted = model.run(inputs), alone.run(inputs)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def batches() -> tvm_blislike.CompiledModel:
    return compiled(small_network("batch"), {"batch": range(1, 6)})


def test_every_batch_is_right(batches: tvm_blislike.CompiledModel) -> None:
    rng = np.random.default_rng(7)
    for count in (3, 1, 5, 2, 4, 3):
        image = rng.standard_normal((count, 3, 8, 8), dtype=np.float32)
        scores = batches.run({"image": image})["scores"]
        assert scores.shape == (count, 5)
        np.testing.assert_allclose(scores, small_reference(image), rtol=1e-4, atol=1e-4)


def test_the_largest_sizes_are_the_models_own(batches: tvm_blislike.CompiledModel) -> None:
    assert [spec.shape for spec in batches.inputs] == [(5, 3, 8, 8)]
    assert [spec.shape for spec in batches.outputs] == [(5, 5)]
    assert [v.inputs[0].shape[0] for v in batches.variants] == [1, 2, 3, 4, 5]
    assert any("batches of 1, 2, 3, 4, 5" in note for note in batches.explain().notes)


def test_another_size_is_refused_with_those_there_are(batches: tvm_blislike.CompiledModel) -> None:
    with pytest.raises(InputError, match=r"9x3x8x8; the model was compiled for 1\.\.5x3x8x8"):
        batches.run([np.zeros((9, 3, 8, 8), np.float32)])
    with pytest.raises(InputError, match=r"takes no image 9x3x8x8\nit takes image 1\.\.5x3x8x8"):
        batches.runner(sizes={"image": (9, 3, 8, 8)})


def test_layers_of_one_size_are_explained(batches: tvm_blislike.CompiledModel) -> None:
    workloads = [layer.workload for layer in batches.explain().layers if layer.macs]
    alone = tvm_blislike.explain(small_network("batch"), shapes={"batch": (5,)}, threads=1)
    assert len(workloads) == len([layer for layer in alone.layers if layer.macs])


def test_a_runner_is_of_one_size(batches: tvm_blislike.CompiledModel) -> None:
    runner = batches.runner(sizes={"image": (2, 3, 8, 8)})
    for seed in range(3):
        image = np.random.default_rng(seed).standard_normal((2, 3, 8, 8), dtype=np.float32)
        scores = runner.run([image])["scores"]
        np.testing.assert_allclose(scores, small_reference(image), rtol=1e-4, atol=1e-4)


def test_profiles_are_of_the_size_that_is_given(batches: tvm_blislike.CompiledModel) -> None:
    one, four = (
        {layer.name for layer in batches.profile([np.zeros((n, 3, 8, 8), np.float32)], 2)}
        for n in (1, 4)
    )
    assert one and four and one != four


def test_a_library_takes_all_sizes(batches: tvm_blislike.CompiledModel, tmp_path: Path) -> None:
    batches.export(tmp_path / "net.so")
    loaded = tvm_blislike.CompiledModel.load(tmp_path / "net.so")
    assert loaded.variants == batches.variants
    for count in (4, 1, 5):
        image = np.random.default_rng(count).standard_normal((count, 3, 8, 8), dtype=np.float32)
        scores = loaded.run([image])["scores"]
        np.testing.assert_allclose(scores, small_reference(image), rtol=1e-4, atol=1e-4)


def test_a_kept_model_takes_all_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_BLISLIKE_CACHE", str(tmp_path / "kept"))
    path = tmp_path / "net.onnx"
    onnx.save(small_network("batch"), path)
    for _ in range(2):
        model = tvm_blislike.compile(path, shapes={"batch": range(1, 4)}, threads=1)
        assert len(model.variants) == 3
        image = np.ones((2, 3, 8, 8), np.float32)
        scores = model.run([image])["scores"]
        np.testing.assert_allclose(scores, small_reference(image), rtol=1e-4, atol=1e-4)


def test_weights_are_there_once(tmp_path: Path) -> None:
    table = np.random.default_rng(0).standard_normal((512, 512)).astype("float32")
    nodes = [
        helper.make_node("Gather", ["table", "places"], ["rows"]),
        helper.make_node("ReduceMean", ["rows"], ["m"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["rows", "m"], ["y"]),
    ]
    weights = [numpy_helper.from_array(table, "table")]
    places = helper.make_tensor_value_info("places", TensorProto.INT64, ["n"])
    proto = make_model(nodes, [places], [float_input("y", ["n", 512])], weights)
    sizes = []
    for place, count in enumerate((3, range(1, 4))):
        compiled(proto, {"n": (count,)}).export(tmp_path / f"{place}.so")
        sizes.append((tmp_path / f"{place}.so").stat().st_size)
    assert sizes[1] < sizes[0] + table.nbytes // 2


def test_two_sizes_stay_open_at_once() -> None:
    proto = small_network("batch", "size")
    model = compiled(proto, {"batch": ((1, 3),), "size": ((8, 11),)})
    for batch, size in itertools.product((1, 3), (8, 11)):
        require_same(model, proto, {"batch": (batch,), "size": (size,)})


def test_rows_that_read_each_other() -> None:
    model = compiled(attention(), {"batch": 1, "rows": ((3, 8, 17),)})
    for rows in (8, 17, 3):
        require_same(model, attention(), {"batch": (1,), "rows": (rows,)})


def test_a_batch_of_rows_that_read_each_other() -> None:
    model = compiled(attention(), {"batch": range(1, 4), "rows": (5,)})
    for batch in (1, 2, 3):
        require_same(model, attention(), {"batch": (batch,), "rows": (5,)})


def test_images_that_meet() -> None:
    # More than ten: their functions are numbered.
    model = compiled(centred(), {"n": range(2, 14)})
    assert [variant.inputs[0].shape[0] for variant in model.variants] == [*range(2, 14)]
    for images in (2, 3, 12, 13):
        require_same(model, centred(), {"n": (images,)})


def test_functions_of_each_size() -> None:
    model = compiled(branches(), {"rows": ((2, 5),)})
    for rows, flag in itertools.product((2, 5), (True, False)):
        x = np.random.default_rng(rows).standard_normal((rows, 4), dtype=np.float32)
        found = model.run({"x": x, "flag": np.array(flag)})["y"]
        np.testing.assert_allclose(found, 2 * x if flag else -x, rtol=1e-6)


def test_sizes_that_do_not_go_together() -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    inputs = [float_input("a", ["n", 4]), float_input("b", ["n", 4])]
    model = compiled(
        make_model(nodes, inputs, [float_input("y", ["n", 4])], []), {"n": range(1, 4)}
    )
    two, three = np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(model.run({"a": two, "b": two})["y"], 2 * two)
    with pytest.raises(InputError, match="do not go together: a 2x4, b 3x4"):
        model.run({"a": two, "b": three})


@examples(15)
@given(data=st.data())
def test_any_sizes_of_a_network(data: st.DataObject) -> None:
    values = st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True)
    batch, size = data.draw(values), data.draw(values)
    proto = small_network("batch", "size")
    model = compiled(proto, {"batch": (tuple(batch),), "size": (tuple(size),)})
    assert len(model.variants) == len(batch) * len(size)
    for n, s in itertools.product(batch, size):
        image = np.random.default_rng(n).standard_normal((n, 3, s, s), dtype=np.float32)
        scores = model.run([image])["scores"]
        np.testing.assert_allclose(scores, small_reference(image), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("option", "shape"),
    [
        ("x=1..4x3", ((1, 2, 3, 4), 3)),
        ("batch=2..3", ((2, 3),)),
        ("x=1x16/32/64", (1, (16, 32, 64))),
        ("x=7..7x2", (7, 2)),
        ("batch=4", (4,)),
    ],
)
def test_open_sizes_on_the_command_line(option: str, shape: tuple[object, ...]) -> None:
    assert list(parse_shapes([option]).values()) == [shape]


@pytest.mark.parametrize("option", ["x=4..1", "x=1..", "x=..4x3", "x=1//2", "x=a..b", "x=1...4"])
def test_what_is_no_open_size(option: str) -> None:
    result = CliRunner().invoke(app, ["explain", "model.onnx", "--shape", option])
    assert result.exit_code == 2
    assert "1..8" in result.stderr


def shapes_of(proto: onnx.ModelProto, **shapes: object) -> list[dict[str, tuple[int, ...]]]:
    return list(sizes_of(proto, frozen(shapes)).shapes)


def test_one_name_is_one_size() -> None:
    inputs = [float_input("a", ["n", 4]), float_input("b", [1, "n"])]
    nodes = [helper.make_node("MatMul", ["b", "a"], ["y"])]
    proto = make_model(nodes, inputs, [float_input("y", [1, 4])], [])
    found = shapes_of(proto, a=((2, 3), 4), b=(1, (2, 3)))
    assert found == [{"a": (2, 4), "b": (1, 2)}, {"a": (3, 4), "b": (1, 3)}]
    with pytest.raises(InputError, match="n is one size, but a gives it other values"):
        shapes_of(proto, a=((2, 5), 4), b=(1, (2, 3)))


def test_batches_are_found_where_nothing_else_differs() -> None:
    network = small_network("batch", "size")
    found = sizes_of(network, frozen({"batch": range(1, 4), "size": 8})).batches
    assert found is not None and found.smaller == (1, 2) and found.inputs == (0,)
    assert sizes_of(network, frozen({"batch": 2, "size": ((8, 9),)})).batches is None


def test_too_many_sizes_are_refused() -> None:
    some = tuple(range(1, 201, 2))
    with pytest.raises(UsageError, match="100 sizes are more than one library takes"):
        shapes_of(small_network("batch", "size"), batch=(some,), size=8)
    with pytest.raises(UsageError, match="100 sizes are more than one library takes"):
        compiled(small_network("batch", "size"), {"batch": range(1, 101), "size": 8})
    with pytest.raises(UsageError, match="9000 sizes are more than one library takes"):
        shapes_of(small_network("batch", "size"), batch=range(1, 9001), size=8)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="no input or open size named 'bacth'"):
        shapes_of(small_network("batch", "size"), bacth=range(1, 4), size=8)
    with pytest.raises(InputError, match="size is one size of the model, not 8x8"):
        compiled(small_network(1, "size"), {"size": (8, 8)})


def test_commands_of_one_size_refuse_several(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(small_network("batch"), path)
    for command in (["tune"], ["bench"], ["compile", "--standalone"]):
        arguments = [*command, str(path), "--shape", "batch=1..3"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2, result.output
        assert "one value" in result.stderr


def test_the_command_runs_a_size_of_a_library(tmp_path: Path) -> None:
    path, out = str(tmp_path / "net.onnx"), str(tmp_path / "net.so")
    onnx.save(small_network("batch"), path)
    runner = CliRunner()
    command = ["compile", path, "--shape", "batch=1..3", "-o", out, "--threads", "1", "--json"]
    made = runner.invoke(app, command)
    assert made.exit_code == 0, made.output
    shapes = [variant["inputs"][0]["shape"] for variant in json.loads(made.stdout)["variants"]]
    assert [shape[0] for shape in shapes] == [1, 2, 3]
    for count in (2, 3):
        shape = f"image={count}x3x8x8"
        done = runner.invoke(app, ["run", out, "--shape", shape, "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["outputs"]["scores"]["shape"] == [count, 5]
    refused = runner.invoke(app, ["run", out, "--shape", "image=7x3x8x8"])
    assert refused.exit_code == 5
    assert "1..3x3x8x8" in refused.stderr
