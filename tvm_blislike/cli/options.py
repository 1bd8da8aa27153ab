"""Options shared by the commands, and the parsing of `NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvm_blislike.errors import InputError
from tvm_blislike.files import parse_size

if TYPE_CHECKING:
    import numpy as np

    from tvm_blislike.choose.constraints import Constraints
    from tvm_blislike.hardware import Core
    from tvm_blislike.records.book import RecordBook

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
        "--shape",
        metavar="NAME=1x3x224x224",
        help="Shape of a symbolic input, or such a size by its name, batch=4; repeatable. 1..8 or "
        "16/32/64 in the place of a size keeps it open.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Threads; default: one per usable physical core."),
]
Compiler = Annotated[
    str | None,
    typer.Option(
        "--cc",
        metavar="COMMAND",
        help="Compiler for the target, to link with; default: a system compiler or ziglang.",
    ),
]
BundleFolder = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        metavar="DIR",
        help="Write a folder with all that a Linux board needs, instead of a library.",
    ),
]
Standalone = Annotated[
    bool,
    typer.Option(
        "--standalone",
        help="Write code for C and C++ that needs no TVM: -o DIR for a folder with header, "
        "libraries and CMake package, -o NAME.o for one object that needs no system either.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=FILE.npy",
        help="Value of an input; repeatable. With none, seeded random values are used.",
    ),
]
NoVerify = Annotated[
    bool,
    typer.Option("--no-verify", help="Load a library without comparing it with its checksum."),
]
_CHOICE = "Choice of implementations"
MaxError = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="E",
        rich_help_panel=_CHOICE,
        help="Largest error of a layer, relative to its largest output, as estimated; "
        "default 1e-4, for fp16 layers 2e-2.",
    ),
]
MaxWorkspace = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        rich_help_panel=_CHOICE,
        help="Most temporary memory of a layer: 2000000, 512K, 2M.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="IMPLEMENTATION",
        rich_help_panel=_CHOICE,
        help="Use this one wherever it applies; repeatable.",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="IMPLEMENTATION",
        rich_help_panel=_CHOICE,
        help="Never use this one; repeatable.",
    ),
]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        metavar="LAYER=IMPLEMENTATION[,field=value...]",
        rich_help_panel=_CHOICE,
        help="Choice for the workloads that match a shell pattern, as `explain` prints them: "
        "'conv 1x64x56x56 3x3*=conv2d_direct,nr=32'; repeatable.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="bf16|fp16|int8|fp8",
        rich_help_panel=_CHOICE,
        help="Store the weights of layers that memory bounds in fewer bytes; arithmetic stays "
        "fp32. `explain` shows the error. fp8 is e4m3, fp8_e5m2 the other one.",
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        metavar="fp32|bf16|fp16|fast",
        rich_help_panel=_CHOICE,
        help="What layers of fp32 may be computed in: products of 16 bits where the core has them, "
        "summed in fp32; `fast` takes for each layer what is predicted to be fastest, within "
        "--max-error. `explain` shows the errors.",
    ),
]
Images = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        rich_help_panel=_CHOICE,
        help="How many images of a batch go through the first layers at a time, as far as they "
        "stay apart; 0: all at once. Default: what is predicted to be fastest.",
    ),
]
Records = Annotated[
    str | None,
    typer.Option(
        "--records",
        metavar="FILE|DIR/|URL|none",
        help="What `tune` measured; default: the user's own file, see `records show`. A folder or "
        "a URL is a store that machines share.",
    ),
]
Learned = Annotated[
    Path | None,
    typer.Option(
        "--learned",
        metavar="FILE.json",
        rich_help_panel=_CHOICE,
        help="Model that `records train` wrote; it corrects the predicted times.",
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Compile anew, and keep nothing of it; see the command `cache`."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def constraints(
    max_error: float | None,
    max_workspace: str | None,
    only: Sequence[str] | None,
    without: Sequence[str] | None,
    pins: Sequence[str] | None,
    weights: str | None = None,
    precision: str = "fp32",
    images: int | None = None,
) -> Constraints | None:
    """Return the limits that the options set, None where they set none.

    Raises
    ------
    UsageError
        When an implementation, a field of a pin, a type of weights or a precision is not known.
    typer.BadParameter
        When `max_workspace` is no size.
    """
    named = (*(only or ()), *(without or ()), *(pins or ()))
    given = (max_error, max_workspace, *named, weights, images)
    if precision == "fp32" and all(option is None for option in given):
        return None
    from tvm_blislike.choose.constraints import Constraints, parse_pin

    return Constraints(
        max_error,
        None if max_workspace is None else parse_bytes(max_workspace),
        tuple(only or ()),
        tuple(without or ()),
        tuple(parse_pin(pin) for pin in pins or ()),
        weights or "",
        precision,
        images,
    )


def record_book(place: str | None, core: Core) -> RecordBook:
    """Return the records of a file or a store, of the user's own without one, or none at all.

    Raises
    ------
    InputError
        When the file is missing.
    UsageError, ToolchainError
        When there is no such kind of store.
    """
    from tvm_blislike.records.book import RecordBook

    return RecordBook.open(place, core)


def parse_bytes(text: str) -> int:
    """Return the size that a number with an optional K, M or G (powers of 1024) means.

    Raises
    ------
    typer.BadParameter
        When it is none.
    """
    size = parse_size(text)
    if size is None:
        raise typer.BadParameter(f"{text!r} is no size; write 2000000, 512K or 2M")
    return size


def parse_shapes(options: Sequence[str] | None) -> dict[str, tuple[int | tuple[int, ...], ...]]:
    """Return the shapes by input name, or sizes by their own; an open size is its values.

    Raises
    ------
    typer.BadParameter
        When an option is not of the form NAME=1x3x224x224, with 1..8 or 16/32 for open sizes.
    """
    shapes = {}
    for option in options or []:
        name, equals, sizes = option.rpartition("=")
        parts = [_size(part.strip()) for part in sizes.replace(",", "x").split("x")]
        if not (equals and name) or None in parts:
            raise typer.BadParameter(
                f"{option!r} is not of the form NAME=1x3x224x224; a size that stays open is 1..8, "
                "or 16/32/64"
            )
        shapes[name] = tuple(parts)
    return shapes


def settled_shapes(options: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Return the shapes by input name, or sizes by their own, none of which may be open.

    Raises
    ------
    typer.BadParameter
        As of `parse_shapes`.
    UsageError
        When one is open.
    """
    from tvm_blislike.onnx.open_sizes import require_settled

    shapes = parse_shapes(options)
    require_settled(shapes)
    return shapes


def _size(text: str) -> int | tuple[int, ...] | None:
    """Return a size, or the values of an open one; None where the text is none."""
    first, dots, last = text.partition("..")
    ends = (first, last) if dots else text.split("/")
    if not all(end.isdecimal() for end in ends):
        return None
    values = tuple(map(int, ends))
    if dots:
        values = tuple(range(values[0], values[1] + 1))
    return (values if len(values) > 1 else values[0]) if values else None


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
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"input {name}: cannot read {path}: {error.strerror or error}") from error
    except MemoryError as error:
        raise InputError(f"input {name}: {path} does not fit into memory") from error
    except Exception as error:  # of NumPy, its parser of headers and that of zip files
        raise InputError(f"input {name}: {path} is no .npy file", "write it with numpy.save") from (
            error
        )
    if not isinstance(array, np.ndarray):
        raise InputError(f"input {name}: {path} holds several arrays", "write one with numpy.save")
    return array
