"""Operands that TVM's ONNX importer takes as constants only: shapes, axes, counts, thresholds."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tvm_blislike.onnx.graphs import all_nodes

if TYPE_CHECKING:
    import onnx

_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
# Their places, and what ONNX calls them.
_SETTINGS = {
    **{f"Reduce{kind}": {1: "axes"} for kind in _REDUCTIONS},
    "AffineGrid": {1: "size"},
    "Col2Im": {1: "image_shape", 2: "block_shape"},
    "ConstantOfShape": {0: "input"},
    "CumProd": {1: "axis"},
    "CumSum": {1: "axis"},
    "DFT": {1: "dft_length", 2: "axis"},
    "Dropout": {2: "training_mode"},
    "Expand": {1: "shape"},
    "MaxUnpool": {2: "output_shape"},
    "MelWeightMatrix": {
        0: "num_mel_bins",
        1: "dft_length",
        2: "sample_rate",
        3: "lower_edge_hertz",
        4: "upper_edge_hertz",
    },
    "NonMaxSuppression": {
        2: "max_output_boxes_per_class",
        3: "iou_threshold",
        4: "score_threshold",
    },
    "OneHot": {1: "depth", 2: "values"},
    "Pad": {1: "pads", 2: "constant_value", 3: "axes"},
    "Range": {0: "start", 1: "limit", 2: "delta"},
    "Reshape": {1: "shape"},
    "Resize": {1: "roi", 2: "scales", 3: "sizes"},
    "STFT": {1: "frame_step", 2: "window", 3: "frame_length"},
    "SequenceAt": {1: "position"},
    "SequenceErase": {1: "position"},
    "SequenceInsert": {2: "position"},
    "Split": {1: "split"},
    "SplitToSequence": {1: "split"},
    "Squeeze": {1: "axes"},
    "TopK": {1: "K"},
    "Unsqueeze": {1: "axes"},
    "Upsample": {1: "scales"},
}


def settings_of(node: onnx.NodeProto) -> dict[str, str]:
    """Return the operands of a node that have to be constants: by tensor, what ONNX calls them."""
    places = _SETTINGS.get(node.op_type, {})
    return {node.input[at]: name for at, name in places.items() if any(node.input[at : at + 1])}


def setting_of_run_time(node: onnx.NodeProto, constants: Container[str]) -> str | None:
    """Return which setting of a node is no constant, in words; None where there is none.

    Parameters
    ----------
    node : onnx.NodeProto
        Any node.
    constants : container of str
        Names of the tensors whose values are known.
    """
    for operand, name in settings_of(node).items():
        if operand not in constants:
            return f"its {name} {operand!r} is known at run time only"
    return None


def dequantized_settings(
    graph: onnx.GraphProto, constants: Mapping[str, onnx.TensorProto]
) -> dict[str, np.ndarray]:
    """Return what `DequantizeLinear` makes of constants that nodes read as settings.

    Quantizers give steps to every constant of floats, the number of a `Pad` among them.
    """
    read = {name for node in all_nodes(graph) for name in settings_of(node)}
    steps = [n for n in graph.node if n.op_type == "DequantizeLinear" and n.output[0] in read]
    return {n.output[0]: _dequantized(n, constants) for n in steps if _is_number(n, constants)}


def _is_number(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether it is a constant with one scale."""
    known = all(name in constants for name in node.input if name)
    return known and math.prod(constants[node.input[1]].dims) == 1


def _dequantized(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> np.ndarray:
    from onnx import numpy_helper

    given = [numpy_helper.to_array(constants[name]) for name in node.input if name]
    steps, scale, zero = (each.astype(np.float64) for each in (*given, np.zeros(1))[:3])
    return ((steps - zero.reshape(())) * scale.reshape(())).astype(given[1].dtype)
