"""Where directives may stand: each rule says what to change, "" where nothing has to be."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvm_blislike.model.directive import Directive, all_directives
from tvm_blislike.model.loop_names import Named, inside, names_inside


def has_inside(*names: str) -> Any:
    """Return the rule that loops inside have all these names."""

    def rule(_directive: Directive, loop: tirx.For) -> str:
        missing = {*names} - names_inside(loop)
        return f"put Named({', '.join(sorted(missing))}) on loops inside" if missing else ""

    return rule


def cut_inside(edge: Any, loop: tirx.For) -> str:
    """Have a loop inside that an edge cuts."""
    cut = ", ".join(edge.extents)
    # Partial sums have rows and vectors, but no elements to cut.
    is_there = names_inside(loop) & edge.extents.keys()
    return "" if is_there else f"put Named on the loops inside that it cuts: {cut}"


def named(_directive: Directive, loop: tirx.For) -> str:
    """Have a name, by which edges find the loop."""
    return "" if Named.of(loop) else "put Named beside it, or no Edge around will cut the loop"


def of_known_length(_directive: Directive, loop: tirx.For) -> str:
    """Begin and end at constants."""
    known = isinstance(loop.min, tirx.IntImm) and isinstance(loop.extent, tirx.IntImm)
    return "" if known else "make its first index and its length constants"


def serial(_directive: Directive, loop: tirx.For) -> str:
    """Be neither parallel nor unrolled nor vectorized."""
    is_serial = loop.kind == tirx.ForKind.SERIAL
    return "" if is_serial else "take `parallel`, `unroll` or `vectorize` away from the loop"


def innermost(_directive: Directive, loop: tirx.For) -> str:
    """Have no loop inside."""
    return "put it on the innermost loop" if inside(loop, tirx.For) else ""


def around_loops(_directive: Directive, loop: tirx.For) -> str:
    """Have a loop inside."""
    return "" if inside(loop, tirx.For) else "put it on a loop around this one"


def only_one(_directive: Directive, loop: tirx.For) -> str:
    """Stand alone among the directives with this rule."""
    both = [d.__name__ for d in all_directives() if only_one in d.rules and d.of(loop)]
    return (
        f"keep one of {', '.join(both)}: each makes another thing of the loop" if both[1:] else ""
    )


def not_negative(border: Any, _loop: tirx.For) -> str:
    """Split off a number of iterations that is one."""
    return "" if min(border.first, border.last) >= 0 else "give 0 where none is to be split off"


def of_pixels(image: Any, _loop: tirx.For) -> str:
    """Have the size of images."""
    return "" if image.height > 0 < image.width else "give the height and width of the images"


def nest(_directive: Directive, loop: tirx.For) -> str:
    """Begin a nest over the rows and columns of kernel and tile."""
    names: list[str] = []
    while isinstance(loop, tirx.For) and (named := Named.of(loop)):
        names.append(named.name)
        loop = loop.body
    wanted = {"ry", "rx", "mh", "mw"}
    return "" if {*names[:4]} == wanted else "put it on the outermost of loops Named ry, rx, mh, mw"


def call_in_front(_directive: Directive, loop: tirx.For) -> str:
    """Begin the body with a call."""
    is_sequence = isinstance(loop.body, tirx.SeqStmt)
    is_call = is_sequence and isinstance(loop.body.seq[0], tirx.Evaluate)
    return "" if is_call else "begin its body with the call, and put the plain loops behind it"


def of_copies(_directive: Directive, loop: tirx.For) -> str:
    """Compute nothing in the body."""
    copies = all(_is_copy(store.value) for store in inside(loop, tirx.BufferStore))
    return "" if copies else "put it on a loop that copies elements and computes nothing"


def shifts_inside(pieces: Any, loop: tirx.For) -> str:
    """Have a loop over shifted copies inside, or none without shifts."""
    if not pieces.shifts:
        return innermost(pieces, loop)
    return "" if isinstance(loop.body, tirx.For) else "put the loop over the shifted copies inside"


def _is_copy(value: Any) -> bool:
    """Whether a value is a load, beside which a condition may put zeros."""
    while isinstance(value, ir.Call) and len(value.args) == 3:
        value = value.args[1]
    return isinstance(value, ir.TensorLoad)
