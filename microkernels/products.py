"""What a micro-kernel does with one register of C: load a group of A and of B, multiply, add.

A block of mr x nr is made of *tiles*, one vector register of C each. A multiply-add on a tile takes
`ks` steps of k at once: 1 where C and its operands are as wide (fp32), 2 for bfloat16, 4 for 8 bits
(VNNI, SDOT), 8 for i8mm. The operands are packed for it, and only here it is said how: ks steps of
k lie side by side, A as (row, k), B as (group of k, column, step of the group) in panels of nr.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

# Elements of a group, side by side in memory, and how many groups there are, to what `multiply_add`
# takes: a scalar for one group of A, a vector for the groups of a vector of B.
Load = Callable[[Any, int], Any]


@dataclass(frozen=True)
class Product:
    """The multiply-add of a tile.

    Parameters
    ----------
    ks : int
        Steps of k that it takes.
    load : callable
        (elements, groups): the operand as `multiply_add` takes it; `elements` is a load of whole
        groups.
    multiply_add : callable
        (sums, group of A, groups of B, lanes): the new sums; one group of A serves all lanes.
    functions : tuple of (str, str)
        Functions of LLVM that it calls, by name.
    """

    ks: int
    load: Load
    multiply_add: Callable[[Any, Any, Any, int], Any]
    functions: tuple[tuple[str, str], ...] = ()


def _fma(sums: Any, a: Any, b: Any, lanes: int) -> Any:
    return sums + T.broadcast(a, lanes) * b


FMA = Product(1, lambda elements, _groups: elements, _fma)


def _words(elements: Any, groups: int) -> Any:
    return T.reinterpret("int32" if groups == 1 else f"int32x{groups}", elements)


def dot_by_words(ks: int, symbol: str, sums: str, source: str) -> Product:
    """Return a product of groups of 32 bits by a function of LLVM.

    TVM turns vectors of bfloat16 into others before LLVM sees them: the function takes words.

    Parameters
    ----------
    symbol, source : str
        The function (sums, words of A, words of B) on vectors.
    sums : str
        Data type of the vector of sums.
    """

    def multiply_add(c: Any, a: Any, b: Any, lanes: int) -> Any:
        return T.call_pure_extern(sums, symbol, c, T.broadcast(a, lanes), b)

    return Product(ks, _words, multiply_add, ((symbol, source),))


# --- packing ---------------------------------------------------------------------------------


def groups(steps: int, ks: int) -> int:
    """Return the groups of ks that hold so many steps of k, the last one filled up with zeros."""
    return -(-steps // ks)


def panels_of_b(b: np.ndarray, nr: int, ks: int) -> np.ndarray:
    """Pack (batch, k, n) into (batch, panels of nr columns, groups of k, nr * ks)."""
    batch, k, n = b.shape
    depth, tiles = groups(k, ks), -(-n // nr)
    panels = np.zeros((batch, tiles, depth, nr, ks), b.dtype)
    # Step by step of a group, panel by panel: no copy of B, which may be hundreds of megabytes.
    for step in range(ks):
        rows = b[:, step::ks]
        for tile in range(tiles):
            columns = rows[:, :, tile * nr : (tile + 1) * nr]
            panels[:, tile, : rows.shape[1], : columns.shape[2], step] = columns
    return panels.reshape(batch, tiles, depth, nr * ks)


def place_in_b(group: Any, lane: Any, ks: int) -> tuple[Any, Any]:
    """Return the step of k and the column of an element of a panel (group, lane of nr * ks)."""
    if ks == 1:
        return group, lane
    return group * ks + tirx.indexmod(lane, ks), tirx.indexdiv(lane, ks)
