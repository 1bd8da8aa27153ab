"""What a model is in float64: ONNX's reference evaluator, on the model with doubles for its floats.

    python benchmarks/doubles.py MODEL.onnx INPUTS.npz

prints how far this library and ONNX Runtime are from it. Where the two differ from each other by
more than rounding, it says whose error that is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tvm_blislike.bench.result import LEAST_OUTPUT
from tvm_blislike.model.agreement import max_rel_error

# Attributes that name the type of a result.
_TYPES = {"to", "dtype", "output_datatype"}
Arrays = Mapping[str, np.ndarray]


class STFT(OpRun):
    """ONNX, STFT-17: the package's own takes no signal without an axis of parts."""

    op_domain = ""

    def _run(self, signal, step, window=None, length=None, onesided=1):
        signal = signal[..., 0] if signal.ndim == 3 and signal.shape[-1] == 1 else signal
        signal = signal[..., 0] + 1j * signal[..., 1] if signal.ndim == 3 else signal
        size = int(length) if length is not None else len(window)
        frames = np.lib.stride_tricks.sliding_window_view(signal, size, -1)[:, :: int(step)]
        frames = frames if window is None else frames * window
        spectrum = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
        return (np.stack([spectrum.real, spectrum.imag], -1),)


def doubled(model: ModelProto) -> ModelProto:
    """Return a model with doubles where it has floats."""
    result = ModelProto()
    result.CopyFrom(model)
    _double_graph(result.graph)
    for function in result.functions:
        _double_nodes(function.node)
    return result


def evaluated(model: ModelProto, inputs: Arrays) -> dict[str, np.ndarray]:
    """Return the outputs of a model in float64.

    Parameters
    ----------
    model : ModelProto
        Of operators that ONNX's reference evaluator has; what it says of others comes through.
    inputs : mapping of str to array
        Their floats are taken as doubles.
    """
    names = [value.name for value in model.graph.output]
    feeds = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in inputs.items()}
    results = ReferenceEvaluator(doubled(model), new_ops=[STFT]).run(names, feeds)
    return dict(zip(names, results, strict=True))


def distances(path: Path, inputs: Arrays, threads: int = 1) -> dict[str, float]:
    """Return how far engines are from float64, relative to the largest output.

    Parameters
    ----------
    path : path
        ONNX file.
    inputs : mapping of str to array
        What it runs on.
    threads : int
        Threads that the model is compiled for.
    """
    import onnxruntime

    import tvm_blislike

    exact = evaluated(onnx.load(path), inputs)
    shapes = {name: array.shape for name, array in inputs.items()}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    results = {
        "blislike": tvm_blislike.compile(path, "native", shapes, threads).run(inputs),
        "onnxruntime": dict(zip(exact, session.run(list(exact), dict(inputs)), strict=True)),
    }
    return {name: max_rel_error(found, exact, LEAST_OUTPUT) for name, found in results.items()}


def _double_graph(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        _double_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    _double_nodes(graph.node)


def _double_nodes(nodes: Iterable[NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                _double_tensor(attribute.t)
            elif attribute.type == AttributeProto.GRAPH:
                _double_graph(attribute.g)
            elif attribute.name in _TYPES and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE


def _double_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def main() -> None:
    """Print the distances of one model."""
    path, inputs = sys.argv[1:]
    for name, error in distances(Path(path), dict(np.load(inputs))).items():
        print(f"{name:12s} {error:.1e} from float64")


if __name__ == "__main__":
    main()
