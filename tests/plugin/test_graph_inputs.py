"""What goes into a graph: open sizes and batches, empty tensors, what is refused."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import float_input, make_model, small_network
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike.cli.app import app
from tvm_blislike.errors import InputError, ModelError, UnsupportedOperatorError
from tvm_blislike.onnx import frontend


def _sum_of(*shapes: list | None) -> onnx.ModelProto:
    """A sum of inputs a, b, ... of these declared shapes."""
    names = "abc"[: len(shapes)]
    inputs = [helper.make_tensor_value_info(n, 1, s) for n, s in zip(names, shapes, strict=True)]
    node = helper.make_node("Sum", list(names), ["y"], "sum0")
    return make_model([node], inputs, [helper.make_tensor_value_info("y", 1, None)], [])


HINTS = {
    "an image": ([["N", 3, "H", "W"]], "--shape a=1x3x224x224"),
    "of known width": ([["N", 3, "H", 64]], "--shape a=1x3x224x64"),
    "gray": ([["N", 1, "H", "W"]], "--shape a=1x1x224x224"),
    "a volume": ([[1, 2, "D", "H", "W"]], "--shape a=1x2x16x112x112"),
    "tokens": ([["N", "L"]], "--shape a=1x128"),
    "two": ([["N", "L", 64], ["N", "L", 1]], "--shape a=1x128x64 --shape b=1x128x1"),
    "a symbol in other places": ([["N", "L", "L"], ["L", 9]], "a=1x128x128 --shape b=128x9"),
    "unknown rank": ([None], "--shape a=1x3x224x224"),
    "empty": ([[0, "L", "M"]], "--shape a=0x128x128"),
}


@pytest.mark.parametrize("case", HINTS)
def test_the_hint_has_the_declared_names_and_sizes(case: str) -> None:
    shapes, hint = HINTS[case]
    with pytest.raises(InputError, match="symbolic shapes") as caught:
        frontend.load(_sum_of(*shapes))
    assert caught.value.hint.endswith(hint)


BATCHES = {
    "named": ([["N", 3, 8, 8]], [(1, 3, 8, 8)]),
    "unnamed": ([[None, 3, 8, 8]], [(1, 3, 8, 8)]),
    "made up": ([["unk__12", 7]], [(1, 7)]),
    "an image's": ([["sequence", 3, 8, 8]], [(1, 3, 8, 8)]),
    "shared": ([["N", 3], ["N", 1], [1, 3]], [(1, 3), (1, 1), (1, 3)]),
    "with a vector": ([["num_batches", 3], ["num_batches"]], [(1, 3), (1,)]),
}


@pytest.mark.parametrize("case", BATCHES)
def test_an_open_batch_becomes_one(case: str) -> None:
    declared, wanted = BATCHES[case]
    with pytest.warns(UserWarning, match=r"the batch.* is open: compiled for 1.*--shape a="):
        specs = frontend.resolve_inputs(_sum_of(*declared), {})
    assert [spec.shape for spec in specs] == wanted


@pytest.mark.parametrize(
    "declared",
    [
        [["N", 3], ["M", 3]],
        [["N", "N"]],
        [["N"]],
        [["seq_len", 64]],
        [["num_boxes", 4]],
        [[3, "N"]],
        [["N", 3], None],
    ],
    ids=str,
)
def test_other_open_sizes_are_asked_for(declared: list) -> None:
    with pytest.raises(InputError, match="symbolic shapes"):
        frontend.resolve_inputs(_sum_of(*declared), {})


def test_a_shape_for_one_input_leaves_no_batch_to_guess() -> None:
    with pytest.raises(InputError, match=r"symbolic shapes: b \(Mx3\)"):
        frontend.resolve_inputs(_sum_of(["N", 3], ["M", 3]), {"a": (2, 3)})


def test_nothing_is_said_of_a_batch_that_is_given() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frontend.resolve_inputs(small_network("N"), {"image": (2, 3, 8, 8)})


def test_the_command_line_tells_of_the_batch(tmp_path: Path) -> None:
    onnx.save(small_network("N"), tmp_path / "net.onnx")
    result = CliRunner().invoke(app, ["run", str(tmp_path / "net.onnx"), "--threads", "1"])
    assert result.exit_code == 0, result.output
    assert "warning: the batch (N) is open" in result.stderr
    assert "--shape image=1x3x8x8" in result.stderr


def _layer(operator: str, size: list[int], *weights: list[int], **attributes: Any) -> Any:
    """A model of one node, of an input of `size` and constants of these shapes."""
    names = [f"w{i}" for i in range(len(weights))]
    rng = np.random.default_rng(0)
    tensors = [
        numpy_helper.from_array(rng.standard_normal(shape).astype("float32"), name)
        for name, shape in zip(names, weights, strict=True)
    ]
    node = helper.make_node(operator, ["x", *names], ["y"], "node0", **attributes)
    result = helper.make_tensor_value_info("y", 1, None)
    return make_model([node], [float_input("x", size)], [result], tensors)


EMPTY = {
    "elementwise": _layer("Relu", [2, 0, 3]),
    "softmax": _layer("Softmax", [2, 0, 3]),
    "no rows": _layer("MatMul", [0, 8], [8, 3]),
    "no images": _layer("Conv", [0, 3, 8, 8], [8, 3, 3, 3], [8], pads=[1] * 4),
    "no signals": _layer("Conv", [0, 8, 16], [8, 8, 3]),
    "no volumes": _layer("Conv", [0, 8, 4, 4, 4], [8, 8, 3, 3, 3]),
    "no transposed": _layer("ConvTranspose", [0, 8, 4, 4], [8, 8, 3, 3]),
    "depthwise": _layer("Conv", [0, 8, 4, 4], [8, 1, 3, 3], group=8),
    "pool": _layer("MaxPool", [0, 8, 4, 4], kernel_shape=[2, 2]),
}


@pytest.mark.parametrize("case", EMPTY)
def test_empty_tensors_are_computed(case: str) -> None:
    from onnx.reference import ReferenceEvaluator

    model = EMPTY[case]
    compiled = tvm_blislike.compile(model, threads=1)
    x = np.ones(compiled.inputs[0].shape, "float32")
    if case in ("no signals", "no volumes", "depthwise", "pool", "no transposed"):
        # ONNX's reference divides by their sizes.
        shapes = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape
        wanted = np.zeros([dim.dim_value for dim in shapes.dim], "float32")
    else:
        (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    found = compiled.run([x])["y"]
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


def test_empty_parts_of_an_empty_tensor() -> None:
    """TVM takes a slice without elements for a reshape, and loses those of other shapes."""
    parts = helper.make_node("Split", ["x", "sizes"], ["a", "b", "c"], "node0", axis=0)
    turned = helper.make_node("Transpose", ["c"], ["d"], "node1", perm=[1, 0])
    twice = helper.make_node("Add", ["x", "x"], ["e"], "node2")
    sizes = numpy_helper.from_array(np.array([10, 0, 4], "int64"), "sizes")
    results = [helper.make_tensor_value_info(name, 1, None) for name in "abde"]
    graph = helper.make_graph(
        [parts, turned, twice], "g", [float_input("x", [14, 0])], results, [sizes]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = tvm_blislike.compile(model, threads=1).run([np.ones((14, 0), "float32")])
    shapes = [value.shape for value in found.values()]
    assert shapes == [(10, 0), (0, 0), (0, 4), (14, 0)]


NOTHING = {
    "product": _layer("MatMul", [2, 0], [0, 3]),
    "gemm": _layer("Gemm", [2, 0], [0, 3], [3]),
    "convolution": _layer("Conv", [1, 0, 8, 8], [8, 0, 3, 3]),
    "sum": _layer("ReduceSum", [2, 0, 3]),
    "largest": _layer("ReduceMax", [2, 0, 3], axes=[1]),
    "mean": _layer("GlobalAveragePool", [1, 8, 0, 4]),
    "index": _layer("ArgMax", [2, 0], axis=1),
}


@pytest.mark.parametrize("case", NOTHING)
def test_sums_of_nothing_are_refused(case: str) -> None:
    """TVM would return whatever lies in memory."""
    model = NOTHING[case]
    subject = rf"{model.graph.node[0].op_type} \(node 'node0'\)"
    with pytest.raises(ModelError, match=rf"{subject}.*an operand is empty"):
        frontend.load(model)


WINDOWS = {
    "im2col": _layer("Conv", [1, 8, 6, 6], [8, 8, 11, 11], pads=[1] * 4),
    "by one": _layer("Conv", [1, 8, 6, 6], [8, 8, 7, 3]),
    "with bias": _layer("Conv", [1, 8, 2, 2], [8, 8, 4, 4], [8]),
    "dilated": _layer("Conv", [1, 8, 8, 8], [8, 8, 3, 3], dilations=[4, 4]),
    "depthwise": _layer("Conv", [1, 8, 3, 3], [8, 1, 5, 5], group=8),
    "signal": _layer("Conv", [1, 8, 3], [8, 8, 11]),
    "volume": _layer("Conv", [1, 8, 3, 3, 3], [8, 8, 4, 3, 3]),
    "transposed": _layer("ConvTranspose", [1, 8, 2, 2], [8, 8, 3, 3], pads=[3] * 4),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_a_window_larger_than_its_image_is_refused(case: str) -> None:
    model = WINDOWS[case]
    subject = rf"{model.graph.node[0].op_type} \(node 'node0'\)"
    with pytest.raises(ModelError, match=rf"{subject}.*does not fit into the padded image"):
        frontend.load(model)


def test_a_window_as_large_as_its_image_is_computed() -> None:
    compiled = tvm_blislike.compile(_layer("Conv", [1, 8, 6, 6], [8, 8, 8, 8], pads=[1] * 4))
    assert compiled.outputs[0].shape == (1, 8, 1, 1)


def test_more_elements_than_can_be_indexed_are_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"input x of 1x3x1000000000x8 has 24,000,000,000 elem"):
        frontend.load(_layer("Conv", [1, 3, 10**9, 8], [8, 3, 3, 3]))
    with pytest.raises(ModelError, match=r"Conv \(node 'node0'\).*has 3,200,000,000 elements"):
        frontend.load(_layer("Conv", [1, 3, 10**8, 4], [8, 3, 3, 3], pads=[1] * 4))


def test_tall_images_compile_as_fast_as_others() -> None:
    started = time.monotonic()
    tvm_blislike.compile(_layer("Conv", [1, 3, 10**7, 8], [8, 3, 3, 3], pads=[1] * 4), threads=1)
    assert time.monotonic() - started < 20


def test_inputs_of_one_name_are_refused() -> None:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    inputs = [float_input("x", [2]), float_input("x", [2])]
    with pytest.raises(ModelError, match="2 inputs are named 'x'"):
        frontend.load(make_model([node], inputs, [float_input("y", [2])], []))


NARROW = ["FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4", "STRING", "COMPLEX64"]


@pytest.mark.parametrize("name", NARROW)
def test_types_that_cannot_be_computed_are_named(name: str) -> None:
    number = TensorProto.DataType.Value(name)
    there = helper.make_node("Cast", ["x"], ["c"], "there", to=number)
    back = helper.make_node("Cast", ["c"], ["y"], "back", to=TensorProto.FLOAT)
    result = [float_input("y", [2])]
    with pytest.raises(UnsupportedOperatorError, match=rf"Cast \(node 'there'\).* is {name}"):
        frontend.load(make_model([there, back], [float_input("x", [2])], result, []))
    given = [helper.make_tensor_value_info("c", number, [2])]
    with pytest.raises(InputError, match=f"input c has the data type {name}"):
        frontend.load(make_model([back], given, result, []))


def test_constants_of_such_types_are_named() -> None:
    weights = helper.make_tensor("q", TensorProto.FLOAT8E5M2, [2], [1, 2])
    scale = numpy_helper.from_array(np.float32(2), "s")
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"])]
    nodes += [helper.make_node("Add", ["x", "w"], ["y"])]
    model = make_model(nodes, [float_input("x", [2])], [float_input("y", [2])], [weights, scale])
    model.opset_import[0].version, model.ir_version = 21, 10
    with pytest.raises(UnsupportedOperatorError, match="constant 'q': its data type is FLOAT8E5M2"):
        frontend.load(model)
