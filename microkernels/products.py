"""What a micro-kernel does with one register of C: load a group of A and of B, multiply, add.

A block of mr x nr is made of *tiles*, one vector register of C each: part of a row, or 2 x 2
elements. A multiply-add on a tile takes `ks` steps of k at once: 1 where C and its operands are as
wide (fp32), 2 for bfloat16, 4 for 8 bits (VNNI, SDOT), 8 for i8mm. The operands are packed for it,
and only here it is said how: ks steps of k lie side by side, A as (row, k), B as (group of k,
column, step of the group) in panels of nr.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.model.types import Types

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
    instructions : float
        How many of vectors it is (`issue.products_per_cycle`); a part of one where a unit of its
        own does more.
    folds_a : bool
        Where the instruction set folds broadcasts from memory (`Isa.folds_broadcast`), this one
        takes a group of A so.
    group_type : str
        Data type of what `load` makes of a group; "": that of its only element.
    intrinsic : str
        LLVM's name of the same for as many groups of A as of B, (sums, elements of A, elements of
        B); "": there is none.
    rows : int
        Rows of A that it takes, and columns of B; of two, a register of sums is a tile of 2 x 2,
        and the k loop is a function of LLVM (`neon_row_pairs`).
    conversion : float
        Instructions that make what is multiplied of a vector of B; all rows share them.
    is_bfloat16 : bool
        Vectors of pairs of bfloat16, of which cores may start fewer than FMAs
        (`Core.bf16_per_cycle`).
    b_vectors : int
        Vectors of B for a vector of sums that are loaded to registers for all rows.
    folded_b : int
        Those that each multiply-add reads from memory itself, without a register.
    joined : int
        Vectors of sums whose elements of B are loaded as one vector. Where they are several, they
        have other columns than their own while k loops: squares of `joined` x `joined` groups of
        columns are turned over.
    part : callable or None
        Of several vectors joined: (loaded elements of all, number of one): those of that one.
    """

    ks: int
    load: Load
    multiply_add: Callable[[Any, Any, Any, int], Any]
    functions: tuple[tuple[str, str], ...] = ()
    instructions: float = 1
    folds_a: bool = True
    group_type: str = ""
    intrinsic: str = ""
    rows: int = 1
    conversion: float = 0
    is_bfloat16: bool = False
    b_vectors: int = 1
    folded_b: int = 0
    joined: int = 1
    part: Callable[[Any, int], Any] | None = None


def fma(sums: Any, a: Any, b: Any, lanes: int) -> Any:
    """Return a multiply-add of single elements of A and vectors of B."""
    return sums + T.broadcast(a, lanes) * b


def multiplied(types: Types, a: Any, b: Any) -> Any:
    """Return the plain product of two elements, in the type of sums."""
    if types.is_bits:
        return tirx.popcount(a ^ b).astype(types.acc)
    return a * b if types.is_uniform else a.astype(types.acc) * b.astype(types.acc)


def as_they_are(elements: Any, _groups: int) -> Any:
    """Return elements as they are loaded: a `Load`."""
    return elements


FMA = Product(1, as_they_are, fma)


@dataclass(frozen=True)
class Spread:
    """How an element of A reaches all lanes of a multiply-add of fp32.

    Parameters
    ----------
    load : callable
        As that of a `Product`.
    multiply_add : callable
        (sums, what `load` makes of an element of A, fp32 of B, lanes): the new sums.
    functions : tuple of (str, str)
        Functions of LLVM that these call, by name.
    """

    load: Load = as_they_are
    multiply_add: Callable[[Any, Any, Any, int], Any] = fma
    functions: tuple[tuple[str, str], ...] = ()


BROADCAST = Spread()


def words(elements: Any, groups: int) -> Any:
    """Return groups of 32 bits as words: a `Load`."""
    return T.reinterpret("int32" if groups == 1 else f"int32x{groups}", elements)


def dot_by_words(ks: int, symbol: str, sums: str, source: str) -> Product:
    """Return a product of groups of 32 bits by a function of LLVM.

    The function takes words: TVM turns vectors of bfloat16 into others before LLVM sees them, and a
    word is what a multiply-add by element takes from a vector of A.

    Parameters
    ----------
    symbol, source : str
        The function (sums, words of A, words of B) on vectors.
    sums : str
        Data type of the vector of sums.
    """
    return Product(ks, words, _by_function(symbol, sums), ((symbol, source),), group_type="int32")


def _by_function(symbol: str, sums: str) -> Callable[[Any, Any, Any, int], Any]:
    def multiply_add(c: Any, a: Any, b: Any, lanes: int) -> Any:
        return T.call_pure_extern(sums, symbol, c, T.broadcast(a, lanes), b)

    return multiply_add


def dot_of_bytes(intrinsic: str, lanes: int) -> Product:
    """Return the product of four unsigned bytes of A by four signed ones of B, summed in 32 bits.

    Parameters
    ----------
    intrinsic : str
        LLVM's name of the instruction: (sums, bytes of A, bytes of B) on vectors of `lanes` sums.
    """

    def load(elements: Any, groups: int) -> Any:
        return words(elements, 1) if groups == 1 else elements

    def multiply_add(c: Any, a: Any, b: Any, _lanes: int) -> Any:
        group = T.reinterpret(f"uint8x{4 * lanes}", T.broadcast(a, lanes))
        return T.call_llvm_pure_intrin(f"int32x{lanes}", intrinsic, c, group, b)

    return Product(4, load, multiply_add, folds_a=False, group_type="int32", intrinsic=intrinsic)


def dot_of_pairs(multiply: str, lanes: int, widens_b: bool = False) -> Product:
    """Return the product of two elements of A by two of B, 16 bits each, on x86.

    Sums of two products are an instruction, their addition to the sums before another. That one is
    assembly, since LLVM would turn the order of additions around, and keep products of several
    steps of k in registers that the block needs.

    Parameters
    ----------
    multiply : str
        LLVM's name of the first one: (elements of A, elements of B) on vectors of 2 * `lanes`.
    widens_b : bool
        B lies in memory in bytes, which get 16 bits as they are loaded.
    """
    name = f"blislike_dot_of_pairs_{lanes}"
    sums, elements = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    source = f"""
declare {sums} @{multiply}({elements}, {elements})
define linkonce_odr {sums} @{name}({sums} %c, {sums} %a, {sums} %b) alwaysinline nounwind {{
  %x = bitcast {sums} %a to {elements}
  %y = bitcast {sums} %b to {elements}
  %p = call {sums} @{multiply}({elements} %x, {elements} %y)
  %r = call {sums} asm "vpaddd $2, $1, $0", "=v,v,v"({sums} %c, {sums} %p) memory(none)
  ret {sums} %r
}}
"""
    product = dot_by_words(2, name, f"int32x{lanes}", source)
    product = replace(product, instructions=2, folds_a=False)
    return replace(product, load=_widened_words, conversion=1) if widens_b else product


def _widened_words(elements: Any, groups: int) -> Any:
    """Return pairs as words, those of bytes in 16 bits each: a `Load` of either operand."""
    return words(tirx.Cast(f"int16x{2 * groups}", elements), groups)


def differing_bits(name: str, lanes: int, source: str, instructions: int) -> Product:
    """Return the product of words of signs (`model.types.BITS`) by a function of LLVM.

    Parameters
    ----------
    name, source : str
        The function (sums, words of A, words of B) on vectors.
    lanes : int
        Words of a vector.
    instructions : int
        Of which the function consists.
    """
    add = _by_function(name, f"int32x{lanes}")
    return Product(1, as_they_are, add, ((name, source),), instructions)


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
