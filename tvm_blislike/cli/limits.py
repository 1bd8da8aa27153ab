"""What limits the choice of implementations: the same options for every command that chooses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_blislike.cli.options import CHOICE
from tvm_blislike.files import parse_size

if TYPE_CHECKING:
    from tvm_blislike.choose.constraints import Constraints

# The parameter of a command that takes what the options set; None where they set nothing.
Limits = Annotated["Constraints | None", "in the place of the options"]
_MaxError = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="E",
        rich_help_panel=CHOICE,
        help="Largest error of a layer, relative to its largest output, as estimated; "
        "default 1e-4, for fp16 layers 2e-2.",
    ),
]
_MaxWorkspace = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        rich_help_panel=CHOICE,
        help="Most temporary memory of a layer: 2000000, 512K, 2M.",
    ),
]
_Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="IMPLEMENTATION",
        rich_help_panel=CHOICE,
        help="Use this one wherever it applies; repeatable.",
    ),
]
_Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="IMPLEMENTATION",
        rich_help_panel=CHOICE,
        help="Never use this one; repeatable.",
    ),
]
_Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        metavar="LAYER=IMPLEMENTATION[,field=value...]",
        rich_help_panel=CHOICE,
        help="Choice for the workloads that match a shell pattern, as `explain` prints them: "
        "'conv 1x64x56x56 3x3*=conv2d_direct,nr=32'; repeatable.",
    ),
]
_Weights = Annotated[
    str | None,
    typer.Option(
        metavar="bf16|fp16|int8|fp8",
        rich_help_panel=CHOICE,
        help="Store the weights of layers that memory bounds in fewer bytes; arithmetic stays "
        "fp32. `explain` shows the error. fp8 is e4m3, fp8_e5m2 the other one.",
    ),
]
_Precision = Annotated[
    str,
    typer.Option(
        metavar="fp32|bf16|fp16|fast",
        rich_help_panel=CHOICE,
        help="What layers of fp32 may be computed in: products of 16 bits where the core has them, "
        "summed in fp32; `fast` takes for each layer what is predicted to be fastest, within "
        "--max-error. `explain` shows the errors.",
    ),
]
_Images = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        rich_help_panel=CHOICE,
        help="How many images of a batch go through the first layers at a time, as far as they "
        "stay apart; 0: all at once. Default: what is predicted to be fastest.",
    ),
]


def limited(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command all options of `constraints` but some, in the place of its `limits`."""
    # No option has the type of the result, which is not imported before it is needed.
    options = inspect.signature(constraints, eval_str=True, locals={"Constraints": Any})
    offered = [o for o in options.parameters.values() if o.name not in left_out]

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def limiting(**given: Any) -> None:
            limits = constraints(**{option.name: given.pop(option.name) for option in offered})
            command(limits=limits, **given)

        parameters = list(inspect.signature(command, eval_str=True).parameters.values())
        place = [parameter.name for parameter in parameters].index("limits")
        parameters[place : place + 1] = offered
        # Typer asks for both; the wrapped command's annotations name what is not an option.
        limiting.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        limiting.__annotations__ = {}
        return limiting

    return wrap


def constraints(
    max_error: _MaxError = None,
    max_workspace: _MaxWorkspace = None,
    only: _Only = None,
    without: _Without = None,
    pin: _Pins = None,
    weights: _Weights = None,
    precision: _Precision = "fp32",
    images: _Images = None,
) -> Constraints | None:
    """Return the limits that the options set, None where they set none.

    Raises
    ------
    UsageError
        When an implementation, a field of a pin, a type of weights or a precision is not known.
    typer.BadParameter
        When `max_workspace` is no size.
    """
    named = (*(only or ()), *(without or ()), *(pin or ()))
    given = (max_error, max_workspace, *named, weights, images)
    if precision == "fp32" and all(option is None for option in given):
        return None
    from tvm_blislike.choose.constraints import Constraints, parse_pin

    return Constraints(
        max_error,
        None if max_workspace is None else parse_bytes(max_workspace),
        tuple(only or ()),
        tuple(without or ()),
        tuple(parse_pin(text) for text in pin or ()),
        weights or "",
        precision,
        images,
    )


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
