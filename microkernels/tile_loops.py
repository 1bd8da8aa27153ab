"""K loops on a unit with tile registers (AMX), as functions of LLVM.

Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter "Programming with
Intel Advanced Matrix Extensions": eight tiles of up to 16 rows of 64 bytes. A product adds to a
tile of C (rows of A, 16 columns) a tile of A (rows, up to 64 bytes of k) times a tile of B (a row
for each group of four bytes of k, 16 columns): packed panels of B are rows of such tiles as they
are, and rows of A are read where they lie.

C of a block of mr x nr is in tiles 0 to 3, up to four tall and two wide; A passes through 4 and 5,
B through 6 and 7. C stays there from `zero` to `store` over any number of calls of `multiply`,
which adds `steps` groups of k: void (A, bytes between image rows, bytes between rows, B).

- Where rows of A are equally far apart, a last tile of fewer rows is moved up instead: it computes
  some rows again. Only blocks of fewer rows than a tile has copy them, so that nothing beyond A is
  read; what the other rows of the copy hold ends in rows of C that nobody reads.
- A last tile of fewer steps of k is moved forward instead: what others have multiplied already is
  zeroed in a copy of its rows of A.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Rows of a tile, bytes of a row, groups of k in a row, and bytes of a group.
ROWS, ROW_BYTES, GROUPS, GROUP_BYTES = 16, 64, 16, 4
# Products of tiles of fewer rows take as long: 16 rows 16 cycles, 12 rows 12.4, 8 rows 9.8, 4 rows
# 9.0 (Sapphire Rapids).
LEAST_ROWS = 9.5
# Registers: of C from 0 on, of A, of B.
OF_C, OF_A, OF_B = 4, 4, 6
# How far ahead B is asked for where it comes from far away: all layers of ResNet-50 in bytes take
# 0.91 of the time without, 0.93 with 8 KB. Panels that many blocks share are in a cache: asking for
# them there keeps it busy (products of 512 x 512 by as many: 0.37 of the peak, 0.57 without).
_AHEAD = 16384
_SYMBOL = re.compile(
    r"blislike_tiles_(zero|multiply|store)_(\w+?)_(\d+)x(\d+)x(\d+)_of_(\d+)x(\d+)_k(\d+)(_f)?"
)


def tile_rows(rows: int, image_rows: int = 1) -> int:
    """Return the rows of the tiles of a whole block, equal ones; each an image row where several.

    Parameters
    ----------
    rows : int
        Of the whole block.
    image_rows : int
        Of which image rows, each a run of rows equally far apart.
    """
    return rows // (image_rows if image_rows > 1 else math.ceil(rows / ROWS))


def fits(rows: int, nr: int, image_rows: int) -> bool:
    """Whether a whole block of rows of some image rows has tiles for all its rows and columns."""
    of_tile = tile_rows(rows, image_rows)
    return of_tile <= ROWS and rows // of_tile * (nr // ROWS) <= OF_C


@dataclass(frozen=True)
class TileBlock:
    """A block of C, whole or cut, in tiles.

    Parameters
    ----------
    mh, mw : int
        Image rows (of which each is a tile of its own) and columns; one image row: any rows that
        are equally far apart.
    columns : int
        Of C, whole tiles.
    rows : int
        Of a tile.
    nr : int
        Columns of a panel of B.
    steps : int
        Groups of k of a call.
    streams : bool
        B comes from far away, and is asked for in advance.
    """

    mh: int
    mw: int
    columns: int
    rows: int
    nr: int
    steps: int
    streams: bool = False

    @property
    def groups(self) -> int:
        """Groups of k in a tile."""
        return min(GROUPS, self.steps)

    @property
    def tall(self) -> int:
        """Tiles of rows."""
        return self.mh if self.mh > 1 else math.ceil(self.mw / self.rows)

    @property
    def wide(self) -> int:
        """Tiles of columns."""
        return self.columns // ROWS

    @property
    def is_short(self) -> bool:
        """Whether there are fewer rows than a tile has."""
        return self.mw < self.rows

    def of_c(self, tall: int, wide: int) -> int:
        """Return the register of a tile of C."""
        return tall * (self.nr // ROWS) + wide

    def first_row(self, tile: int) -> int:
        """Return the row of C in which a tile begins; the last one may begin inside another."""
        moved = tile * self.rows
        return moved if self.mh > 1 or self.is_short else min(moved, self.mw - self.rows)


@dataclass(frozen=True)
class TileLoop:
    """The functions of LLVM of a product of tiles.

    Parameters
    ----------
    name : str
        Unique.
    instruction : str
        LLVM's name of it, behind `llvm.x86.`.
    """

    name: str
    instruction: str

    def symbol(self, what: str, block: TileBlock) -> str:
        """Return the name of the function that does something ("zero", "multiply", "store")."""
        sizes = f"{block.mh}x{block.mw}x{block.columns}_of_{block.rows}x{block.nr}_k{block.steps}"
        return f"blislike_tiles_{what}_{self.name}_{sizes}{'_f' if block.streams else ''}"

    def source(self, what: str, symbol: str, block: TileBlock) -> str:
        """Return the text of a function of that name."""
        if what == "multiply":
            return "\n".join(_multiply(symbol, block, self.instruction))
        return "\n".join(_zero(symbol, block) if what == "zero" else _store(symbol, block))


def block_of(symbol: str) -> tuple[str, str, TileBlock] | None:
    """Return what a function does, the name of its `TileLoop`, and its block; else None."""
    found = _SYMBOL.fullmatch(symbol)
    if found is None:
        return None
    what, name, *sizes, streams = found.groups()
    return what, name, TileBlock(*map(int, sizes), bool(streams))


# --- the block -------------------------------------------------------------------------------


def _header(symbol: str, parameters: str) -> str:
    return f"define linkonce_odr void @{symbol}({parameters}) alwaysinline nounwind {{"


def _zero(symbol: str, block: TileBlock) -> Iterator[str]:
    yield "declare void @llvm.x86.tilezero(i8 immarg)"
    yield _header(symbol, "")
    for tall in range(block.tall):
        for wide in range(block.wide):
            yield f"  call void @llvm.x86.tilezero(i8 {block.of_c(tall, wide)})"
    yield "  ret void\n}\n"


def _store(symbol: str, block: TileBlock) -> Iterator[str]:
    """Store the tiles of C: (C, bytes of a row)."""
    yield "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)"
    yield _header(symbol, "ptr %c, i64 %c_row")
    for tall in range(block.tall):
        yield f"  %o{tall} = mul i64 %c_row, {block.first_row(tall)}"
        for wide in range(block.wide):
            at = f"{tall}_{wide}"
            yield f"  %i{at} = add i64 %o{tall}, {ROW_BYTES * wide}"
            yield f"  %p{at} = getelementptr i8, ptr %c, i64 %i{at}"
            tile = block.of_c(tall, wide)
            yield f"  call void @llvm.x86.tilestored64(i8 {tile}, ptr %p{at}, i64 %c_row)"
    yield "  ret void\n}\n"


def _multiply(symbol: str, block: TileBlock, instruction: str) -> Iterator[str]:
    """Whole tiles of k in a loop, then a last one of fewer steps."""
    whole, rest = divmod(block.steps, block.groups)
    yield "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)"
    yield "declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)"
    yield f"declare void @llvm.x86.{instruction}(i8 immarg, i8 immarg, i8 immarg)"
    yield _header(symbol, "ptr %a, i64 %a_line, i64 %a_row, ptr %b")
    yield "entry:"
    if rest or block.is_short:
        yield f"  %copy = alloca [{ROWS * ROW_BYTES} x i8], align {ROW_BYTES}"
    for tall in range(block.tall):
        by_line = block.mh > 1
        stride, count = ("%a_line", tall) if by_line else ("%a_row", block.first_row(tall))
        yield f"  %first{tall} = mul i64 {stride}, {count}"
        yield f"  %a{tall} = getelementptr i8, ptr %a, i64 %first{tall}"
    yield "  br label %loop"
    yield "loop:"
    yield "  %s = phi i64 [ 0, %entry ], [ %next, %loop ]"
    yield f"  %k = mul i64 %s, {ROW_BYTES}"
    yield f"  %bk = mul i64 %s, {GROUPS * block.nr * GROUP_BYTES}"
    for tall in range(block.tall):
        yield f"  %ak{tall} = getelementptr i8, ptr %a{tall}, i64 %k"
    yield "  %pb = getelementptr i8, ptr %b, i64 %bk"
    yield from _step(block, instruction, "ak", "pb", 0)
    step_bytes = GROUPS * block.nr * GROUP_BYTES if block.streams else 0
    for ahead in range(_AHEAD, _AHEAD + step_bytes, ROW_BYTES):
        yield f"  %f{ahead} = getelementptr i8, ptr %pb, i64 {ahead}"
        yield f"  call void @llvm.prefetch.p0(ptr %f{ahead}, i32 0, i32 3, i32 1)"
    yield "  %next = add i64 %s, 1"
    yield f"  %more = icmp ult i64 %next, {whole}"
    yield "  br i1 %more, label %loop, label %end"
    yield "end:"
    if rest:
        begin = block.steps - block.groups
        for tall in range(block.tall):
            place = f"ptr %a{tall}, i64 {begin * GROUP_BYTES}"
            yield f"  %at{tall} = getelementptr i8, {place}"
        yield f"  %pt = getelementptr i8, ptr %b, i64 {begin * block.nr * GROUP_BYTES}"
        yield from _step(block, instruction, "at", "pt", block.groups - rest)
    yield "  ret void\n}\n"


def _step(block: TileBlock, instruction: str, a: str, b: str, zeros: int) -> Iterator[str]:
    """One tile of k whose first `zeros` groups have been multiplied already; pointers by name."""
    for tall in range(block.tall):
        if zeros or block.is_short:
            yield from _copied(block, f"{a}{tall}", zeros)
            place = f"ptr %copy, i64 {ROW_BYTES}"
        else:
            place = f"ptr %{a}{tall}, i64 %a_row"
        a_tile = OF_A + tall % 2
        yield f"  call void @llvm.x86.tileloadd64(i8 {a_tile}, {place})"
        for wide in range(block.wide):
            if tall == 0:
                at = f"%{b}_{wide}"
                yield f"  {at} = getelementptr i8, ptr %{b}, i64 {ROW_BYTES * wide}"
                row = block.nr * GROUP_BYTES
                yield f"  call void @llvm.x86.tileloadd64(i8 {OF_B + wide}, ptr {at}, i64 {row})"
            tiles = f"i8 {block.of_c(tall, wide)}, i8 {a_tile}, i8 {OF_B + wide}"
            yield f"  call void @llvm.x86.{instruction}({tiles})"


def _copied(block: TileBlock, a: str, zeros: int) -> Iterator[str]:
    """Copy the rows of a tile of A, each with its first groups zeroed."""
    vector = f"<{block.groups} x i32>"
    kept = ", ".join(f"i1 {int(group >= zeros)}" for group in range(block.groups))
    for row in range(min(block.rows, block.mw)):
        name = f"%{a}_{row}"
        yield f"  {name}o = mul i64 %a_row, {row}"
        yield f"  {name}p = getelementptr i8, ptr %{a}, i64 {name}o"
        yield f"  {name}v = load {vector}, ptr {name}p, align 1"
        chosen = f"<{block.groups} x i1> <{kept}>, {vector} {name}v, {vector} zeroinitializer"
        yield f"  {name}k = select {chosen}"
        yield f"  {name}c = getelementptr i8, ptr %copy, i64 {row * ROW_BYTES}"
        yield f"  store {vector} {name}k, ptr {name}c, align {ROW_BYTES}"
