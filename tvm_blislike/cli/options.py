"""Options shared by the commands, and the parsing of `NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from tvm_blislike.errors import InputError

Model = Annotated[str, typer.Argument(metavar="MODEL.onnx", help="ONNX model.")]
Runnable = Annotated[
    str, typer.Argument(metavar="MODEL.onnx|OUT.so", help="ONNX model or compiled library.")
]
Target = Annotated[
    str,
    typer.Option(
        metavar="native|CORE|FILE.toml", help="What to compile for; `targets` lists the cores."
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="NAME=1x3x224x224", help="Shape of a symbolic input; repeatable."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Threads; default: one per usable physical core."),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=FILE.npy",
        help="Value of an input; repeatable. With none, seeded random values are used.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def parse_shapes(options: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Return the shapes by input name.

    Raises
    ------
    typer.BadParameter
        When an option is not of the form NAME=1x3x224x224.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for option in options or []:
        name, equals, sizes = option.rpartition("=")
        parts = sizes.replace(",", "x").split("x")
        if not (equals and name and all(part.strip().isdigit() for part in parts)):
            raise typer.BadParameter(f"{option!r} is not of the form NAME=1x3x224x224")
        shapes[name] = tuple(int(part) for part in parts)
    return shapes


def load_inputs(options: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Return the arrays by input name.

    Raises
    ------
    typer.BadParameter
        When an option is not of the form NAME=FILE.npy.
    InputError
        When a file cannot be read as one array.
    """
    arrays = {}
    for option in options or []:
        name, equals, file = option.partition("=")
        if not (equals and name and file):
            raise typer.BadParameter(f"{option!r} is not of the form NAME=FILE.npy")
        arrays[name] = _load_array(name, Path(file))
    return arrays


def _load_array(name: str, path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"input {name}: cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise InputError(f"input {name}: {path} is no .npy file", "write it with numpy.save") from (
            error
        )
    if not isinstance(array, np.ndarray):
        raise InputError(f"input {name}: {path} holds several arrays", "write one with numpy.save")
    return array
