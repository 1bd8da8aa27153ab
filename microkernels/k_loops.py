"""K loops that are functions of LLVM: one interface for what TIR cannot say or LLVM orders badly.

Loops ordered by hand, foreign kernels, units with registers of their own (AMX, SME): each is

    void (A, a_line, a_row, a_step, B, b_step, k, row 0 of C, row 1 of C, ...)

which adds k steps to a block of C. A, B and the rows of C are `ptr` to their first elements, k (one
or more) and the strides `i64`: in elements, from one row of A to the next, from the rows of an
image row to those of the next one, and from one step of k to the next. A row of C is contiguous.
Nothing beyond the operands may be read. The function is `alwaysinline`, so C, which is in registers
around it, stays there, and strides are constants.

A kernel offers a `KLoop`; where it serves a use, `vector_code` leaves a call by its name beside the
plain loops, which `schedules.lowering.llvm_functions` gives the function of its block: where blocks
are cut is known only after the edges of tiles have been split off.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_SYMBOL = re.compile(
    r"blislike_(finish_)?(\w+?)_(\d+)x(\d+)x(\d+)_of_(\d+)x(\d+)_(rows|panel|window)(_in_order)?"
)
_FINISH = "finish_"


@dataclass(frozen=True)
class Block:
    """A block of C, whole or cut, and the operands it is computed from.

    Parameters
    ----------
    mh, mw, columns : int
        Of C: image rows, rows of each of them, and columns in whole vectors.
    mr, nr : int
        Of the whole block: a panel has as many elements a step.
    view : str
        How A lies (`UpdateShape.view`).
    in_order : bool
        The core issues in order.
    """

    mh: int
    mw: int
    columns: int
    mr: int
    nr: int
    view: str = "panel"
    in_order: bool = False

    @property
    def rows(self) -> int:
        """Rows of C."""
        return self.mh * self.mw


@dataclass(frozen=True)
class KLoop:
    """The functions of LLVM that a kernel may use instead of its plain k loop.

    Parameters
    ----------
    name : str
        Unique; it begins the functions' names.
    serves : callable
        (`Microkernel`, whether the core issues in order): whether it takes the place of LLVM's
        loop.
    source : callable
        (symbol, block) to the text of a function.
    views : tuple of str
        How A may lie (`UpdateShape.view`).
    image_rows : bool
        Rows of A in place may be those of several image rows.
    hides_loads : callable
        (mr, nr): whether in order, no load of A takes time beside the multiply-adds.
    finish : callable or None
        C is in an order of the loop's own from zeros on; (symbol, block) to the text of a function
        (row 0 of C, row 1 of C, ...) that puts it in rows behind the last call.
    """

    name: str
    serves: Callable[[Any, bool], bool]
    source: Callable[[str, Block], str]
    views: tuple[str, ...] = ("panel",)
    image_rows: bool = False
    hides_loads: Callable[[int, int], bool] = lambda _mr, _nr: False
    finish: Callable[[str, Block], str] | None = None

    def symbol(self, block: Block, finish: bool = False) -> str:
        """Return the name of the function for a block, or of the one that finishes it."""
        size = f"{block.mh}x{block.mw}x{block.columns}_of_{block.mr}x{block.nr}_{block.view}"
        name = f"{_FINISH}{self.name}" if finish else self.name
        return f"blislike_{name}_{size}{'_in_order' if block.in_order else ''}"


def block_named(symbol: str) -> tuple[str, Block, bool] | None:
    """Return the name of the `KLoop`, the block, and whether it finishes it, of a function's name.

    None for a function that is none of these.
    """
    found = _SYMBOL.fullmatch(symbol)
    if found is None:
        return None
    finish, name, *sizes, view, in_order = found.groups()
    return name, Block(*map(int, sizes), view, bool(in_order)), bool(finish)


def header(symbol: str, rows: int) -> str:
    """Return the first line of a function of LLVM: its parameters are named %a to %k and %row0."""
    parameters = [
        "ptr %a",
        "i64 %a_line",
        "i64 %a_row",
        "i64 %a_step",
        "ptr %b",
        "i64 %b_step",
        "i64 %k",
    ]
    parameters += [f"ptr %row{row}" for row in range(rows)]
    return f"define linkonce_odr void @{symbol}({', '.join(parameters)}) alwaysinline nounwind {{"
