"""Small graphs of images whose height and width stay open, and what they are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 32
HEIGHTS, WIDTHS = range(20, 67), range(24, 71)
SIZES = ((66, 70), (20, 24), (33, 41), (20, 69), (65, 24), (48, 48), (21, 30))


@dataclass(frozen=True)
class Case:
    """A small graph from `x` to `y`; `step` lies between two sizes that it takes."""

    name: str
    nodes: Sequence[onnx.NodeProto]
    weights: dict[str, tuple[int, ...]]
    step: int = 1

    def model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(len(self.name))
        tensors = [_tensor(rng, name, shape) for name, shape in self.weights.items()]
        constants = [
            numpy_helper.from_array(np.array(value), name) for name, value in _CONSTANTS.items()
        ]
        used = {name for node in self.nodes for name in node.input}
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, CHANNELS, "h", "w"])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [each for each in (*tensors, *constants) if each.name in used],
        )
        opsets = [helper.make_opsetid("", 13)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def shapes(self) -> dict[str, tuple[range, ...]]:
        return {"h": (HEIGHTS[:: self.step],), "w": (WIDTHS[:: self.step],)}


_CONSTANTS = {
    **{f"times{n}": np.array([1, 1, n, n], np.float32) for n in (2, 4, 8)},
    "behind": np.array([0, 0, 0, 0, 0, 0, 1, 1]),
    "around": np.array([0, 0, 2, 1, 0, 0, 3, 1]),
    "five": np.float32(5),
    "one_row": np.array([0, 0, -1]),
    "rows": np.array([2]),
    "last": np.array([-1]),
    "first": np.array([-(2**31)]),
    "back": np.array([-1]),
    "from_end": np.array([-15]),
    "far": np.array([1000]),
    "second": np.array([1]),
    "by_two": np.array([2]),
}


def _tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> onnx.TensorProto:
    values = rng.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))
    return numpy_helper.from_array(values.astype("float32"), name)


def conv(source: str, weights: str, result: str, kernel: int, **attributes: object):
    pad = attributes.pop("pad", kernel // 2 * attributes.get("dilations", [1])[0])
    return helper.make_node(
        "Conv",
        [source, weights],
        [result],
        kernel_shape=[kernel, kernel],
        pads=[pad] * 4,
        **attributes,
    )


def node(kind: str, sources: str, result: str, **attributes: object) -> onnx.NodeProto:
    inputs = ["" if name == "-" else name for name in sources.split()]
    return helper.make_node(kind, inputs, [result], **attributes)


def nearest(times: int) -> onnx.NodeProto:
    ways = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return node("Resize", f"t - times{times}", "p", mode="nearest", **ways)


POOL = {"kernel_shape": [3, 3], "pads": [1] * 4}
FIRST = conv("x", "w3", "t", 3)
LAST = conv("p", "v3", "y", 3)
BOTH = {"w3": (48, CHANNELS, 3, 3), "v3": (40, 48, 3, 3)}

CASES = [
    Case("pointwise", [conv("x", "w", "y", 1)], {"w": (48, CHANNELS, 1, 1)}),
    Case("strided", [conv("x", "w", "y", 3, strides=[2, 2])], {"w": (48, CHANNELS, 3, 3)}),
    Case("depthwise", [conv("x", "w", "y", 5, group=CHANNELS)], {"w": (CHANNELS, 1, 5, 5)}),
    Case(
        "depthwise strided",
        [conv("x", "w", "y", 3, group=CHANNELS, strides=[2, 2])],
        {"w": (CHANNELS, 1, 3, 3)},
    ),
    Case("two layers", [FIRST, conv("t", "v3", "y", 3)], BOTH),
    Case(
        "dilated",
        [conv("x", "w3", "t", 3, dilations=[3, 3]), conv("t", "v3", "y", 3, dilations=[6, 6])],
        BOTH,
    ),
    Case(
        "dilated further than a tile",
        [conv("x", "w3", "t", 3, dilations=[12, 12]), conv("t", "v3", "y", 3, dilations=[18, 18])],
        BOTH,
    ),
    Case(
        "beside what went in",
        [FIRST, node("Concat", "t x", "p", axis=1), conv("p", "u", "y", 3)],
        {**BOTH, "u": (16, 80, 3, 3)},
    ),
    Case("smaller results", [conv("x", "w3", "t", 3, pad=0), conv("t", "v3", "y", 3, pad=0)], BOTH),
    Case("mean", [FIRST, node("GlobalAveragePool", "t", "y")], BOTH),
    Case(
        "mean along the height",
        [conv("x", "w", "t", 1), node("ReduceMean", "t", "m", axes=[2]), node("Mul", "t m", "y")],
        {"w": (12, CHANNELS, 1, 1)},
    ),
    Case(
        "squeeze and excite",
        [
            FIRST,
            node("GlobalAveragePool", "t", "m"),
            conv("m", "u", "a", 1),
            node("Sigmoid", "a", "s"),
            node("Mul", "t s", "p"),
            LAST,
        ],
        {**BOTH, "u": (48, 48, 1, 1)},
    ),
    Case(
        "largest of a window",
        [FIRST, node("MaxPool", "t", "p", **POOL, strides=[2, 2]), LAST],
        BOTH,
    ),
    Case(
        "a margin of zeros that is the lowest",
        [
            FIRST,
            node("Relu", "t", "r"),
            node("MaxPool", "r", "p", **POOL, strides=[2, 2]),
            conv("r", "v3", "q", 3, strides=[2, 2]),
            node("Concat", "p q", "y", axis=1),
        ],
        BOTH,
    ),
    Case(
        "averages of whole windows",
        [FIRST, node("AveragePool", "t", "p", kernel_shape=[2, 2], strides=[2, 2]), LAST],
        BOTH,
    ),
    Case("averages that count", [FIRST, node("AveragePool", "t", "p", **POOL), LAST], BOTH),
    Case("nearest, 2", [FIRST, nearest(2), LAST], BOTH),
    Case("nearest, 8", [FIRST, nearest(8), LAST], BOTH),
    Case(
        "linear",
        [
            FIRST,
            node(
                "Resize",
                "t - times2",
                "p",
                mode="linear",
                coordinate_transformation_mode="half_pixel",
            ),
            LAST,
        ],
        BOTH,
    ),
    Case(
        "transposed",
        [
            FIRST,
            node("ConvTranspose", "t v", "p", kernel_shape=[2, 2], strides=[2, 2]),
            conv("p", "u", "y", 3),
        ],
        {**BOTH, "v": (48, 24, 2, 2), "u": (16, 24, 3, 3)},
    ),
    Case(
        "transposed with padding",
        [
            FIRST,
            node("ConvTranspose", "t v", "p", kernel_shape=[4, 4], strides=[2, 2], pads=[1] * 4),
            conv("p", "u", "y", 3),
        ],
        {**BOTH, "v": (48, 24, 4, 4), "u": (16, 24, 3, 3)},
    ),
    Case(
        "concatenated",
        [
            FIRST,
            conv("x", "v", "b", 1),
            node("Concat", "t b", "p", axis=1),
            conv("p", "u", "y", 3),
        ],
        {**BOTH, "v": (32, CHANNELS, 1, 1), "u": (16, 80, 3, 3)},
    ),
    Case(
        "odd channels",
        [
            conv("x", "w", "t", 3),
            conv("t", "v", "b", 1),
            node("Add", "t b", "p"),
            conv("p", "u", "y", 3),
        ],
        {"w": (21, CHANNELS, 3, 3), "v": (21, 21, 1, 1), "u": (7, 21, 3, 3)},
    ),
    Case(
        "padded behind a layer",
        [conv("x", "w", "t", 1), node("Pad", "t behind", "p"), conv("p", "u", "y", 2, pad=0)],
        {"w": (24, CHANNELS, 1, 1), "u": (12, 24, 2, 2)},
    ),
    Case(
        "padded",
        [conv("x", "w", "t", 1), node("Pad", "t behind", "y")],
        {"w": (24, CHANNELS, 1, 1)},
    ),
    Case("no layer", [node("Relu", "x", "y")], {}),
    Case("from the second row on", [FIRST, node("Slice", "t second far rows", "p"), LAST], BOTH),
    Case("every other row", [FIRST, node("Slice", "t second far rows by_two", "p"), LAST], BOTH),
    Case(
        "zeros around what has none",
        [FIRST, node("Sigmoid", "t", "s"), node("Pad", "s around", "p"), LAST],
        BOTH,
    ),
    Case("zeros around an input's", [node("Sigmoid", "x", "s"), node("Pad", "s around", "y")], {}),
    Case("edges around", [FIRST, node("Pad", "t around", "p", mode="edge"), LAST], BOTH),
    Case(
        "cubic",
        [
            FIRST,
            node(
                "Resize",
                "t - times2",
                "p",
                mode="cubic",
                coordinate_transformation_mode="half_pixel",
            ),
            LAST,
        ],
        BOTH,
    ),
    Case(
        "parts of the channels",
        [FIRST, helper.make_node("Split", ["t"], ["a", "b"], axis=1), node("Mul", "a b", "y")],
        BOTH,
    ),
    Case("groups", [conv("x", "w", "y", 3, group=4)], {"w": (64, 8, 3, 3)}),
    Case(
        "as large again",
        [
            conv("x", "w3", "t", 3, strides=[2, 2]),
            nearest(2),
            conv("x", "v", "b", 1),
            node("Add", "p b", "c"),
            conv("c", "v3", "y", 3),
        ],
        {**BOTH, "v": (48, CHANNELS, 1, 1)},
        step=2,
    ),
]
