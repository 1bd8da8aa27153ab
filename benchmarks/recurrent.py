"""Recurrent layers in fp32 beside other engines, in one interleaved run each.

    python benchmarks/recurrent.py                       all models, 1 and 2 threads
    python benchmarks/recurrent.py -m lstm_256 -t 1      one of them

Layers are stacked as torch writes them: LSTM or GRU (`linear_before_reset`), a transpose and a
reshape of both directions between them. `vad` is a step of a detector of speech: convolutions over
a frame, an LSTM cell whose states go in and out, and a score. What is measured and printed is as in
`attention.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import onnx
from attention import line, measured, speed
from integer_models import in_a_process
from onnx import TensorProto, helper, numpy_helper

FOLDER = Path(__file__).parents[1] / "build" / "recurrent"
_GATES = {"LSTM": 4, "GRU": 3}
_FLOAT = TensorProto.FLOAT


@dataclass(frozen=True)
class Stack:
    """Layers of one kind, each on the results of the one before it.

    Parameters
    ----------
    kind : str
        "LSTM" or "GRU".
    inputs, hidden, layers : int
        Elements of a step, units of a direction, layers.
    steps, batch : int
        Sizes of the data.
    both : bool
        Whether layers go in both directions.
    """

    kind: str
    inputs: int
    hidden: int
    layers: int = 1
    steps: int = 100
    batch: int = 1
    both: bool = False

    def model(self) -> onnx.ModelProto:
        """Return the model, of random weights."""
        directions, rows = 1 + self.both, _GATES[self.kind] * self.hidden
        rng, found, nodes, name, width = np.random.default_rng(0), [], [], "x", self.inputs
        merged = (self.steps, self.batch, directions * self.hidden)
        found.append(numpy_helper.from_array(np.array(merged), "merged"))
        notes = {"hidden_size": self.hidden, "direction": ("forward", "bidirectional")[self.both]}
        if self.kind == "GRU":
            notes["linear_before_reset"] = 1
        for layer in range(self.layers):
            operands = {"w": (rows, width), "r": (rows, self.hidden), "b": (2 * rows,)}
            for operand, size in operands.items():
                array = _uniform(rng, self.hidden, directions, *size)
                found.append(numpy_helper.from_array(array, f"{operand}{layer}"))
            own = [f"{operand}{layer}" for operand in operands]
            nodes += [
                helper.make_node(self.kind, [name, *own], [f"apart{layer}"], **notes),
                helper.make_node("Transpose", [f"apart{layer}"], [f"t{layer}"], perm=[0, 2, 1, 3]),
                helper.make_node("Reshape", [f"t{layer}", "merged"], [f"y{layer}"]),
            ]
            name, width = f"y{layer}", directions * self.hidden
        x = (self.steps, self.batch, self.inputs)
        return _model(nodes, {"x": x}, {name: merged}, found)


def _detector() -> onnx.ModelProto:
    """Return a step of a detector of speech in 129 frequencies by 4 frames."""
    rng, nodes, found, name, channels = np.random.default_rng(0), [], [], "x", 129
    for layer, (width, stride) in enumerate([(128, 1), (64, 2), (64, 2), (128, 1)]):
        found += [
            numpy_helper.from_array(_uniform(rng, 3 * channels, width, channels, 3), f"k{layer}"),
            numpy_helper.from_array(_uniform(rng, 3 * channels, width), f"kb{layer}"),
        ]
        operands, notes = [name, f"k{layer}", f"kb{layer}"], {"pads": [1, 1], "strides": [stride]}
        nodes.append(helper.make_node("Conv", operands, [f"c{layer}"], **notes))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"a{layer}"]))
        name, channels = f"a{layer}", width
    for operand, size in {"w": (512, 128), "r": (512, 128), "b": (1024,)}.items():
        found.append(numpy_helper.from_array(_uniform(rng, 128, 1, *size), operand))
    found += [
        numpy_helper.from_array(_uniform(rng, 128, 128, 1), "last"),
        numpy_helper.from_array(np.array([1, 128]), "row"),
    ]
    cell = ["steps", "w", "r", "b", "", "h", "c"]
    nodes += [
        helper.make_node("Transpose", [name], ["steps"], perm=[2, 0, 1]),
        helper.make_node("LSTM", cell, ["", "h_after", "c_after"], hidden_size=128),
        helper.make_node("Reshape", ["h_after", "row"], ["state"]),
        helper.make_node("Relu", ["state"], ["positive"]),
        helper.make_node("MatMul", ["positive", "last"], ["sum"]),
        helper.make_node("Sigmoid", ["sum"], ["score"]),
    ]
    state = (1, 1, 128)
    results = {"score": (1, 1), "h_after": state, "c_after": state}
    return _model(nodes, {"x": (1, 129, 4), "h": state, "c": state}, results, found)


def _uniform(rng: np.random.Generator, summed: int, *shape: int) -> np.ndarray:
    """Return weights as torch begins with them."""
    limit = summed**-0.5
    return rng.uniform(-limit, limit, shape).astype("float32")


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...]],
    constants: list[onnx.TensorProto],
) -> onnx.ModelProto:
    given, made = (
        [helper.make_tensor_value_info(name, _FLOAT, shape) for name, shape in some.items()]
        for some in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "recurrent", given, made, constants)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "lstm_64": Stack("LSTM", 64, 64).model,
    "lstm_256": Stack("LSTM", 128, 256, layers=2).model,
    "lstm_512_both": Stack("LSTM", 512, 512, both=True).model,
    "lstm_256_batch_8": Stack("LSTM", 256, 256, batch=8).model,
    "gru_128": Stack("GRU", 128, 128).model,
    "gru_256_both": Stack("GRU", 256, 256, layers=2, both=True).model,
    "gru_512": Stack("GRU", 512, 512).model,
    "vad": _detector,
}


def saved(name: str) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a model; return its file and seeded inputs."""
    model, path = MODELS[name](), FOLDER / f"{name}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    rng, inputs = np.random.default_rng(0), {}
    for value in model.graph.input:
        shape = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        inputs[value.name] = rng.standard_normal(shape, np.float32)
    return path, inputs


def main() -> None:
    """Compare, or, in a process of its own, measure one model."""
    if sys.argv[1:2] == ["--times"]:
        print(json.dumps(measured(*saved(sys.argv[2]), int(sys.argv[3]))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", action="append", choices=list(MODELS), metavar="NAME")
    parser.add_argument("-t", "--threads", action="append", type=int, metavar="N")
    options = parser.parse_args()
    for threads in options.threads or (1, 2):
        found = []
        for name in options.model or MODELS:
            result = in_a_process(__file__, name, threads)
            print(line(name, threads, result), flush=True)
            found.append(speed(result))
        print(f"{threads}t: geometric mean {geometric_mean(found):.3f}x, lowest {min(found):.3f}x")


if __name__ == "__main__":
    main()
