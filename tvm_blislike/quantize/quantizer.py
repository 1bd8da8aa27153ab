"""Static quantization by ONNX Runtime: QDQ models whose weights are s8."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import onnx

from tvm_blislike.errors import ModelError, UsageError, suggest
from tvm_blislike.files import atomic_path
from tvm_blislike.onnx.frontend import first_line
from tvm_blislike.onnx.graphs import all_graphs, all_nodes
from tvm_blislike.onnx.operator_sets import is_quantized, opset
from tvm_blislike.quantize.accuracy import LayerError, layer_errors
from tvm_blislike.quantize.data import Sample

METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
ACTIVATIONS = {"u8": "QUInt8", "s8": "QInt8"}
# Of so many samples one in four is kept from calibration, to measure errors on; not more than so
# many: each holds all tensors of both models.
_HELD_OUT_FROM, _MOST_HELD_OUT = 4, 8
# Scales of channels came with this set of operators.
_CHANNELS_OPSET = 13


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may choose of the quantizer.

    Parameters
    ----------
    per_channel : bool
        A scale for each filter of weights instead of one for all.
    activations : str
        Type of activations, of `ACTIVATIONS`.
    method : str
        How ranges of activations follow from the samples, of `METHODS`.
    keep : tuple of str
        Names of nodes, or shell patterns of them, that stay in fp32.
    """

    per_channel: bool = True
    activations: str = "u8"
    method: str = "minmax"
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class Quantized:
    """What quantizing a model came to.

    Parameters
    ----------
    layers : list of LayerError
        Of the quantized layers in the order of the graph.
    outputs : dict of str to float
        Error of each output, as a layer's.
    kept : list of str
        Names of the nodes that were to stay in fp32.
    calibrated, measured : int
        Samples that ranges follow from, and that errors were measured on.
    held_out : bool
        Whether the latter are others.
    """

    layers: list[LayerError]
    outputs: dict[str, float]
    kept: list[str]
    calibrated: int
    measured: int
    held_out: bool

    def to_keep(self, count: int = 3) -> list[str]:
        """Return the layers with weights that add most to the error, the worst first."""
        weighted = sorted((x for x in self.layers if x.has_weights), key=lambda x: -x.added)
        return [layer.name for layer in weighted[:count]]


