"""The importer's state at a graph inside a node: what becomes a function of its own."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from tvm_blislike.tvm_seams import importer
from tvm_blislike.tvm_seams.branches import free_names


def branch(operator: str) -> onnx.GraphProto:
    nodes = [
        helper.make_node(operator, ["x"], [f"{operator}_inner"]),
        helper.make_node("Add", [f"{operator}_inner", "w"], [operator]),
    ]
    result = helper.make_tensor_value_info(operator, TensorProto.FLOAT, [2])
    return helper.make_graph(nodes, operator, [], [result])


def choice() -> onnx.GraphProto:
    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("Exp"), else_branch=branch("Tanh")
    )
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    return helper.make_graph([node], "choice", inputs, [result], weights)


def test_each_branch_is_a_function_in_dataflow_blocks() -> None:
    mod = importer.import_graph(choice(), 17, {"x": [2], "c": []}, {})
    assert len(mod.functions) == 3
    text = mod["main"].script()
    assert "R.exp" not in text
    assert "R.tanh" not in text
    inner = [func for gvar, func in mod.functions_items() if gvar.name_hint != "main"]
    for func in inner:
        assert "R.dataflow()" in func.script()
        assert len(func.params) == 1  # constants are no parameters
    assert {name in "".join(f.script() for f in inner) for name in ("R.exp", "R.tanh")} == {True}


def test_what_a_graph_reads_from_outside() -> None:
    assert list(free_names(branch("Exp"))) == ["x", "w"]
    assert set(free_names(choice())) == set()
