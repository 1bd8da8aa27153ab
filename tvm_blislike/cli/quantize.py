"""The command quantize."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tvm_blislike.cli import options
from tvm_blislike.cli.terminal import bar, print_json, stdout
from tvm_blislike.errors import UsageError

if TYPE_CHECKING:
    from tvm_blislike.quantize import Quantized
    from tvm_blislike.quantize.data import Sample

# Layers that the table shows; `--json` has all of them.
_SHOWN = 15


class Activations(str, Enum):
    """Types of activations."""

    u8 = "u8"
    s8 = "s8"


class Method(str, Enum):
    """Ways from samples to ranges."""

    minmax = "minmax"
    entropy = "entropy"
    percentile = "percentile"


def quantize(
    model: options.Model,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR|FILE.npz",
            help="Samples: arrays by input name (.npz), or .npy files for a model of one input.",
        ),
    ] = None,
    random_data: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="N random samples: to try the speed, not to use it."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="OUT.onnx", help="Default: MODEL.int8.onnx."),
    ] = None,
    per_tensor: Annotated[
        bool, typer.Option("--per-tensor", help="One scale for all filters of a layer.")
    ] = False,
    activations: Annotated[
        Activations, typer.Option(help="Type of activations; weights are s8.")
    ] = Activations.u8,
    method: Annotated[
        Method, typer.Option(help="How ranges follow from the samples.")
    ] = Method.minmax,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="LAYER", help="Leave this one (a shell pattern) in fp32; repeatable."),
    ] = None,
    shape: options.Shapes = None,
    as_json: options.Json = False,
) -> None:
    """Quantize a model to 8 bits by ONNX Runtime's quantizer; show what each layer errs by."""
    from tvm_blislike.files import require_writable
    from tvm_blislike.onnx.frontend import read_model
    from tvm_blislike.quantize.quantizer import Options, require_quantizer
    from tvm_blislike.quantize.quantizer import quantize as run

    require_quantizer()
    if (data is None) == (random_data is None):
        raise UsageError("give either --data or --random-data")
    proto, _ = read_model(model)
    path = output or Path(f"{Path(model).stem}.int8.onnx")
    if path.exists() and path.samefile(model):
        raise UsageError(f"{path} is the model itself", "name another file with -o")
    require_writable(path)
    samples = _samples(proto, data, random_data, shape)
    wanted = Options(
        per_channel=not per_tensor,
        activations=activations.value,
        method=method.value,
        keep=tuple(keep or ()),
    )
    with bar("quantize") as tick:
        result = run(proto, samples, path, wanted, tick)
    if as_json:
        print_json({"output": str(path), "random_data": data is None, **_data(result)})
    else:
        _show(stdout(), path, result)


def _samples(
    proto: Any, data: Path | None, random_data: int | None, shape: list[str] | None
) -> list[Sample]:
    from tvm_blislike.onnx.frontend import resolve_inputs
    from tvm_blislike.quantize.data import random_samples, read_samples

    with warnings.catch_warnings():
        # That an open batch counts as 1 concerns the samples only: it stays open.
        warnings.simplefilter("ignore")
        specs = resolve_inputs(proto, options.settled_shapes(shape))
    if data is not None:
        return read_samples(data, specs)
    warnings.warn(
        "ranges of activations follow from random values: how the model errs on real inputs is "
        "unknown; pass real ones with --data before it is used",
        stacklevel=2,
    )
    return random_samples(specs, random_data or 1)


def _data(result: Quantized) -> dict[str, Any]:
    layers = [asdict(layer) | {"added": layer.added} for layer in result.layers]
    return asdict(result) | {"layers": layers, "to_keep": result.to_keep()}


def _show(console: Console, path: Path, result: Quantized) -> None:
    """Print the layers that err most, the error of the results, and what to do about it."""
    table = Table("layer", "operator", title="error relative to fp32", title_justify="left")
    for heading in ("error", "of which inherited", "added"):
        table.add_column(heading, justify="right")
    layers = sorted(result.layers, key=lambda layer: -layer.error)
    for layer in layers[:_SHOWN]:
        figures = (layer.error, layer.inherited, layer.added)
        table.add_row(escape(layer.name), layer.operator, *(f"{100 * x:.2f} %" for x in figures))
    console.print(table)
    if len(layers) > _SHOWN:
        console.print(f"and {len(layers) - _SHOWN} layers that err less")
    for name, error in result.outputs.items():
        console.print(f"output {name}: {100 * error:.2f} %", markup=False)
    kind = "held out" if result.held_out else "the same"
    console.print(
        f"{path}: calibrated on {result.calibrated} samples, errors of {result.measured} ({kind})",
        markup=False,
        soft_wrap=True,
    )
    worst = " ".join(f"--keep {name}" for name in result.to_keep())
    if worst:
        console.print(
            f"to lose less, leave the layers in fp32 that add most: {worst}",
            markup=False,
            soft_wrap=True,
        )
