"""NEON k loops whose multiply-add takes two rows of A and two columns of B: `smmla` and its kin.

`smmla v.4s, v.16b, v.16b` multiplies two rows of eight bytes by two columns of eight bytes, so that
a register of sums is a tile of 2 x 2 elements of C, not a row of four. Panels of B hold the eight
bytes of a column side by side (`products`): a vector is two columns as it is. Of A two rows are
joined, by a load of eight bytes into either half of a register; the second one takes a vector unit
as a multiply-add does. Rows of packed panels lie side by side already.

C stays in tiles over any number of calls: two rows of four columns are two tiles, the left one
where the upper row of C is and the right one where the lower row is. Zeros are the same in both
orders, and `finish` puts the rows where they belong once all calls are over. A row that is left
alone, in a cut block of an odd number, is always a row.

The loops are inline assembly as those of `neon_panels` are: vectors of B pass through the registers
that accumulators and rows of A leave, and nothing is spilled.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from tvm_blislike.microkernels.k_loops import Block, KLoop, header

REGISTERS = 32
# Bytes of a row of A, or of a column of B, that a multiply-add takes.
KS = 8
_SUMS = "<4 x i32>"
# Of two vectors, the left halves, and the right ones: rows from tiles, and tiles from rows.
_HALVES = ("<i32 0, i32 1, i32 4, i32 5>", "<i32 2, i32 3, i32 6, i32 7>")


def row_pairs_loop(name: str, instruction: str) -> KLoop:
    """Return the loops of a multiply-add (sums, two rows of A, two columns of B) by its name."""
    source = functools.cache(functools.partial(_source, instruction))
    views = ("rows", "window", "panel")
    return KLoop(name, lambda _kernel, _in_order: True, source, views, True, finish=_finish)


@dataclass(frozen=True)
class _Registers:
    """Where the operands of a block are."""

    block: Block

    @property
    def pairs(self) -> int:
        """Pairs of rows, the last one perhaps of one row only."""
        return -(-self.block.rows // 2)

    @property
    def vectors(self) -> int:
        """Vectors of four columns, two tiles for each pair of rows."""
        return self.block.columns // 4

    @property
    def count(self) -> int:
        """Accumulators."""
        return 2 * self.pairs * self.vectors

    @property
    def passing(self) -> range:
        """Registers through which vectors of B pass."""
        first = self.count + self.pairs
        return range(first, min(REGISTERS, first + 2 * self.vectors))

    def tile(self, pair: int, columns: int) -> int:
        """Return the accumulator of a pair of rows and the two columns of a vector of B."""
        return (2 * pair + columns % 2) * self.vectors + columns // 2

    def rows_of_a(self, pair: int) -> int:
        """Return the register of a pair of rows of A."""
        return self.count + pair


def fits(mr: int, nr: int) -> bool:
    """Whether a block has registers for its sums, its rows of A, and two vectors of B."""
    at = _Registers(Block(1, mr, nr, mr, nr))
    return at.count + at.pairs + 2 <= REGISTERS


# --- the functions ---------------------------------------------------------------------------


def _source(instruction: str, symbol: str, block: Block) -> str:
    at = _Registers(block)
    lines = [header(symbol, block.rows)]
    lines += _addresses(block)
    for number in range(block.rows * at.vectors):
        lines.append(f"  %c{number} = load {_SUMS}, ptr %p{number}, align 4")
    lines += _alone(at, "c", "t")
    lines += _pointers(block)
    lines.append(_call(at, list(_loop(at, instruction))))
    kinds = ", ".join(_kinds(at))
    for number in range(at.count):
        lines.append(f"  %u{number} = extractvalue {{ {kinds} }} %r, {number}")
    if block.rows % 2:
        first = (block.rows - 1) * at.vectors
        for vector in range(at.vectors):
            left, right = first + vector, first + at.vectors + vector
            halves = f"{_SUMS} %u{left}, {_SUMS} %u{right}, <4 x i32> {_HALVES[0]}"
            lines.append(f"  %row{left}_sums = shufflevector {halves}")
    for number in range(block.rows * at.vectors):
        is_alone = block.rows % 2 and number >= (block.rows - 1) * at.vectors
        value = f"%row{number}_sums" if is_alone else f"%u{number}"
        lines.append(f"  store {_SUMS} {value}, ptr %p{number}, align 4")
    return "\n".join([*lines, "  ret void", "}", ""])


def _finish(symbol: str, block: Block) -> str:
    """Return the function that makes rows of tiles: (row 0 of C, row 1 of C, ...)."""
    vectors = block.columns // 4
    parameters = ", ".join(f"ptr %row{row}" for row in range(block.rows))
    lines = [f"define linkonce_odr void @{symbol}({parameters}) alwaysinline nounwind {{"]
    lines += _addresses(block)
    for upper in range(0, block.rows - 1, 2):
        for vector in range(vectors):
            numbers = [row * vectors + vector for row in (upper, upper + 1)]
            for number in numbers:
                lines.append(f"  %c{number} = load {_SUMS}, ptr %p{number}, align 4")
            both = ", ".join(f"{_SUMS} %c{number}" for number in numbers)
            for number, half in zip(numbers, _HALVES, strict=True):
                lines.append(f"  %r{number} = shufflevector {both}, <4 x i32> {half}")
                lines.append(f"  store {_SUMS} %r{number}, ptr %p{number}, align 4")
    return "\n".join([*lines, "  ret void", "}", ""])


def _addresses(block: Block) -> Iterator[str]:
    """Addresses of the vectors of C, row by row."""
    vectors = block.columns // 4
    for row in range(block.rows):
        for vector in range(vectors):
            number = row * vectors + vector
            yield f"  %p{number} = getelementptr i8, ptr %row{row}, i64 {16 * vector}"


def _alone(at: _Registers, row: str, tile: str) -> Iterator[str]:
    """Tiles of a row that is alone: its sums are the upper halves."""
    if at.block.rows % 2:
        for vector in range(at.vectors):
            left = (at.block.rows - 1) * at.vectors + vector
            value = f"{_SUMS} %{row}{left}, {_SUMS} zeroinitializer"
            for number, half in zip((left, left + at.vectors), _HALVES, strict=True):
                yield f"  %{tile}{number} = shufflevector {value}, <4 x i32> {half}"


def _pointers(block: Block) -> Iterator[str]:
    """Pointers to the rows of A in place."""
    if block.view == "panel":
        return
    for row in range(block.rows):
        ih, iw = divmod(row, block.mw)
        yield f"  %l{row} = mul i64 %a_line, {ih}"
        yield f"  %w{row} = mul i64 %a_row, {iw}"
        yield f"  %o{row} = add i64 %l{row}, %w{row}"
        yield f"  %a{row} = getelementptr i8, ptr %a, i64 %o{row}"


def _operands_of_a(block: Block) -> list[str]:
    return ["%a"] if block.view == "panel" else [f"%a{row}" for row in range(block.rows)]


def _kinds(at: _Registers) -> list[str]:
    """Types of what the assembly returns: accumulators, pointers to A and to B, and k."""
    return [_SUMS] * at.count + ["ptr"] * (len(_operands_of_a(at.block)) + 1) + ["i64"]


def _call(at: _Registers, loop: list[str]) -> str:
    """The call of the inline assembly, accumulators in v0 and up, each in and out."""
    kinds = _kinds(at)
    others = len(kinds) - at.count
    outputs = [f"={{v{i}}}" for i in range(at.count)] + ["=&r"] * others
    ties = [str(i) for i in range(len(kinds))]
    clobbers = [f"~{{v{i}}}" for i in range(at.count, REGISTERS)] + ["~{cc}", "~{memory}"]
    first_alone = (at.block.rows - 1) * at.vectors if at.block.rows % 2 else at.count
    sums = [f"%{'t' if i >= first_alone else 'c'}{i}" for i in range(at.count)]
    values = [*sums, *_operands_of_a(at.block), "%b", "%k"]
    arguments = ", ".join(f"{k} {v}" for k, v in zip(kinds, values, strict=True))
    text = "\\0A\\09".join(loop)
    constraints = ",".join([*outputs, *ties, *clobbers])
    call = f"  %r = call {{ {', '.join(kinds)} }} asm sideeffect"
    return f'{call} "{text}", "{constraints}"({arguments})'


# --- the loop --------------------------------------------------------------------------------


def _loop(at: _Registers, instruction: str) -> Iterator[str]:
    """Steps of k for a core that reorders: each vector of B is loaded, used and forgotten."""
    block, passing = at.block, at.passing
    others = len(_operands_of_a(block))
    b_pointer, counter = f"${at.count + others}", f"${at.count + others + 1}"
    columns = 2 * at.vectors
    loads = [f"ldr q{passing[q % len(passing)]}, [{b_pointer}, #{16 * q}]" for q in range(columns)]
    yield "1:"
    yield from _loads_of_a(at)
    yield from loads[: len(passing)]
    for q in range(columns):
        for pair in range(at.pairs):
            factors = f"v{at.rows_of_a(pair)}.16b, v{passing[q % len(passing)]}.16b"
            yield f"{instruction} v{at.tile(pair, q)}.4s, {factors}"
        if q + len(passing) < columns:
            yield loads[q + len(passing)]
    yield f"subs {counter}, {counter}, #1"
    if block.view == "panel":
        yield f"add ${at.count}, ${at.count}, #{KS * block.mr}"
    yield f"add {b_pointer}, {b_pointer}, #{KS * block.nr}"
    yield "b.ne 1b"


def _loads_of_a(at: _Registers) -> Iterator[str]:
    """Load eight bytes of each row, two rows in a register; nothing beyond a row is read."""
    rows = at.block.rows
    for pair in range(at.pairs):
        register, is_alone = at.rows_of_a(pair), 2 * pair + 1 == rows
        if at.block.view == "panel":
            kind = "d" if is_alone else "q"
            yield f"ldr {kind}{register}, [${at.count}, #{2 * KS * pair}]"
            continue
        upper = at.count + 2 * pair
        yield f"ldr d{register}, [${upper}], #{KS}"
        if not is_alone:
            yield f"ld1 {{v{register}.d}}[1], [${upper + 1}], #{KS}"
