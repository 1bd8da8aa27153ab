"""How far a quantized model lies from the original: every layer, and the results.

Both models run in ONNX Runtime without its optimizations, so that the quantized one is the float
simulation of its integers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tvm_blislike.quantize.data import Sample

# What the quantizer appends to the name of a tensor that it has quantized.
_SUFFIX = "_DequantizeLinear_Output"


@dataclass(frozen=True)
class LayerError:
    """The error of one quantized layer.

    Parameters
    ----------
    name, operator : str
        Of its node.
    error : float
        Root of the mean square of the difference of its result from that in fp32, relative to the
        root of the mean square of the latter.
    inherited : float
        The largest error of what it reads.
    has_weights : bool
        Whether it reads constants beside.
    """

    name: str
    operator: str
    error: float
    inherited: float
    has_weights: bool

    @property
    def added(self) -> float:
        """The error that the layer itself adds, as if it were independent of what it inherits."""
        return math.sqrt(max(self.error**2 - self.inherited**2, 0.0))


def layer_errors(
    original: onnx.ModelProto,
    quantized: onnx.ModelProto,
    samples: Sequence[Sample],
    done: Callable[[], None] = lambda: None,
) -> tuple[list[LayerError], dict[str, float]]:
    """Return the errors of the quantized layers in the order of the graph, and of each output.

    Parameters
    ----------
    original, quantized : ModelProto
        Before and after the quantizer.
    samples : sequence of Sample
        At least one.
    done : callable
        Called after each sample.
    """
    pairs = _pairs(original, quantized)
    outputs = [value.name for value in original.graph.output]
    theirs = {**pairs, **{name: name for name in outputs}}
    one = _Runner(original, theirs)
    other = _Runner(quantized, theirs.values())
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))
    for sample in samples:
        expected, found = one(sample), other(sample)
        for name, copy in theirs.items():
            sums[name] += _squares(found[copy], expected[name])
        done()
    errors = {name: _relative(*each) for name, each in sums.items()}
    return _layers(quantized, pairs, errors), {name: errors[name] for name in outputs}


def _squares(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the sums of squares of a difference and of what is expected."""
    wanted = expected.astype("float64")
    return np.array([((found - wanted) ** 2).sum(), (wanted**2).sum()])


def _relative(difference: float, expected: float) -> float:
    return float(np.sqrt(difference / expected if expected else difference))


def _pairs(original: onnx.ModelProto, quantized: onnx.ModelProto) -> dict[str, str]:
    """Return the tensors that nodes of the original compute, with what replaces each."""
    computed = {name for node in original.graph.node for name in node.output}
    found = {}
    for node in quantized.graph.node:
        if node.op_type == "DequantizeLinear":
            name = node.output[0].removesuffix(_SUFFIX)
            if name in computed:
                found[name] = node.output[0]
    return found


def _layers(
    quantized: onnx.ModelProto, pairs: Mapping[str, str], errors: Mapping[str, float]
) -> list[LayerError]:
    makers = {name: node for node in quantized.graph.node for name in node.output}
    original = {copy: name for name, copy in pairs.items()}
    weights = {tensor.name for tensor in quantized.graph.initializer}
    layers = []
    for name, copy in pairs.items():
        node = _behind_steps(makers, copy)
        if node is None:
            continue
        constant = any(_source(makers, operand) in weights for operand in node.input)
        inherited = (errors[original[o]] for o in node.input if o in original)
        layers.append(
            LayerError(node.name, node.op_type, errors[name], max(inherited, default=0.0), constant)
        )
    return layers


def _behind_steps(makers: Mapping[str, Any], name: str) -> Any:
    """Return the node whose result is quantized and dequantized to a tensor."""
    node = makers.get(name)
    while node is not None and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        node = makers.get(node.input[0])
    return node


def _source(makers: Mapping[str, Any], name: str) -> str:
    node = makers.get(name)
    return node.input[0] if node is not None and node.op_type == "DequantizeLinear" else name


class _Runner:
    """A model whose tensors of some names are results, too."""

    def __init__(self, model: onnx.ModelProto, names: Iterable[str]) -> None:
        import onnxruntime as ort

        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        there = {value.name for value in copy.graph.output}
        self.names = list(dict.fromkeys(names))
        copy.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in self.names if name not in there
        )
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        serialized = copy.SerializeToString()
        providers = ["CPUExecutionProvider"]
        self._session = ort.InferenceSession(serialized, options, providers=providers)

    def __call__(self, sample: Sample) -> dict[str, np.ndarray]:
        values = self._session.run(self.names, dict(sample))
        return dict(zip(self.names, values, strict=True))
