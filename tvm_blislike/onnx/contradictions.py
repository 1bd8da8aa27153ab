"""Nodes whose operands have sizes that the operator does not allow: no runtime could run them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_blislike.onnx.graphs import attribute
from tvm_blislike.onnx.recurrent import DIRECTIONS, text
from tvm_blislike.onnx.rewrites.recurrent import shapes_of_operands
from tvm_blislike.onnx.shapes import constants_of, distinct, shapes_in
from tvm_blislike.onnx.single_nodes import single_nodes
from tvm_blislike.onnx.sizes import rendered
from tvm_blislike.onnx.unsupported import describe

if TYPE_CHECKING:
    import onnx

Shape = tuple[int, ...]
# What ONNX says of a node's sizes, behind the node itself; errors of other kinds are no proof.
_OF_SIZES = re.compile(r"\): \[ShapeInferenceError\] (.+)")


@dataclass(frozen=True)
class _Sized:
    """A node, its operands' shapes, and those of its results that are known."""

    node: onnx.NodeProto
    operands: Sequence[Shape | None]
    results: Sequence[Shape | None]


def contradiction(proto: onnx.ModelProto, types: onnx.GraphProto) -> str | None:
    """Return the first node that cannot be computed at the sizes of its operands, and why.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; graphs inside its nodes are not looked at.
    types : onnx.GraphProto
        Its graph as shape inference leaves it (`shapes.inferred`).

    Returns
    -------
    str or None
        None where all sizes suit, or where it cannot be proved that they do not.
    """
    constants = constants_of(proto)
    shapes = shapes_in(types, constants)
    for node, alone in single_nodes(proto, types, constants):
        sized = _Sized(node, *([shapes.get(n) for n in ns] for ns in (node.input, node.output)))
        reason = _fault(sized) or _fault_by_onnx(sized, alone)
        if reason:
            sizes = ", ".join(rendered(shapes[name]) for name in distinct(node.input))
            return f"{describe(node)} of {sizes}: {reason}"
    return None


def _fault_by_onnx(sized: _Sized, alone: onnx.ModelProto) -> str | None:
    """Return what ONNX has against the sizes of a node; it is asked where it found no result."""
    from onnx import shape_inference

    if None not in sized.results:
        return None
    try:
        shape_inference.infer_shapes(alone, strict_mode=True, data_prop=True)
    except Exception as error:  # those of other kinds than sizes are for the importer to tell
        found = _OF_SIZES.search(str(error))
        return found.group(1).strip() if found else None
    return None


def _fault(sized: _Sized) -> str | None:
    """Return what is wrong with sizes that ONNX's inference accepts."""
    rule = _RULES.get(sized.node.op_type)
    return rule(sized) if rule else None


def _pool(sized: _Sized) -> str | None:
    """A window beyond the image by less than a stride gives an empty result, and no error."""
    return _window(sized, least=0)


def _window(sized: _Sized, least: int) -> str | None:
    result = sized.results[0]
    if result is None or min(result) >= least or 0 in sized.operands[0]:
        return None
    return f"its window does not fit, the result would be {rendered(result)}"


def _convolution(sized: _Sized) -> str | None:
    data, weights = sized.operands[:2]
    wanted = weights[1] * (attribute(sized.node, "group") or 1)
    if data[1] != wanted:
        return f"its weights are for {wanted} channels, its data has {data[1]}"
    return _window(sized, least=1)


def _transposed(sized: _Sized) -> str | None:
    data, weights = sized.operands[:2]
    if data[1] != weights[0]:
        return f"its weights are for {weights[0]} channels, its data has {data[1]}"
    return None


def _reshape(sized: _Sized) -> str | None:
    result = sized.results[0]
    if result is None or math.prod(result) == math.prod(sized.operands[0]):
        return None
    return f"its result would be {rendered(result)}, of another number of elements"


def _recurrent(sized: _Sized) -> str | None:
    node, operands = sized.node, sized.operands
    if any(len(shape) != 3 for shape in operands[:3]):
        return "its data, W and R are to have three axes"
    if text(attribute(node, "direction") or "forward") not in DIRECTIONS:
        return None
    wanted = shapes_of_operands(node, operands[0], operands[2])
    for name, place, found in zip(node.input, range(len(operands)), operands, strict=True):
        if name and found != wanted.get(place, found):
            return f"its operand {name!r} of {rendered(found)} is to be {rendered(wanted[place])}"
    return None


_RULES: Mapping[str, Callable[[_Sized], str | None]] = {
    "AveragePool": _pool,
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "LpPool": _pool,
    "MaxPool": _pool,
    "RNN": _recurrent,
    "Reshape": _reshape,
}
