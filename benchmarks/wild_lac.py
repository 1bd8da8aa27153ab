"""LAC, a lexer of Chinese, as ONNX: its package carries weights and a program of Paddle's.

Embeddings, two pairs of gated recurrent layers, one in each direction, and scores of tags, of which
the package finds the best path. Its gates are ONNX's: the share of the candidate is what ONNX calls
one minus the update gate, and a sigmoid of negated numbers is one minus the sigmoid.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_LAYERS = 2
_OPSET, _IR_VERSION = 17, 8


def write_models(folder: Path) -> None:
    """Write `NAME.onnx` of each folder `NAME/model` of weights, below a folder."""
    for found in sorted(folder.rglob("*_model/model/gru_3.w_0")):
        onnx.save(_lexer(found.parent), found.parents[1].with_suffix(".onnx"))


def _lexer(folder: Path) -> onnx.ModelProto:
    """Return the model (tokens,) of int64 to (tokens, tags) of fp32."""
    weights = {"embeddings": _tensor(folder / "word_emb")}
    nodes = [helper.make_node("Gather", ["embeddings", "tokens"], ["rows"])]
    weights["axis"] = np.array([1])
    nodes.append(helper.make_node("Unsqueeze", ["rows", "axis"], ["x0"]))
    for layer in range(_LAYERS):
        # Numbered by twos: forwards, backwards.
        both = [_gates(folder, number) for number in (2 * layer, 2 * layer + 1)]
        for name, parts in zip("WRB", zip(*both, strict=True), strict=True):
            weights[f"{name}{layer}"] = np.stack(parts)
        names = [f"{name}{layer}" for name in ("x", "W", "R", "B")]
        units = both[0][1].shape[1]
        gru = {"direction": "bidirectional", "hidden_size": units}
        nodes.append(helper.make_node("GRU", names, [f"y{layer}"], **gru))
        nodes.append(helper.make_node("Transpose", [f"y{layer}"], [f"t{layer}"], perm=[0, 2, 1, 3]))
        weights[f"shape{layer}"] = np.array([0, 0, 2 * units])
        nodes.append(helper.make_node("Reshape", [f"t{layer}", f"shape{layer}"], [f"x{layer + 1}"]))
    nodes.append(helper.make_node("Squeeze", [f"x{_LAYERS}", "axis"], ["features"]))
    weights |= {name: _tensor(folder / name) for name in ("fc_4.w_0", "fc_4.b_0")}
    nodes.append(helper.make_node("Gemm", ["features", *list(weights)[-2:]], ["scores"]))
    tags = weights["fc_4.b_0"].size
    graph = helper.make_graph(
        nodes,
        "lac",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["length"])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["length", tags])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def _gates(folder: Path, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return W, R and B of one direction, update gates negated."""
    inputs, bias = (_tensor(folder / f"fc_{number}.{kind}_0") for kind in "wb")
    states, more = (_tensor(folder / f"gru_{number}.{kind}_0") for kind in "wb")
    units = states.shape[0]
    # In memory the weights of both gates lie side by side, those of the candidate behind them.
    of_gates, of_candidate = np.split(states.reshape(-1), [2 * units * units])
    rows = [*np.split(of_gates.reshape(units, 2 * units).T, 2), of_candidate.reshape(units, -1).T]
    sign = np.repeat(np.float32([-1, 1, 1]), units)
    both = sign * (bias.reshape(-1) + more.reshape(-1)), np.zeros(3 * units, np.float32)
    return sign[:, None] * inputs.T, sign[:, None] * np.concatenate(rows), np.concatenate(both)


def _tensor(path: Path) -> np.ndarray:
    """Return a tensor as Paddle writes it: two headers, a message with its sizes, fp32."""
    data = path.read_bytes()
    # Versions of 4 bytes around a number of 8 of levels of detail, which are none.
    at = 4 + 8 + 4
    length = int.from_bytes(data[at : at + 4], "little")
    fields = data[at + 4 : at + 4 + length]
    shape, place = [], 0
    while place < length:
        tag, value, place = fields[place], *_number(fields, place + 1)
        if tag >> 3 == 2:
            shape.append(value)
    return np.frombuffer(data, np.float32, offset=at + 4 + length).reshape(shape)


def _number(fields: bytes, place: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and where it ends."""
    value, shift = 0, 0
    while True:
        byte = fields[place]
        value, shift, place = value | (byte & 0x7F) << shift, shift + 7, place + 1
        if byte < 0x80:
            return value, place
