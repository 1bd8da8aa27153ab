"""LSTM, GRU and RNN: what their converter does not take is refused, halves become floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_blislike.model.recurrent import GATES
from tvm_blislike.onnx.graphs import attribute
from tvm_blislike.onnx.recurrent import DIRECTIONS, NUMBERS, USUAL, activations, text
from tvm_blislike.onnx.rewrites.site import Site

if TYPE_CHECKING:
    import onnx

# The place of `sequence_lens`, integers.
_LENGTHS = 4
_HALVES = ("float16", "bfloat16")


def recurrent(site: Site) -> Sequence[str] | None:
    """Leave a node of floats, compute one of halves in fp32, refuse all others."""
    _check_settings(site)
    _check_shapes(site)
    name = site.dtype().name
    if name == "float32":
        return None
    if name not in _HALVES:
        site.refuse(f"its data is {name}", "export the model in float32")
    return _in_floats(site)


def dynamic_lstm(site: Site) -> Sequence[str]:
    """Write `DynamicQuantizeLSTM` as an `LSTM` of its weights' real numbers.

    ONNX Runtime rounds the data and the state of each step to 8 bits as well; these stay in fp32.
    """
    weights = [_dequantized(site, place, scale) for place, scale in ((1, 8), (2, 10))]
    rest = list(site.node.input[3:8])
    while rest and not rest[-1]:
        rest.pop()
    operands = [site.node.input[0], *map(site.constant, weights), *rest]
    made = site.add_all("LSTM", operands, len(site.node.output))
    site.nodes[-1].attribute.extend(site.node.attribute)
    return made


def _dequantized(site: Site, place: int, scale: int) -> np.ndarray:
    """Return weights (directions, rows of gates, columns); they lie transposed in the node."""
    quantized, step, zero = (site.value(index) for index in (place, scale, scale + 1))
    if quantized is None or step is None or zero is None or quantized.ndim != 3:
        site.refuse("its weights are no tensors of three axes with steps and zero points")
    directions, _, rows = quantized.shape
    if any(part.shape not in ((directions,), (directions, rows)) for part in (step, zero)):
        site.refuse(f"its steps have the shape {step.shape}, its zero points {zero.shape}")
    step, zero = (part.reshape(directions, 1, -1) for part in (step, zero))
    numbers = (quantized.astype(np.int32) - zero.astype(np.int32)) * step.astype(np.float32)
    return numbers.transpose(0, 2, 1).astype(np.float32)


def _check_settings(site: Site) -> None:
    kind, direction = site.node.op_type, site.attribute("direction", "forward")
    if direction not in DIRECTIONS:
        site.refuse(f"its direction is {direction!r}; ONNX knows {', '.join(DIRECTIONS)}")
    names = [text(name) for name in site.attribute("activations", [])]
    unknown = [name for name in names if name.lower() not in NUMBERS]
    if unknown:
        site.refuse(f"its activation {unknown[0]!r} is none of ONNX")
    wanted = len(USUAL[kind]) * len(DIRECTIONS[direction])
    if names and len(names) != wanted:
        site.refuse(f"it has {len(names)} activations, not {wanted}")
    _check_numbers(site)


def _check_numbers(site: Site) -> None:
    names = ("activations", "activation_alpha", "activation_beta")
    settings = {name: site.attribute(name, ()) for name in names}
    for direction in activations(site.node.op_type, settings):
        for each in direction:
            if math.isnan(each.alpha) or math.isnan(each.beta):
                site.refuse(
                    f"its activation {each.name!r} has no numbers of its own",
                    "give activation_alpha and activation_beta",
                )


def _check_shapes(site: Site) -> None:
    """Refuse operands whose shapes do not belong together: the kernel would read beyond them."""
    data, weights, recurrents = (site.shape(index) for index in range(3))
    if not len(data) == len(weights) == len(recurrents) == 3:
        site.refuse("its data, W and R have not three axes")
    if 0 in (*data, *weights, *recurrents):
        site.refuse("an operand is empty")
    for index, shape in shapes_of_operands(site.node, data, recurrents).items():
        if site.has_operand(index) and site.shape(index) != shape:
            site.refuse(f"its operand {site.node.input[index]!r} should have the shape {shape}")
    hidden = recurrents[2]
    if site.attribute("hidden_size", hidden) != hidden:
        site.refuse(f"its hidden_size is not the {hidden} of its recurrent weights")


def shapes_of_operands(
    node: onnx.NodeProto, data: Sequence[int], recurrents: Sequence[int]
) -> dict[int, tuple[int, ...]]:
    """Return the shapes that the operands of a node are to have, by their places.

    Parameters
    ----------
    node : onnx.NodeProto
        An LSTM, GRU or RNN of a known direction.
    data, recurrents : sequence of int
        Shapes, of three axes, of its data and its recurrent weights.
    """
    directions = len(DIRECTIONS[text(attribute(node, "direction") or "forward")])
    rows, hidden = len(GATES[node.op_type]) * recurrents[2], recurrents[2]
    batch_first = bool(attribute(node, "layout"))
    batch = data[0 if batch_first else 1]
    states = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    return {
        1: (directions, rows, data[2]),
        2: (directions, rows, hidden),
        3: (directions, 2 * rows),
        _LENGTHS: (batch,),
        5: states,
        6: states,
        7: (directions, 3 * hidden),
    }


def _in_floats(site: Site) -> Sequence[str]:
    dtype = site.dtype()
    operands = [
        name if index == _LENGTHS or not name else _as_floats(site, index)
        for index, name in enumerate(site.node.input)
    ]
    site.add_all(site.node.op_type, operands, len(site.node.output))
    made = site.nodes[-1]
    made.attribute.extend(site.node.attribute)
    return [site.cast(name, dtype) for name in list(made.output)]


def _as_floats(site: Site, index: int) -> str:
    value = site.known(index)
    if value is None:
        return site.cast(site.node.input[index], np.float32)
    return site.constant(value.astype(np.float32))
