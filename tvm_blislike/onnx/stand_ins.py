"""For operators of ONNX Runtime's own: nodes of ONNX with results of the same shapes and types."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tvm_blislike.onnx.operator_sets import MICROSOFT

if TYPE_CHECKING:
    import onnx

# What takes the place of a node where shapes are inferred; none of it is computed.
StandIn = Callable[["onnx.NodeProto"], Sequence["onnx.NodeProto"]]


def stand_ins(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """Return nodes that ONNX knows for one of Microsoft's; any other node as it is."""
    make = _STAND_INS.get(node.op_type) if node.domain == MICROSOFT else None
    return make(node) if make else [node]


def _same(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """For one that ONNX has taken over."""
    known = copy.deepcopy(node)
    known.domain = ""
    return [known]


def _first(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """For one whose first result is like its first operand."""
    from onnx import helper

    return [helper.make_node("Identity", node.input[:1], node.output[:1])]


def _on_integers(operator: str, *operands: int) -> StandIn:
    """For one that computes steps as an operator of ONNX computes numbers."""

    def make(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
        return [_of(node, operator, [node.input[i] for i in operands])]

    return make


def _concat(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    return [_of(node, "Concat", node.input[2::3])]


def _gemm(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    from onnx import helper

    product = _of(node, "Gemm", [node.input[0], node.input[3]])
    steps = list(node.input[7:9])
    if not any(steps):
        return _as_floats(product)
    result, product.output[0] = product.output[0], f"{product.output[0]} in floats"
    return [product, helper.make_node("QuantizeLinear", [*product.output, *steps], [result])]


def _product(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    return _as_floats(_of(node, "MatMul", node.input[:2]))


def _of_bits(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """A product with a matrix of k rows and n columns."""
    from onnx import helper

    sizes = {a.name: a.i for a in node.attribute if a.name in ("K", "N")}
    shape, matrix = (f"{node.output[0]} {name}" for name in ("sizes", "matrix"))
    return [
        helper.make_node("Constant", [], [shape], value_ints=[sizes["K"], sizes["N"]]),
        helper.make_node("ConstantOfShape", [shape], [matrix]),
        helper.make_node("MatMul", [node.input[0], matrix], node.output),
    ]


def _as_floats(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    from onnx import TensorProto, helper

    result, node.output[0] = node.output[0], f"{node.output[0]} in steps"
    return [node, helper.make_node("Cast", node.output, [result], to=TensorProto.FLOAT)]


def _of(node: onnx.NodeProto, operator: str, operands: Sequence[str]) -> onnx.NodeProto:
    from onnx import helper

    made = helper.make_node(operator, operands, node.output)
    made.attribute.extend(node.attribute)
    return made


_STAND_INS: dict[str, StandIn] = {
    "BiasGelu": _first,
    "DequantizeLinear": _same,
    "DynamicQuantizeMatMul": _product,
    "FastGelu": _first,
    "Gelu": _first,
    "MatMulIntegerToFloat": _product,
    "MatMulNBits": _of_bits,
    "QGemm": _gemm,
    "QLinearAdd": _on_integers("Add", 0, 3),
    "QLinearAveragePool": _on_integers("AveragePool", 0),
    "QLinearConcat": _concat,
    "QLinearGlobalAveragePool": _on_integers("GlobalAveragePool", 0),
    "QLinearLeakyRelu": _first,
    "QLinearMul": _on_integers("Mul", 0, 3),
    "QLinearSigmoid": _first,
    "QuantizeLinear": _same,
    "SkipLayerNormalization": _first,
}
