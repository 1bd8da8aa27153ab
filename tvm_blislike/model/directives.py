"""All directives: what a template or a micro-kernel may say about a loop (see `directive`).

`tests/schedules/golden` shows for each the loops before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_blislike.model.directive import Directive

# What a loop may be called, for the directives on loops around it that look for it.
NAMES = {
    "mh": "rows of the image in a block of C",
    "mw": "columns of the image, or rows of a matrix, in a block of C",
    "nr": "vectors of a row of a block of C",
    "lanes": "elements of a row of a block of C",
    "sweep": "elements of a block that is repeated with narrower vectors where it is cut",
    "blocks": "blocks of channels in a tile",
    "ir": "tiles of a block along m",
    "jr": "tiles of a block along n",
    "it": "tiles of filters in a block of them",
    "yi": "rows of tiles in a slab of the image",
    "ry": "rows of a convolution's kernel",
    "rx": "columns of a convolution's kernel",
    "k": "iterations of a micro-kernel's loop",
    "ki": "steps of k in one iteration",
    "column": "blocks in a row of the image",
    "call": "calls of a micro-kernel: the innermost loop around it",
    "ring": "rows of the stage that fills the buffer of a `Ring`",
}


# --- rules: what to change, "" where nothing has to be ---------------------------------------


def _known_name(named: Any, _loop: tirx.For) -> str:
    return "" if named.name in NAMES else f"no such name; known: {', '.join(NAMES)}"


def _has_inside(*names: str) -> Any:
    def rule(_directive: Directive, loop: tirx.For) -> str:
        missing = {*names} - names_inside(loop)
        return f"put Named({', '.join(sorted(missing))}) on loops inside" if missing else ""

    return rule


def _cut_inside(edge: Any, loop: tirx.For) -> str:
    cut = ", ".join(edge.extents)
    # Partial sums have rows and vectors, but no elements to cut.
    is_there = names_inside(loop) & edge.extents.keys()
    return "" if is_there else f"put Named on the loops inside that it cuts: {cut}"


def _named(_directive: Directive, loop: tirx.For) -> str:
    return "" if Named.of(loop) else "put Named beside it, or no Edge around will cut the loop"


def _of_known_length(_directive: Directive, loop: tirx.For) -> str:
    known = isinstance(loop.min, tirx.IntImm) and isinstance(loop.extent, tirx.IntImm)
    return "" if known else "make its first index and its length constants"


def _serial(_directive: Directive, loop: tirx.For) -> str:
    is_serial = loop.kind == tirx.ForKind.SERIAL
    return "" if is_serial else "take `parallel`, `unroll` or `vectorize` away from the loop"


def _innermost(_directive: Directive, loop: tirx.For) -> str:
    return "put it on the innermost loop" if _inside(loop, tirx.For) else ""


def _around_loops(_directive: Directive, loop: tirx.For) -> str:
    return "" if _inside(loop, tirx.For) else "put it on a loop around this one"


def _only_one(_directive: Directive, loop: tirx.For) -> str:
    both = [kind.__name__ for kind in (Vector, WriteOut, AskOnce, Pieces) if kind.of(loop)]
    return (
        f"keep one of {', '.join(both)}: each makes another thing of the loop" if both[1:] else ""
    )


def _not_negative(border: Any, _loop: tirx.For) -> str:
    return "" if min(border.first, border.last) >= 0 else "give 0 where none is to be split off"


def _of_pixels(image: Any, _loop: tirx.For) -> str:
    return "" if image.height > 0 < image.width else "give the height and width of the images"


def _nest(_directive: Directive, loop: tirx.For) -> str:
    names: list[str] = []
    while isinstance(loop, tirx.For) and (named := Named.of(loop)):
        names.append(named.name)
        loop = loop.body
    wanted = {"ry", "rx", "mh", "mw"}
    return "" if {*names[:4]} == wanted else "put it on the outermost of loops Named ry, rx, mh, mw"


def _call_in_front(_directive: Directive, loop: tirx.For) -> str:
    is_sequence = isinstance(loop.body, tirx.SeqStmt)
    is_call = is_sequence and isinstance(loop.body.seq[0], tirx.Evaluate)
    return "" if is_call else "begin its body with the call, and put the plain loops behind it"


def _of_copies(_directive: Directive, loop: tirx.For) -> str:
    copies = all(_is_copy(store.value) for store in _inside(loop, tirx.BufferStore))
    return "" if copies else "put it on a loop that copies elements and computes nothing"


def _shifts_inside(pieces: Any, loop: tirx.For) -> str:
    if not pieces.shifts:
        return _innermost(pieces, loop)
    return "" if isinstance(loop.body, tirx.For) else "put the loop over the shifted copies inside"


def _is_copy(value: Any) -> bool:
    """Whether a value is a load, beside which a condition may put zeros."""
    while isinstance(value, ir.Call) and len(value.args) == 3:
        value = value.args[1]
    return isinstance(value, ir.TensorLoad)


def _inside(loop: tirx.For, kind: type) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (kind, found.append), order="pre")
    return found


def names_inside(loop: tirx.For) -> set[str]:
    """Return what the loops inside a loop are called."""
    return {named.name for each in _inside(loop, tirx.For) if (named := Named.of(each))}


# --- tiles and their edges -------------------------------------------------------------------


@dataclass(frozen=True)
class Named(Directive):
    """Directives on loops around this one find it as one of `NAMES`."""

    name: str
    rules = (_known_name,)


@dataclass(frozen=True)
class Edge(Directive):
    """The last iteration is split off; the loops `Named` in it have these extents there."""

    extents: Mapping[str, int]
    rules = (_of_known_length, _cut_inside)


@dataclass(frozen=True)
class LastEdge(Directive):
    """An `Edge`, but only in that copy of the loop which an `Edge` around it has cut."""

    extents: Mapping[str, int]
    rules = (_named, _of_known_length, _cut_inside)


@dataclass(frozen=True)
class Border(Directive):
    """So many first and last iterations are split off: conditions there become constants."""

    first: int
    last: int
    rules = (_not_negative, _of_known_length)


@dataclass(frozen=True)
class Apart(Directive):
    """Loads of an iteration that `Edge` or `Border` splits off stay behind those before it."""

    rules = (_serial,)


# --- the code of a loop ----------------------------------------------------------------------


@dataclass(frozen=True)
class Vector(Directive):
    """Contiguous elements become vectors of so many lanes, and narrower ones for the rest."""

    lanes: int
    rules = (_innermost, _serial, _of_known_length, _only_one)


@dataclass(frozen=True)
class WriteOut(Directive):
    """One copy of the body for each index, with what `Select` chooses there.

    TVM writes unrolled loops out when all else is done: too late for `AskOnce` and `Vector`.
    """

    rules = (_of_known_length, _only_one)


@dataclass(frozen=True)
class AskOnce(Directive):
    """Conditions that nothing in the body changes are asked in front of it, once."""

    rules = (_only_one,)


@dataclass(frozen=True)
class ByInput(Directive):
    """Loops over kernel and tile, strides and dilations: in the order of the pixels they read.

    They are written out, and each pixel is loaded once.
    """

    sh: int
    sw: int
    dh: int
    dw: int
    rules = (_nest,)


@dataclass(frozen=True)
class FreshRegisters(Directive):
    """Every iteration finds the vector registers of an instruction set empty."""

    isa: str
    rules = (_around_loops,)


@dataclass(frozen=True)
class KLoopCall(Directive):
    """A call of a `microkernels.KLoop`, and the plain loops that it stands for, cut or whole.

    They show which of its functions it has to be; the whole block has `mr` x `nr` elements, and a
    vector of C `lanes`.
    """

    mr: int
    nr: int
    lanes: int
    in_order: int
    rules = (_call_in_front,)


# --- copies, and where they lie --------------------------------------------------------------


@dataclass(frozen=True)
class Pieces(Directive):
    """A copy loop becomes vectors of `width`, none of them across one of the places `cuts`.

    With `shifts` its body is a loop over copies that read as many elements further each.
    """

    width: int
    cuts: Sequence[int]
    shifts: int = 0
    rules = (_shifts_inside, _of_known_length, _only_one)


@dataclass(frozen=True)
class Image(Directive):
    """Pixels of NCHW images of a size: they are addressed as [n, c, y * width + x].

    That is contiguous where y and x are quotient and rest of a pixel.
    """

    height: int
    width: int
    rules = (_of_pixels,)


@dataclass(frozen=True)
class InPlace(Directive):
    """The copies in this loop are left out: what they would copy is read where it is."""

    rules = (_of_copies,)


@dataclass(frozen=True)
class Turn(Directive):
    """Columns of a block of C, around its rows: transposed in registers before the epilogue."""

    lanes: int
    rules = (_around_loops,)


@dataclass(frozen=True)
class Ring(Directive):
    """Blocks of rows: each takes over the rows that the one before it has computed.

    `axis` of the buffer counts its `rows` rows; a block is `step` rows below the one before it.
    """

    axis: int
    rows: int
    step: int
    rules = (_serial, _has_inside("ring"))


# --- prefetches ------------------------------------------------------------------------------


@dataclass(frozen=True)
class NextPanel(Directive):
    """Calls that share a panel of A (`operand` 0) or B (1) ask for the next one.

    Index `axis` counts panels; `step` is to be added to it; `calls` iterations ask for `elements`.
    """

    operand: int
    axis: int
    step: int
    calls: int
    elements: int
    rules = (_has_inside("nr"),)


@dataclass(frozen=True)
class Ahead(Directive):
    """Calls ask for the `elements` of an operand that they read `steps` of k later."""

    operand: int
    steps: int
    elements: int
    rules = (_has_inside("nr"),)


@dataclass(frozen=True)
class NextWeights(Directive):
    """Calls in a slab of `blocks` blocks, `columns` in a row, ask for the next panel of B."""

    columns: int
    blocks: int
    rules = (_has_inside("column", "call", "nr"),)
