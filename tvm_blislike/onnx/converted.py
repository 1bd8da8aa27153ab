"""Which operators can be converted, by TVM's ONNX importer or by ours, and a check of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx.graphs import all_nodes
from tvm_blislike.onnx.operator_sets import IMPOSSIBLE, MICROSOFT, OWN, STANDARD
from tvm_blislike.onnx.unsupported import describe

if TYPE_CHECKING:
    import onnx

# It takes a node by its name alone; these of ONNX Runtime's own it reads as they are meant.
_OF_MICROSOFT = frozenset(
    "BiasGelu DequantizeLinear FastGelu Gelu MatMulInteger16 QuantizeLinear".split()
)
# It does not know these; `rewrites` writes them as others that it knows.
_REWRITTEN = frozenset(
    """
    Attention Col2Im ConvInteger DFT LpNormalization MelWeightMatrix QLinearConv QLinearMatMul
    ReverseSequence STFT SimplifiedLayerNormalization
    """.split()
)
# It does not know these either; `converters` has them.
_CONVERTED = frozenset(["CumProd", "GRU", "LSTM", "RNN"])
_REWRITTEN_OF_MICROSOFT = frozenset(
    """
    Attention DynamicQuantizeLSTM DynamicQuantizeMatMul EmbedLayerNormalization FusedConv FusedGemm
    FusedMatMul FusedMatMulActivation GroupNorm MatMulIntegerToFloat MatMulNBits MultiHeadAttention
    QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearGlobalAveragePool QLinearLeakyRelu
    QLinearMul QLinearSigmoid QLinearSoftmax QuickGelu RotaryEmbedding SkipLayerNormalization
    SkipSimplifiedLayerNormalization TransposeMatMul
    """.split()
)


def known_operators() -> dict[str, frozenset[str]]:
    """Return the operators that can be converted, by domain."""
    from tvm_blislike.tvm_seams import importer

    converters = frozenset(importer.operators())
    standard = converters | _REWRITTEN | _CONVERTED
    microsoft = converters & _OF_MICROSOFT | _REWRITTEN_OF_MICROSOFT
    return {
        **dict.fromkeys(STANDARD, standard),
        MICROSOFT: microsoft,
        OWN: frozenset([IMPOSSIBLE]),
    }


def check_operators(proto: onnx.ModelProto) -> None:
    """Raise UnsupportedOperatorError naming every node that TVM's importer cannot take."""
    known = known_operators()
    nodes = all_nodes(proto.graph)
    unknown = [node for node in nodes if node.op_type not in known.get(node.domain, ())]
    if not unknown:
        return
    listed = [describe(node) for node in unknown[:5]]
    more = f" and {len(unknown) - 5} more nodes" if len(unknown) > 5 else ""
    functions = {(function.domain, function.name) for function in proto.functions}
    hint = "TVM's ONNX importer has no converter for it; replace it or export the model without it"
    if (unknown[0].domain, unknown[0].op_type) in functions:
        hint = "this function is written in another opset than the model; export both in one"
    raise UnsupportedOperatorError(f"unsupported operator: {', '.join(listed)}{more}", hint)
