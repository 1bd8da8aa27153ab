"""All directives: what a template or a micro-kernel may say about a loop (see `directive`).

`loop_names.Named` is one more. `tests/schedules/golden` shows for each the loops before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm_blislike.model import directive_rules as rule
from tvm_blislike.model.directive import Directive

# --- tiles and their edges -------------------------------------------------------------------


@dataclass(frozen=True)
class Edge(Directive):
    """The last iteration is split off; the loops `Named` in it have these extents there."""

    extents: Mapping[str, int]
    rules = (rule.of_known_length, rule.cut_inside)


@dataclass(frozen=True)
class LastBlock(Directive):
    """The last iteration has so many iterations of the loops `Named` in it, of the same code."""

    extents: Mapping[str, int]
    rules = (rule.of_known_length, rule.cut_inside)


@dataclass(frozen=True)
class LastEdge(Directive):
    """An `Edge`, but only in the last iteration of the `LastBlock` around that names the loop."""

    extents: Mapping[str, int]
    rules = (rule.named, rule.of_known_length, rule.cut_inside)


@dataclass(frozen=True)
class Border(Directive):
    """So many first and last iterations are split off: conditions there become constants."""

    first: int
    last: int
    rules = (rule.not_negative, rule.of_known_length)


@dataclass(frozen=True)
class SharedBorder(Directive):
    """As `Border`, but those iterations share a copy of the body, whose conditions stay."""

    first: int
    last: int
    rules = (rule.not_negative, rule.of_known_length)


@dataclass(frozen=True)
class OpenRows(Directive):
    """Over blocks (ic) or tiles (ir) of rows of which only running tells how many there are.

    They run over as many tiles as there are, of mr rows at most and of nearly equal numbers, or of
    groups of `each` rows, of which the last one may lack some; so are blocks, of `block` tiles at
    most, of which there are a multiple of `parts`. Tiles of `few` rows or fewer ask for nothing
    ahead.
    """

    mr: int
    block: int
    name: str
    few: int = 0
    each: int = 1
    parts: int = 1
    rules = (rule.of_known_length, rule.has_inside("mw"))


@dataclass(frozen=True)
class Apart(Directive):
    """Loads of an iteration that `Edge` or `Border` splits off stay behind those before it."""

    rules = (rule.serial,)


# --- the code of a loop ----------------------------------------------------------------------


@dataclass(frozen=True)
class Vector(Directive):
    """Contiguous elements become vectors of so many lanes, and narrower ones for the rest."""

    lanes: int
    rules = (rule.innermost, rule.serial, rule.of_known_length, rule.only_one)


@dataclass(frozen=True)
class Dot(Directive):
    """The sum over the loop inside is one instruction for so many lanes, LLVM's `intrinsic`.

    It takes the sums, the first factors and the second ones, those of a sum side by side.
    """

    lanes: int
    intrinsic: str
    rules = (rule.around_loops, rule.serial, rule.of_known_length, rule.only_one)


@dataclass(frozen=True)
class WriteOut(Directive):
    """One copy of the body for each index, with what `Select` chooses there.

    TVM writes unrolled loops out when all else is done: too late for `AskOnce` and `Vector`.
    """

    rules = (rule.of_known_length, rule.only_one)


@dataclass(frozen=True)
class AskOnce(Directive):
    """Conditions that nothing in the body changes are asked in front of it, once."""

    rules = (rule.only_one,)


@dataclass(frozen=True)
class ByInput(Directive):
    """Loops over kernel and tile, strides and dilations: in the order of the pixels they read.

    They are written out, and each pixel is loaded once.
    """

    sh: int
    sw: int
    dh: int
    dw: int
    rules = (rule.nest,)


@dataclass(frozen=True)
class FreshRegisters(Directive):
    """Every iteration finds the vector registers of an instruction set empty."""

    isa: str
    rules = (rule.around_loops,)


@dataclass(frozen=True)
class InTurn(Directive):
    """Loads of an iteration, a step of k, stay behind those of the one before it."""

    rules = (rule.has_inside("mw"),)


@dataclass(frozen=True)
class KLoopCall(Directive):
    """A call of a `microkernels.KLoop`, and the plain loops that it stands for, cut or whole.

    They show which of its functions it has to be; the whole block has `mh` x `mw` rows of `nr`
    elements, a vector of C `lanes`, and A lies as `UpdateShape.view` says.
    """

    mh: int
    mw: int
    nr: int
    lanes: int
    view: str
    in_order: int
    rules = (rule.call_in_front,)


@dataclass(frozen=True)
class TileCall(Directive):
    """A call of a `microkernels.TileLoop`, and the plain loops that it stands for, cut or whole.

    They show which of its functions it has to be; a panel of B has `nr` columns, a vector of C
    `lanes`, a tile `rows`, and a call takes `steps` groups of k. With `streams` B is asked for in
    advance.
    """

    nr: int
    lanes: int
    rows: int
    steps: int
    streams: int = 0
    rules = (rule.call_in_front,)


# --- copies, and where they lie --------------------------------------------------------------


@dataclass(frozen=True)
class Pieces(Directive):
    """A copy loop becomes vectors of `width`, none of them across one of the places `cuts`.

    With `shifts` its body is a loop over copies that read as many elements further each.
    """

    width: int
    cuts: Sequence[int]
    shifts: int = 0
    rules = (rule.shifts_inside, rule.of_known_length, rule.only_one)


@dataclass(frozen=True)
class Image(Directive):
    """Pixels of NCHW images of a size: they are addressed as [n, c, y * width + x].

    That is contiguous where y and x are quotient and rest of a pixel.
    """

    height: int
    width: int
    rules = (rule.of_pixels,)


@dataclass(frozen=True)
class InPlace(Directive):
    """The copies in this loop are left out: what they would copy is read where it is."""

    rules = (rule.of_copies,)


@dataclass(frozen=True)
class InResult(Directive):
    """Sums over this loop are kept where the nest behind it stores what it makes of them.

    They keep a buffer of their own where that has another type. The first addend is stored.
    """

    rules = (rule.serial, rule.has_inside("mw"))


@dataclass(frozen=True)
class Turn(Directive):
    """Columns of a block of C, around its rows: transposed in registers before the epilogue."""

    lanes: int
    rules = (rule.around_loops,)


@dataclass(frozen=True)
class Ring(Directive):
    """Blocks of rows: each takes over the rows that the one before it has computed.

    `axis` of the buffer counts its `rows` rows; a block is `step` rows below the one before it.
    """

    axis: int
    rows: int
    step: int
    rules = (rule.serial, rule.has_inside("ring"))


# --- prefetches ------------------------------------------------------------------------------


@dataclass(frozen=True)
class NextPanel(Directive):
    """Calls that share a panel of A (`operand` 0) or B (1) ask for the next one.

    Index `axis` counts panels; `step` is to be added to it; `calls` iterations ask for `elements`,
    from as many places side by side as `streams`.
    """

    operand: int
    axis: int
    step: int
    calls: int
    elements: int
    streams: int
    rules = (rule.has_inside("nr"),)


@dataclass(frozen=True)
class Ahead(Directive):
    """Calls ask for the `elements` of an operand that they read `steps` of k later."""

    operand: int
    steps: int
    elements: int
    rules = (rule.has_inside("nr"),)


@dataclass(frozen=True)
class NextWeights(Directive):
    """Calls in a slab of `blocks` blocks, `columns` in a row, ask for the next panel of B.

    From as many places of it side by side as `streams`; in front of k loops, or, where these would
    be more requests than a core has in flight and `in_loops` is 1, inside.
    """

    columns: int
    blocks: int
    streams: int
    in_loops: int = 0
    rules = (rule.has_inside("column", "call", "nr"),)


@dataclass(frozen=True)
class TermsAhead(Directive):
    """Blocks ask in front of their products for what results are computed from beside sums.

    That is elements of each pixel, such as a residual addition's; not what all rows share.
    """

    rules = (rule.has_inside("mw"),)