def require_quantizer() -> None:
    """Raise UsageError when ONNX Runtime is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise UsageError("`quantize` needs onnxruntime", "pip install 'tvm-blislike[quantize]'")


def quantize(
    model: onnx.ModelProto,
    samples: Sequence[Sample],
    output: Path,
    options: Options | None = None,
    tick: Callable[[float], None] = lambda share: None,
) -> Quantized:
    """Write a quantized model, all or nothing, and measure its errors.

    Parameters
    ----------
    model : ModelProto
        In fp32.
    samples : sequence of Sample
        At least one.
    output : Path
        The file to write.
    options : Options, optional
        Replaces the usual ones.
    tick : callable
        Called with the share that is done.

    Raises
    ------
    UsageError
        When ONNX Runtime is missing, a layer to keep is unknown, the model is quantized already, or
        too old for a scale per channel.
    ModelError
        When ONNX Runtime cannot quantize it.
    OutputError
        When the file cannot be written.
    """
    require_quantizer()
    options = options or Options()
    _require_quantizable(model, options)
    calibration, held_out = _parted(samples)
    measured = held_out or samples[:_MOST_HELD_OUT]
    steps, count = iter(range(1, len(calibration) + len(measured) + 1)), len(samples)
    total = len(calibration) + len(measured)

    def done() -> None:
        tick(next(steps, total) / total)

    with tempfile.TemporaryDirectory() as folder, atomic_path(output) as fresh:
        prepared = _prepared(model, Path(folder))
        original = onnx.load(prepared)
        kept = _kept(original, options.keep)
        _quantize(prepared, fresh, _Reader(calibration, done), options, kept)
        layers, outputs = layer_errors(original, onnx.load(fresh), measured, done)
        if not layers:
            raise UsageError("there is nothing to quantize", "keep fewer layers")
    return Quantized(
        layers, outputs, kept, len(calibration), len(measured), len(calibration) < count
    )


def _parted(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Return the samples for calibration, and those to measure on if there are enough."""
    if len(samples) < _HELD_OUT_FROM:
        return samples, ()
    last = min(len(samples) // _HELD_OUT_FROM, _MOST_HELD_OUT)
    return samples[:-last], samples[-last:]


def _require_quantizable(model: onnx.ModelProto, options: Options) -> None:
    if is_quantized(model):
        raise UsageError("the model is quantized already")
    if options.per_channel and opset(model) < _CHANNELS_OPSET:
        raise UsageError(
            f"the model is of opset {opset(model)}, a scale per channel needs {_CHANNELS_OPSET}",
            f"export it for opset {_CHANNELS_OPSET} or later, or pass --per-tensor",
        )


def _prepared(model: onnx.ModelProto, folder: Path) -> Path:
    """Return a file of the model with batch norms folded, shapes known and all nodes named."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    named, original = folder / "named.onnx", onnx.ModelProto()
    original.CopyFrom(model)
    _name_nodes(original)
    onnx.save(original, named)
    with _telling("prepare"):
        quant_pre_process(named, folder / "prepared.onnx", skip_symbolic_shape=True)
    result = onnx.load(folder / "prepared.onnx")
    _name_nodes(result)
    _name_constants(result)
    onnx.save(result, folder / "prepared.onnx")
    return folder / "prepared.onnx"


def _name_nodes(model: onnx.ModelProto) -> None:
    """Name nodes without a name after what they compute: a layer is told by its name."""
    for node in model.graph.node:
        node.name = node.name or next(iter(node.output), node.op_type)


def _name_constants(model: onnx.ModelProto) -> None:
    """Name constants so that a number behind the name makes no other tensor's.

    ONNX Runtime's quantizer numbers its copies of biases that several layers share, whatever names
    there are: the second of `val_69` would be `val_692`, which exporters have given to some result.
    """
    ends = [v for graph in all_graphs(model.graph) for v in (*graph.input, *graph.output)]
    fixed = {value.name for value in ends}
    made = {name for node in all_nodes(model.graph) for name in node.output}
    numbered = [t for t in model.graph.initializer if t.name[-1:].isdigit() and t.name not in fixed]
    names = {tensor.name: f"{tensor.name}_constant" for tensor in numbered}
    names = {old: new for old, new in names.items() if new not in made}
    for tensor in numbered:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in all_nodes(model.graph):
        node.input[:] = [names.get(name, name) for name in node.input]


def _kept(model: onnx.ModelProto, patterns: Iterable[str]) -> list[str]:
    """Return the names of the nodes that patterns match."""
    names = [node.name for node in model.graph.node]
    kept: dict[str, None] = {}
    for pattern in patterns:
        found = [n for n in names if n == pattern] or [n for n in names if fnmatchcase(n, pattern)]
        if not found:
            raise UsageError(f"the model has no layer {pattern!r} to keep", suggest(pattern, names))
        kept.update(dict.fromkeys(found))
    return list(kept)


def _quantize(
    source: Path, result: Path, reader: Any, options: Options, kept: Sequence[str]
) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    with _telling("quantize"):
        quantize_static(
            source,
            result,
            reader,
            quant_format=QuantFormat.QDQ,
            per_channel=options.per_channel,
            activation_type=getattr(QuantType, ACTIVATIONS[options.activations]),
            weight_type=QuantType.QInt8,
            nodes_to_exclude=list(kept),
            calibrate_method=getattr(CalibrationMethod, METHODS[options.method]),
        )


@contextlib.contextmanager
def _telling(what: str) -> Iterator[None]:
    """Keep what ONNX Runtime prints from the results; its errors become one that says of whom."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except OSError:
        raise
    except Exception as error:  # of many kinds, bare ones among them
        raise ModelError(f"ONNX Runtime cannot {what} the model: {first_line(error)}") from error


class _Reader:
    """Hands samples to the calibration (its `CalibrationDataReader`)."""

    def __init__(self, samples: Sequence[Sample], done: Callable[[], None]) -> None:
        self._left = iter(samples)
        self._done = done

    def get_next(self) -> dict[str, Any] | None:
        sample = next(self._left, None)
        if sample is None:
            return None
        self._done()
        return dict(sample)
