"""The importer's state at the body of a loop."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from tvm_blislike.tvm_seams import importer


def loop(most: int | None) -> onnx.GraphProto:
    """Return a loop that doubles `x`."""
    value = helper.make_tensor_value_info
    ends = [value("go", TensorProto.BOOL, []), value("a", TensorProto.FLOAT, [2])]
    results = [value("goes", TensorProto.BOOL, []), value("b", TensorProto.FLOAT, [2])]
    nodes = [
        helper.make_node("Identity", ["go"], ["goes"]),
        helper.make_node("Add", ["a", "a"], ["b"]),
    ]
    body = helper.make_graph(nodes, "body", [value("i", TensorProto.INT64, []), *ends], results)
    node = helper.make_node("Loop", ["most", "", "x"], ["y"], body=body)
    inputs = [value("x", TensorProto.FLOAT, [2])]
    constants = []
    if most is None:
        inputs.append(value("most", TensorProto.INT64, []))
    else:
        constants.append(helper.make_tensor("most", TensorProto.INT64, [], [most]))
    outputs = [value("y", TensorProto.FLOAT, [2])]
    return helper.make_graph([node], "loop", inputs, outputs, constants)


@pytest.mark.parametrize(("steps", "functions"), [(1, 1), (2, 2), (1000, 18)])
def test_counted_steps_are_halves_of_halves(steps: int, functions: int) -> None:
    mod = importer.import_graph(loop(steps), 17, {"x": [2]}, {})
    assert 1 < len(mod.functions) <= functions + 1


def test_others_call_themselves() -> None:
    mod = importer.import_graph(loop(None), 17, {"x": [2], "most": []}, {})
    (itself,) = (f for g, f in mod.functions_items() if g.name_hint == "loop")
    assert "cls.loop(" in itself.script() or "loop(" in itself.script()
