"""Options shared by the commands, and the parsing of `NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvm_blislike.errors import InputError

if TYPE_CHECKING:
    import numpy as np

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
        help="Shape of a symbolic input, or such a size by its name, batch=4; repeatable. 1..8, "
        "32..640:32 or 16/32/64 in the place of a size keeps it open.",
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
# Panel of the help for what decides which implementations are chosen.
CHOICE = "Choice of implementations"
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
        rich_help_panel=CHOICE,
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


def parse_shapes(options: Sequence[str] | None) -> dict[str, tuple[int | tuple[int, ...], ...]]:
    """Return the shapes by input name, or sizes by their own; an open size is its values.

    Raises
    ------
    typer.BadParameter
        When an option is not of the form NAME=1x3x224x224, with 1..8, 32..640:32 or 16/32 for
        open sizes.
    """
    shapes = {}
    for option in options or []:
        name, equals, sizes = option.rpartition("=")
        parts = [_size(part.strip()) for part in sizes.replace(",", "x").split("x")]
        if not (equals and name) or None in parts:
            raise typer.BadParameter(
                f"{option!r} is not of the form NAME=1x3x224x224; a size that stays open is 1..8, "
                "32..640:32 in steps of 32, or 16/32/64"
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
    first, dots, rest = text.partition("..")
    last, colon, step = rest.partition(":")
    ends = [first, last, *([step] if colon else [])] if dots else text.split("/")
    if not all(end.isdecimal() for end in ends):
        return None
    values = tuple(map(int, ends))
    if dots:
        every = values[2] if colon else 1
        values = tuple(range(values[0], values[1] + 1, every)) if every else ()
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
