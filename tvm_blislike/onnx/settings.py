"""Operands that TVM's ONNX importer takes as constants only: shapes, axes, counts, thresholds."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

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
    "Pad": {1: "pads", 3: "axes"},
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


def setting_of_run_time(node: onnx.NodeProto, constants: Container[str]) -> str | None:
    """Return which setting of a node is no constant, in words; None where there is none.

    Parameters
    ----------
    node : onnx.NodeProto
        Any node.
    constants : container of str
        Names of the tensors whose values are known.
    """
    for place, name in _SETTINGS.get(node.op_type, {}).items():
        operand = node.input[place] if place < len(node.input) else ""
        if operand and operand not in constants:
            return f"its {name} {operand!r} is known at run time only"
    return None
