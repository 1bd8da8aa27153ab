"""The order of a NEON k loop for cores that issue in order (Cortex-A53, A55).

Such a core waits wherever an operand is not there yet, and its load path has 64 bits: a 128-bit
load takes two cycles, and no multiply-add starts beside it. So the loop here is ordered by hand:

- A is loaded as pairs of rows (`ldr d`), which a multiply-add by element takes as they are;
- a vector of B comes in two halves, `ldr d` and `ldr x` + `ins`; only the `ins` costs a cycle, all
  loads start beside a multiply-add;
- multiply-adds run column by column (mr rows per vector of B), and each operand is loaded again
  for the next step right after its last use, which leaves the rest of the step for it to arrive.

A step takes mr * nr/4 + nr/4 cycles: 24 of 27 cycles multiply in 8x12, 24 of 26 in 12x8
(`tvm_blislike/inspect/in_order.py` counts them). LLVM's order of the same loop, with 128-bit loads,
multiplies in less than two thirds of the cycles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

# Multiply-adds between the loads of both halves of a vector of B and the `ins` that joins them:
# a load takes three to four cycles, and may stand one or two slots late. Low blocks have less room.
APART = 6
# Registers for halves of B on their way; the others hold pointers and the counter.
HALVES = tuple(range(9, 16))


def fits(mr: int, nr: int) -> bool:
    """Whether a block of words can be ordered: all operands of a step have a register.

    Fewer than six rows leave a load too little time; a single vector of B is always in use.
    """
    vectors = nr // 4
    pairs = -(-mr // 2)
    return mr >= 6 and 2 <= vectors <= len(HALVES) and mr * vectors + pairs + vectors <= 32


class MultiplyAdd(NamedTuple):
    """A multiply-add by element, and what LLVM calls a vector of its sums.

    Its factors are words: of a vector of B all four, of A the one that `lane` counts.
    """

    text: str
    sums: str


class _Block:
    """Registers of one block, and the order of the instructions of a step.

    Every vector instruction (a multiply-add or an `ins`) has a slot beside it for one that is
    none. `slots[i]` is what shares the cycle of `vector[i]`, or None.
    """

    def __init__(self, by: MultiplyAdd, mr: int, nr: int, a_bytes: int, b_bytes: int) -> None:
        self.by = by
        self.mr, self.vectors, self.pairs = mr, nr // 4, -(-mr // 2)
        self.a_bytes, self.b_bytes = a_bytes, b_bytes
        self.fmas = mr * self.vectors
        self.a_pointer, self.b_pointer, self.counter = (f"${self.fmas + i}" for i in range(3))
        self.vector: list[_Placed] = []
        self.position: list[int] = []
        self._order_vectors()
        self.slots: list[_Placed | None] = [None] * len(self.vector)
        self._fill_slots()

    def a(self, pair: int) -> str:
        """Return the number of the register of a pair of rows of A."""
        return str(self.fmas + pair)

    def b(self, vector: int) -> str:
        """Return the number of the register of a vector of B."""
        return str(self.fmas + self.pairs + vector)

    def load_a(self, pair: int) -> str:
        """Return the load of a pair of rows, or of the last row."""
        kind = "d" if 2 * pair + 1 < self.mr else "s"
        return f"ldr {kind}{self.a(pair)}, [{self.a_pointer}, #{8 * pair}]"

    def load_b(self, vector: int) -> tuple[str, str, str]:
        """Return the loads of both halves of a vector of B, and what joins them."""
        number, half = self.b(vector), f"x{HALVES[vector]}"
        return (
            f"ldr d{number}, [{self.b_pointer}, #{16 * vector}]",
            f"ldr {half}, [{self.b_pointer}, #{16 * vector + 8}]",
            f"ins v{number}.d[1], {half}",
        )

    def advance(self) -> tuple[str, str]:
        """Return what moves both pointers to the next step."""
        return (
            f"add {self.a_pointer}, {self.a_pointer}, #{self.a_bytes}",
            f"add {self.b_pointer}, {self.b_pointer}, #{self.b_bytes}",
        )

    def _fma(self, number: int) -> str:
        vector, row = divmod(number, self.mr)
        sums = row * self.vectors + vector
        return self.by.text.format(c=sums, b=self.b(vector), a=self.a(row // 2), lane=row % 2)

    def _order_vectors(self) -> None:
        """Put each `ins` far enough behind the loads of its halves."""
        joins: dict[int, _Placed] = {}
        for vector in range(self.vectors):
            behind = (vector + 1) * self.mr + min(APART, self.mr - 3)
            joins[behind % self.fmas] = _Placed(self.load_b(vector)[2], behind >= self.fmas)
        for number in range(self.fmas):
            if number in joins:
                self.vector.append(joins[number])
            self.position.append(len(self.vector))
            self.vector.append(_Placed(self._fma(number), True))

    def _fill_slots(self) -> None:
        """Give each load the first free slot after the last use of what it overwrites.

        What finds none before the end of the step goes to the front of the next one. There the
        pointers still point at that step's own operands; they advance right behind.
        """
        # The branch back takes the last one.
        self.slots[-1] = _Placed("", True)
        wanted = []
        for vector in range(self.vectors):
            last_use = (vector + 1) * self.mr - 1
            low, high, _ = self.load_b(vector)
            wanted += [(last_use, low), (last_use, high)]
        for pair in range(self.pairs):
            last_use = self.fmas - self.mr + min(2 * pair + 1, self.mr - 1)
            wanted.append((last_use, self.load_a(pair)))
        count = len(self.slots)
        for last_use, load in sorted(wanted):
            first = self.position[last_use]
            at = next(i for i in range(first, 2 * count) if self.slots[i % count] is None)
            self.slots[at % count] = _Placed(load, at >= count)
        wrapped = [i for i, slot in enumerate(self.slots[:-1]) if slot and slot.own]
        behind = max(wrapped, default=-1) + 1
        counting = f"subs {self.counter}, {self.counter}, #1"
        for text in (*self.advance(), counting):
            at = next(i for i in range(behind, count) if self.slots[i] is None)
            self.slots[at] = _Placed(text, False)


class _Placed(NamedTuple):
    """An instruction; `own` ones belong to the step they stand in, others prepare the next."""

    text: str
    own: bool


def loop(by: MultiplyAdd, mr: int, nr: int, a_bytes: int, b_bytes: int) -> list[str]:
    """Return the lines of the loop of a block, whose panels have steps of so many bytes.

    First operands; steps that load those of the next; the last step, which loads no more. Operand
    number i of the assembly is accumulator i; behind them come the pointers to A and B, and k.
    """
    block = _Block(by, mr, nr, a_bytes, b_bytes)
    joined = [part for vector in range(block.vectors) for part in block.load_b(vector)]
    return [
        *(block.load_a(pair) for pair in range(block.pairs)),
        *joined,
        f"cmp {block.counter}, #1",
        "b.eq 2f",
        f"sub {block.counter}, {block.counter}, #1",
        "1:",
        *_step(block, more=True),
        "b.ne 1b",
        "2:",
        *_step(block, more=False),
    ]


def _step(block: _Block, more: bool) -> Iterator[str]:
    """Instructions of a step; only those of its own when there are no `more`."""
    for vector, slot in zip(block.vector, block.slots, strict=True):
        for placed in (vector, slot):
            if placed and placed.text and (placed.own or more):
                yield placed.text
