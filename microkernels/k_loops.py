"""K loops that are functions of LLVM: one interface for what TIR cannot say or LLVM orders badly.

Loops ordered by hand, foreign kernels, units with registers of their own (AMX, SME): each is

    void (A, a_row, a_step, B, b_step, k, row 0 of C, row 1 of C, ...)

which adds k steps to a block of C. A, B and the rows of C are `ptr` to their first elements, k (one
or more) and the strides `i64`: in elements, from one row of A to the next, and from one step of k
to the next. A row of C is contiguous. Nothing beyond the operands may be read. The function is
`alwaysinline`, so C, which is in registers around it, stays there, and strides are constants.

A kernel offers a `KLoop`; where it serves a use, `vector_code` leaves a call by its name beside the
plain loops, which `schedules.lowering.llvm_functions` gives the function of its block: where blocks
are cut is known only after the edges of tiles have been split off.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_SYMBOL = re.compile(r"blislike_(\w+)_(\d+)x(\d+)_of_(\d+)x(\d+)(_in_order)?")


@dataclass(frozen=True)
class Block:
    """A block of C, whole or cut, and the operands it is computed from.

    Parameters
    ----------
    rows, columns : int
        Of C, columns in whole vectors.
    mr, nr : int
        Of the whole block: a panel has as many elements a step.
    in_order : bool
        The core issues in order.
    """

    rows: int
    columns: int
    mr: int
    nr: int
    in_order: bool


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
    view : str
        How A must lie (`UpdateShape.view`).
    hides_loads : callable
        (mr, nr): whether in order, no load of A takes time beside the multiply-adds.
    """

    name: str
    serves: Callable[[Any, bool], bool]
    source: Callable[[str, Block], str]
    view: str = "panel"
    hides_loads: Callable[[int, int], bool] = lambda _mr, _nr: False

    def symbol(self, block: Block) -> str:
        """Return the name of the function for a block."""
        size = f"{block.rows}x{block.columns}_of_{block.mr}x{block.nr}"
        return f"blislike_{self.name}_{size}{'_in_order' if block.in_order else ''}"


def block_named(symbol: str) -> tuple[str, Block] | None:
    """Return the name of the `KLoop` and the block that a function's name stands for.

    None for a function that is none of these.
    """
    found = _SYMBOL.fullmatch(symbol)
    if found is None:
        return None
    name, *sizes, in_order = found.groups()
    return name, Block(*map(int, sizes), bool(in_order))


def header(symbol: str, rows: int) -> str:
    """Return the first line of a function of LLVM: its parameters are named %a to %k and %row0."""
    parameters = ["ptr %a", "i64 %a_row", "i64 %a_step", "ptr %b", "i64 %b_step", "i64 %k"]
    parameters += [f"ptr %row{row}" for row in range(rows)]
    return f"define linkonce_odr void @{symbol}({', '.join(parameters)}) alwaysinline nounwind {{"
