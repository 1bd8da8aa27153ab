"""TVM's importer of ONNX graphs: what it takes, and what it leaves behind when it fails."""

from __future__ import annotations

import pytest
from small_kernels import onnx_graph
from tvm import relax

from tvm_blislike.tvm_seams import importer


def test_a_graph_is_imported_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    found = importer.import_graph(onnx_graph("Relu"), 17, {"input_0": [2, 3]}, {})
    assert "relax.nn.relu" in str(found) or "R.nn.relu" in str(found)
    assert capfd.readouterr() == ("", "")


def test_operators_are_converted_otherwise_or_left_to_tvm() -> None:
    own = {
        "NoSuchOperator": lambda builder, operands, _: relax.op.exp(operands[0]),
        "Relu": lambda *_: None,
    }
    for operator, expected in (("NoSuchOperator", "exp"), ("Relu", "nn.relu")):
        found = importer.import_graph(onnx_graph(operator), 17, {"input_0": [2, 3]}, own)
        assert f"R.{expected}(" in str(found)


def test_operators_are_known_by_their_names() -> None:
    found = importer.operators()
    assert {"Conv", "Gemm", "If", "Constant", "QuantizeLinear"} <= found
    assert "NoSuchOperator" not in found


def test_the_node_of_a_failure_is_known(capfd: pytest.CaptureFixture[str]) -> None:
    graph = onnx_graph("MatMul", inputs=2)  # 2x3 by 2x3
    shapes = {"input_0": [2, 3], "input_1": [2, 3]}
    with pytest.raises(Exception) as caught:
        importer.import_graph(graph, 17, shapes, {})
    node = importer.failing_node(caught.value)
    assert node is not None, "no frame of the importer has a variable `node`"
    assert node.name == "the node"
    assert capfd.readouterr().out == ""
