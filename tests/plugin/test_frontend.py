"""The frontend: shapes, names, and what it refuses."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import float_input, make_model, small_network

import tvm_blislike
from tvm_blislike.errors import InputError, ModelError, UnsupportedOperatorError
from tvm_blislike.onnx import frontend


def test_names_and_shapes_come_from_the_graph() -> None:
    loaded = frontend.load(small_network(batch=2))
    assert [str(spec) for spec in loaded.inputs] == ["image 2x3x8x8 float32"]
    assert [str(spec) for spec in loaded.outputs] == ["scores 2x5 float32"]


def test_weights_are_bound_as_constants() -> None:
    loaded = frontend.load(small_network())
    assert len(loaded.module["main"].params) == 1


def test_weights_listed_as_inputs_are_still_weights() -> None:
    model = small_network()
    for tensor in model.graph.initializer:
        model.graph.input.append(float_input(tensor.name, list(tensor.dims)))
    assert [spec.name for spec in frontend.load(model).inputs] == ["image"]


def test_names_that_are_no_identifiers_stay_as_they_are() -> None:
    node = helper.make_node("Relu", ["in.0:x"], ["out/1"])
    model = make_model([node], [float_input("in.0:x", [2])], [float_input("out/1", [2])], [])
    loaded = frontend.load(model)
    assert (loaded.inputs[0].name, loaded.outputs[0].name) == ("in.0:x", "out/1")


def test_shape_given_for_symbols() -> None:
    loaded = frontend.load(small_network("N", "S"), {"image": (3, 3, 9, 9)})
    assert loaded.inputs[0].shape == (3, 3, 9, 9)
    assert loaded.outputs[0].shape == (3, 5)


def _two_inputs(first: list, second: list) -> onnx.ModelProto:
    node = helper.make_node("Add", ["a", "b"], ["sum"], "add0")
    return make_model([node], [float_input("a", first), float_input("b", second)], [_out()], [])


def _out() -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("sum", TensorProto.FLOAT, None)


def test_a_symbol_settled_by_one_input_holds_for_the_other() -> None:
    loaded = frontend.load(_two_inputs(["N", 4], ["N", 4]), {"a": (3, 4)})
    assert [spec.shape for spec in loaded.inputs] == [(3, 4), (3, 4)]


def test_contradicting_values_of_a_symbol_are_refused() -> None:
    with pytest.raises(InputError, match=r"2x4 does not fit input b"):
        frontend.load(_two_inputs(["N", 4], ["N", 4]), {"a": (3, 4), "b": (2, 4)})


def test_all_missing_shapes_are_listed_at_once() -> None:
    with pytest.raises(InputError) as caught:
        frontend.load(_two_inputs(["N", 4], [None, 4]))
    assert "a (Nx4)" in str(caught.value)
    assert "b (?x4)" in str(caught.value)
    assert "--shape a=" in str(caught.value)


@pytest.mark.parametrize("symbol", ["height", "", None])
def test_named_and_unnamed_symbols_and_unknown_rank(symbol: str | None) -> None:
    model = small_network()
    if symbol is None:
        model.graph.input[0].type.tensor_type.ClearField("shape")
    else:
        model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = symbol
    with pytest.raises(InputError, match="image"):
        frontend.load(model)
    assert frontend.load(model, {"image": (1, 3, 8, 8)}).inputs[0].shape == (1, 3, 8, 8)


@pytest.mark.parametrize("shape", [(1, 3, 8), (1, 4, 8, 8), (0, 3, 8, 8)])
def test_shapes_that_do_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="image"):
        frontend.load(small_network(), {"image": shape})


def test_shape_for_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no input named 'imge'\ndid you mean image\?"):
        frontend.load(small_network(), {"imge": (1, 3, 8, 8)})


def test_unsupported_operators_are_named_with_their_nodes() -> None:
    model = small_network()
    model.graph.node[1].op_type = "FusedThing"
    model.graph.node[1].domain = "com.example"
    with pytest.raises(UnsupportedOperatorError, match=r"com\.example\.FusedThing.*'relu0'"):
        frontend.load(model)


def test_unsupported_operator_inside_a_branch() -> None:
    def branch(operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["x"], [f"y{operator}"], f"inner{operator}")
        return helper.make_graph([node], operator, [], [float_input(f"y{operator}", [2])])

    choice = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Strange")
    )
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    inputs = [condition, float_input("x", [2])]
    with pytest.raises(UnsupportedOperatorError, match=r"Strange \(node 'innerStrange'\)"):
        frontend.load(make_model([choice], inputs, [float_input("y", [2])], []))


def test_unnamed_node_is_identified_by_its_outputs() -> None:
    node = helper.make_node("Strange", ["x"], ["left", "right"])
    model = make_model([node], [float_input("x", [2])], [float_input("left", [2])], [])
    with pytest.raises(UnsupportedOperatorError, match="node computing 'left', 'right'"):
        frontend.load(model)


def test_every_truncation_of_a_file_is_refused(tmp_path: Path) -> None:
    data = small_network().SerializeToString()
    path = tmp_path / "cut.onnx"
    for length in (0, 1, 2, *range(3, len(data), max(1, len(data) // 40)), len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"cut\.onnx"):
            frontend.load(path)


@pytest.mark.parametrize(
    "data", [b"hello\n", b"\x7fELF\x02\x01", b"{}", b"PK\x03\x04" + b"\0" * 99]
)
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match="not a complete ONNX"):
        frontend.load(path)


def test_missing_file_and_missing_external_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        frontend.load(tmp_path / "none.onnx")
    path = tmp_path / "split.onnx"
    options = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    onnx.save(small_network(), path, **options)
    assert frontend.load(path).inputs[0].name == "image"
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"split\.onnx"):
        frontend.load(path)


def test_graph_with_a_dangling_input_is_an_invalid_model() -> None:
    model = small_network()
    model.graph.node[1].input[0] = "nowhere"
    with pytest.raises(ModelError, match="nowhere"):
        frontend.load(model)


def test_importer_failure_becomes_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    shape = numpy_helper.from_array(np.array([7], "int64"), "shape")
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], "reshape0")
    model = make_model([node], [float_input("x", [2, 3])], [float_input("y", [7])], [shape])
    with pytest.raises(UnsupportedOperatorError, match="cannot be imported"):
        frontend.load(model)
    assert capsys.readouterr().out == ""


def test_importer_failure_names_the_operator_and_its_node() -> None:
    shape = numpy_helper.from_array(np.array([7], "int64"), "shape")
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], "reshape0")
    model = make_model([node], [float_input("x", [2, 3])], [float_input("y", [7])], [shape])
    with pytest.raises(UnsupportedOperatorError, match=r"Reshape \(node 'reshape0'\) of tiny"):
        frontend.load(model)


def _training_batch_norm(training: int) -> onnx.ModelProto:
    names = ("x", "scale", "bias", "mean", "var")
    outputs = ["y", "new_mean", "new_var"] if training else ["y"]
    node = helper.make_node("BatchNormalization", names, outputs, "bn0", training_mode=training)
    weights = [numpy_helper.from_array(np.ones(3, "float32"), name) for name in names[1:]]
    return make_model([node], [float_input("x", [2, 3, 4])], [float_input("y", [2, 3, 4])], weights)


def test_batch_norm_in_training_mode_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"'bn0'.*training_mode"):
        frontend.load(_training_batch_norm(1))
    assert frontend.load(_training_batch_norm(0)).outputs[0].shape == (2, 3, 4)


@pytest.mark.parametrize(("size", "accepted"), [(7, True), (8, False)])
def test_output_shape_is_refused_only_where_it_matters(size: int, accepted: bool) -> None:
    kernel = numpy_helper.from_array(np.ones((1, 1, 3, 3), "float32"), "kernel")
    strides = {"strides": [2, 2], "output_shape": [size, size]}
    node = helper.make_node("ConvTranspose", ["x", "kernel"], ["y"], "up0", **strides)
    out = [float_input("y", [1, 1, size, size])]
    model = make_model([node], [float_input("x", [1, 1, 3, 3])], out, [kernel])
    if accepted:
        assert frontend.load(model).outputs[0].shape == (1, 1, 7, 7)
    else:
        with pytest.raises(UnsupportedOperatorError, match=r"'up0'.*output_shape 8x8"):
            frontend.load(model)


def test_shapes_that_only_a_run_tells_are_named() -> None:
    node = helper.make_node("ConstantOfShape", ["sizes"], ["sum"])
    sizes = helper.make_tensor_value_info("sizes", TensorProto.INT64, [3])
    model = make_model([node], [sizes], [_out()], [])
    with pytest.raises(UnsupportedOperatorError, match=r"ConstantOfShape.*'sizes'.*run time only"):
        tvm_blislike.compile(model)
    names = frontend.operators_of_run_time_shapes(frontend.load(model).module)
    assert names == ["relax.tensor_to_shape", "relax.broadcast_to"]
    assert frontend.operators_of_run_time_shapes(frontend.load(small_network()).module) == []
