"""For nodes whose types ONNX does not infer: others with results of the same shapes and types.

These are operators of ONNX Runtime's own, one of ours, and those of ONNX that its inference gets
wrong. Graphs inside a node have theirs, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_blislike.onnx.graphs import branches, replace_nodes
from tvm_blislike.onnx.operator_sets import IMPOSSIBLE, MICROSOFT, OWN

if TYPE_CHECKING:
    import onnx

# What takes the place of a node where shapes are inferred; none of it is computed.
StandIn = Callable[["onnx.NodeProto"], Sequence["onnx.NodeProto"]]

# ONNX Runtime writes this one as if ONNX had it.
_UNDER_ANOTHER_NAME = "SimplifiedLayerNormalization"


def stand_ins(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """Return nodes whose types ONNX infers rightly; any other node as it is."""
    domain = MICROSOFT if node.op_type == _UNDER_ANOTHER_NAME else node.domain
    make = {MICROSOFT: _STAND_INS, OWN: _OF_OURS}.get(domain, _OF_ONNX).get(node.op_type)
    if make:
        return make(node)
    return [_with_known_inside(node)] if any(branches(node)) else [node]


def _with_known_inside(node: onnx.NodeProto) -> onnx.NodeProto:
    """For one of control flow: a copy."""
    made = copy.deepcopy(node)
    for graph in branches(made):
        replace_nodes(graph, [known for inner in graph.node for known in stand_ins(inner)])
    return made


def _impossible(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """Zeros of the type that it says."""
    from onnx import helper, numpy_helper

    settings = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    name = f"{node.output[0]} sizes"
    sizes = numpy_helper.from_array(np.array(settings.get("shape", ()), np.int64))
    zero = numpy_helper.from_array(np.zeros(1, settings["dtype"].decode()))
    return [
        helper.make_node("Constant", [], [name], value=sizes),
        helper.make_node("ConstantOfShape", [name], node.output, value=zero),
    ]


def _stft(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """One that says whether it is of one side: inference takes 0 for the default, which is 1."""
    from onnx import helper

    if any(item.name == "onesided" for item in node.attribute):
        return [node]
    known = copy.deepcopy(node)
    known.attribute.append(helper.make_attribute("onesided", 1))
    return [known]


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


def _like(*operands: int) -> StandIn:
    """For one whose results are like operands, -1 for one that is not told."""

    def make(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
        from onnx import helper

        pairs = zip(operands, node.output, strict=False)
        return [
            helper.make_node("Identity", [node.input[index]], [name])
            for index, name in pairs
            if name and index >= 0
        ]

    return make


def _with_attributes_of(operator: str) -> StandIn:
    """For a layer of ONNX with an activation: the layer, whose operands are the first three."""

    def make(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
        return [_of(node, operator, node.input[:3])]

    return make


def _transposed_product(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    from onnx import helper

    turned = {a.name for a in node.attribute if a.i and a.name.startswith("trans")}
    if turned & {"transBatchA", "transBatchB"}:
        return []
    left = "...ki" if "transA" in turned else "...ik"
    right = "...jk" if "transB" in turned else "...kj"
    equation = f"{left},{right}->...ij"
    return [helper.make_node("Einsum", node.input[:2], node.output, equation=equation)]


def _embeddings(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    from onnx import TensorProto, helper

    words = helper.make_node("Gather", [node.input[2], node.input[0]], node.output[:1], axis=0)
    made = [words]
    if len(node.output) > 2 and node.output[2]:
        made.append(helper.make_node("Identity", node.output[:1], node.output[2:3]))
    if len(node.output) > 1 and node.output[1]:
        first = f"{node.output[1]} first"
        zero = f"{node.output[1]} zero"
        made += [
            helper.make_node("Constant", [], [zero], value_int=0),
            helper.make_node("Gather", [node.input[0], zero], [first], axis=1),
            helper.make_node("Cast", [first], node.output[1:2], to=TensorProto.INT32),
        ]
    return made


def _attention(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """The values of a product whose columns are queries, keys and values."""
    from onnx import helper

    name = node.output[0]
    product, shape, parts, last = (f"{name} {part}" for part in ("qkv", "shape", "parts", "last"))
    sizes = [list(a.ints) for a in node.attribute if a.name == "qkv_hidden_sizes"]
    made = [helper.make_node("MatMul", node.input[:2], [product])]
    if sizes:
        ends = [f"{name} {part}" for part in ("begin", "end", "axis")]
        limits = [[0], [sizes[0][2]], [2]]
        made += [
            helper.make_node("Constant", [], [end], value_ints=limit)
            for end, limit in zip(ends, limits, strict=True)
        ]
        return [*made, helper.make_node("Slice", [product, *ends], [name])]
    return [
        *made,
        helper.make_node("Constant", [], [shape], value_ints=[0, 0, 3, -1]),
        helper.make_node("Reshape", [product, shape], [parts]),
        helper.make_node("Constant", [], [last], value_int=2),
        helper.make_node("Gather", [parts, last], [name], axis=2),
    ]


def _multi_head(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """Queries' steps and values' sizes; the present is left to be found out."""
    from onnx import helper

    values = node.input[2] if len(node.input) > 2 else ""
    if not values:
        return []
    operands = [node.input[0], values]
    return [helper.make_node("Einsum", operands, node.output[:1], equation="bsh,blv->bsv")]


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
    "Attention": _attention,
    "BiasGelu": _first,
    "DequantizeLinear": _same,
    "DynamicQuantizeLSTM": _with_attributes_of("LSTM"),
    "DynamicQuantizeMatMul": _product,
    "EmbedLayerNormalization": _embeddings,
    "FastGelu": _first,
    "FusedConv": _with_attributes_of("Conv"),
    "FusedGemm": _with_attributes_of("Gemm"),
    "FusedMatMul": _transposed_product,
    "FusedMatMulActivation": _transposed_product,
    "Gelu": _first,
    "GroupNorm": _first,
    "MatMulIntegerToFloat": _product,
    "MatMulNBits": _of_bits,
    "MultiHeadAttention": _multi_head,
    "QGemm": _gemm,
    "QLinearAdd": _on_integers("Add", 0, 3),
    "QLinearAveragePool": _on_integers("AveragePool", 0),
    "QLinearConcat": _concat,
    "QLinearGlobalAveragePool": _on_integers("GlobalAveragePool", 0),
    "QLinearLeakyRelu": _first,
    "QLinearMul": _on_integers("Mul", 0, 3),
    "QLinearSigmoid": _first,
    "QLinearSoftmax": _first,
    "QuantizeLinear": _same,
    "QuickGelu": _first,
    "RotaryEmbedding": _first,
    "SimplifiedLayerNormalization": _first,
    "SkipLayerNormalization": _like(0, -1, -1, 0),
    "SkipSimplifiedLayerNormalization": _like(0, -1, -1, 0),
    "TransposeMatMul": _transposed_product,
}
_OF_OURS: dict[str, StandIn] = {IMPOSSIBLE: _impossible}
_OF_ONNX: dict[str, StandIn] = {"STFT": _stft}
