"""NEON k loops on packed panels as assembly, where LLVM's order would not do.

A function of LLVM updates a whole block of C: its accumulators pass through the registers of one
piece of inline assembly, and no spill or move can come in between. There are two kinds of loops:

- in order (`neon_in_order`), for cores that wait at the first operand that is not there;
- streamed, for blocks that need every register, such as 4x28: 28 accumulators, one vector of A
  for four rows, and three registers through which the vectors of B pass. LLVM loads all of B first
  and spills (5 to 39 stack accesses in a step, depending on the core).

Words are fp32, or four elements of 8 bits which a dot product takes at once (`MultiplyAdd`). A
function serves a whole block, or one that is cut, whose panels are as wide as those of the whole.
Inlined into a kernel, it leaves nothing but its loop.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from tvm_blislike.microkernels import neon_in_order
from tvm_blislike.microkernels.k_loops import Block, KLoop, header
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.neon_in_order import HALVES, MultiplyAdd

REGISTERS = 32
# Registers that vectors of B pass through, at least: the next one is loaded meanwhile.
_LEAST_PASSING = 2
_ROWS_WITHOUT_LOAD = 3
# With more registers in use LLVM 22 spills on Cortex-A53 and A55 (4x24), and everywhere with 36.
_MOST_OF_A_LOOP_BY_LLVM = 30
# The same on cores that issue in order, for which LLVM spreads loads and so runs out of registers
# in cut blocks (3x24 cut to 3x4).
_MOST_VECTORS_IN_ORDER = 2


def streams(mr: int, nr: int) -> bool:
    """Whether a block fits with vectors of B passing through few registers."""
    return mr * nr // 4 + _registers_of_a(mr) + min(nr // 4, _LEAST_PASSING) <= REGISTERS


def _serves(kernel: Microkernel, in_order: bool) -> bool:
    """Whether LLVM's order of a kernel's loop is too slow, or spills."""
    if in_order and neon_in_order.fits(kernel.mr, kernel.nr):
        return True
    most = _MOST_VECTORS_IN_ORDER if in_order else kernel.vectors
    return kernel.registers > _MOST_OF_A_LOOP_BY_LLVM or kernel.vectors > most


def panel_loop(name: str, by: MultiplyAdd) -> KLoop:
    """Return the loops of a multiply-add by element."""
    source = functools.cache(functools.partial(_source, by))
    return KLoop(name, _serves, source, hides_loads=neon_in_order.fits)


def _source(by: MultiplyAdd, symbol: str, block: Block) -> str:
    """Return the function of a block; A (k, mr) and B (k, nr) are packed panels of words."""
    rows, columns = block.rows, block.columns
    places = [(row, 16 * v) for row in range(rows) for v in range(columns // 4)]
    lines = [header(symbol, rows)]
    for i, (row, offset) in enumerate(places):
        lines.append(f"  %p{i} = getelementptr i8, ptr %row{row}, i64 {offset}")
        lines.append(f"  %c{i} = load {by.sums}, ptr %p{i}, align 16")
    is_ordered = block.in_order and neon_in_order.fits(rows, columns)
    order = neon_in_order.loop if is_ordered else _streamed
    text = list(order(by, rows, columns, 4 * block.mr, 4 * block.nr))
    lines.append(_call(by, len(places), text))
    for i in range(len(places)):
        lines.append(f"  %r{i} = extractvalue {_result(by, len(places))} %r, {i}")
        lines.append(f"  store {by.sums} %r{i}, ptr %p{i}, align 16")
    return "\n".join([*lines, "  ret void", "}", ""])


def _result(by: MultiplyAdd, count: int) -> str:
    return "{ " + ", ".join([by.sums] * count + ["ptr", "ptr", "i64"]) + " }"


def _call(by: MultiplyAdd, count: int, loop: list[str]) -> str:
    """The call of the inline assembly, accumulators in v0 and up, each in and out."""
    outputs = [f"={{v{i}}}" for i in range(count)] + ["=&r"] * 3
    ties = [str(i) for i in range(count + 3)]
    clobbers = [f"~{{v{i}}}" for i in range(count, REGISTERS)]
    clobbers += [f"~{{x{x}}}" for x in HALVES] + ["~{cc}", "~{memory}"]
    values = [f"{by.sums} %c{i}" for i in range(count)] + ["ptr %a", "ptr %b", "i64 %k"]
    text = "\\0A\\09".join(loop)
    constraints = ",".join([*outputs, *ties, *clobbers])
    return (
        f'  %r = call {_result(by, count)} asm sideeffect "{text}", "{constraints}"'
        f"({', '.join(values)})"
    )


def _registers_of_a(rows: int) -> int:
    """Four rows share a register; three that are left come as two and one."""
    return -(-rows // 4) + (rows % 4 == _ROWS_WITHOUT_LOAD)


def _streamed(
    by: MultiplyAdd, rows: int, columns: int, a_bytes: int, b_bytes: int
) -> Iterator[str]:
    """Steps of k for a core that reorders: each vector of B is loaded, used and forgotten."""
    vectors, count = columns // 4, rows * columns // 4
    first = count + _registers_of_a(rows)
    passing = range(first, min(REGISTERS, first + vectors))
    a_pointer, b_pointer, counter = (f"${count + i}" for i in range(3))
    elements, loads_a = _load_a(rows, count, a_pointer)
    loads = [f"ldr q{passing[v % len(passing)]}, [{b_pointer}, #{16 * v}]" for v in range(vectors)]
    yield "1:"
    yield from loads_a
    yield from loads[: len(passing)]
    for vector in range(vectors):
        number = passing[vector % len(passing)]
        for row, (register, lane) in enumerate(elements):
            yield by.text.format(c=row * vectors + vector, b=number, a=register, lane=lane)
        if vector + len(passing) < vectors:
            yield loads[vector + len(passing)]
    yield f"subs {counter}, {counter}, #1"
    yield f"add {a_pointer}, {a_pointer}, #{a_bytes}"
    yield f"add {b_pointer}, {b_pointer}, #{b_bytes}"
    yield "b.ne 1b"


def _load_a(rows: int, register: int, pointer: str) -> tuple[list[tuple[int, int]], list[str]]:
    """Return where each row is, (register, lane), and the loads into `register` and behind it."""
    elements: list[tuple[int, int]] = []
    loads: list[str] = []
    while len(elements) < rows:
        kind, width = next(
            (k, w) for k, w in (("q", 4), ("d", 2), ("s", 1)) if w <= rows - len(elements)
        )
        loads.append(f"ldr {kind}{register}, [{pointer}, #{4 * len(elements)}]")
        elements += [(register, lane) for lane in range(width)]
        register += 1
    return elements, loads
