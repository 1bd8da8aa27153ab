"""NEON k loops on packed panels as assembly, where LLVM's order would not do.

A function of LLVM updates a whole block of C: its accumulators pass through the registers of one
piece of inline assembly, and no spill or move can come in between. There are two kinds of loops:

- in order (`neon_in_order`), for cores that wait at the first operand that is not there;
- streamed, for blocks that need every register, such as 4x28: 28 accumulators, one vector of A
  for four rows, and three registers through which the vectors of B pass. LLVM loads all of B first
  and spills (5 to 39 stack accesses in a step, depending on the core).

Inlined into a kernel, a function leaves nothing but its loop.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from tvm_blislike.microkernels import neon_in_order
from tvm_blislike.microkernels.neon_in_order import HALVES

REGISTERS = 32
# Registers that vectors of B pass through, at least: the next one is loaded meanwhile.
_LEAST_PASSING = 2
_NAME = re.compile(r"blislike_neon_f32_(\d+)x(\d+)_(in_order|streamed)")


def streams(mr: int, nr: int) -> bool:
    """Whether a block fits with vectors of B passing through few registers.

    A remainder of three rows has no load of its own.
    """
    return mr % 4 != 3 and mr * nr // 4 + -(-mr // 4) + min(nr // 4, _LEAST_PASSING) <= REGISTERS


def symbol(mr: int, nr: int, in_order: bool) -> str:
    """Return the name of the function of a block."""
    return f"blislike_neon_f32_{mr}x{nr}_{'in_order' if in_order else 'streamed'}"


def source_of(name: str) -> str:
    """Return the LLVM function called `name`, empty when it is none of this file."""
    found = _NAME.fullmatch(name)
    return _source(int(found[1]), int(found[2]), found[3] == "in_order") if found else ""


@functools.cache
def _source(mr: int, nr: int, in_order: bool) -> str:
    """LLVM function: void (C in registers, A panel, B panel, steps of k).

    C is (mr, nr), contiguous; A (k, mr) and B (k, nr) are packed panels; k >= 1. Nothing beyond
    the panels is read.
    """
    count, name = mr * nr // 4, symbol(mr, nr, in_order)
    lines = [
        f"define linkonce_odr void @{name}(ptr %c, ptr %a, ptr %b, i64 %k) alwaysinline nounwind {{"
    ]
    for i in range(count):
        lines.append(f"  %p{i} = getelementptr i8, ptr %c, i64 {16 * i}")
        lines.append(f"  %c{i} = load <4 x float>, ptr %p{i}, align 16")
    loop = neon_in_order.loop(mr, nr) if in_order else list(_streamed(mr, nr))
    lines.append(_call(count, loop))
    for i in range(count):
        lines.append(f"  %r{i} = extractvalue {_result(count)} %r, {i}")
        lines.append(f"  store <4 x float> %r{i}, ptr %p{i}, align 16")
    return "\n".join([*lines, "  ret void", "}", ""])


def _result(count: int) -> str:
    return "{ " + ", ".join(["<4 x float>"] * count + ["ptr", "ptr", "i64"]) + " }"


def _call(count: int, loop: list[str]) -> str:
    """The call of the inline assembly, accumulators in v0 and up, each in and out."""
    outputs = [f"={{v{i}}}" for i in range(count)] + ["=&r"] * 3
    ties = [str(i) for i in range(count + 3)]
    clobbers = [f"~{{v{i}}}" for i in range(count, REGISTERS)]
    clobbers += [f"~{{x{x}}}" for x in HALVES] + ["~{cc}", "~{memory}"]
    values = [f"<4 x float> %c{i}" for i in range(count)] + ["ptr %a", "ptr %b", "i64 %k"]
    text = "\\0A\\09".join(loop)
    constraints = ",".join([*outputs, *ties, *clobbers])
    return (
        f'  %r = call {_result(count)} asm sideeffect "{text}", "{constraints}"'
        f"({', '.join(values)})"
    )


def _streamed(mr: int, nr: int) -> Iterator[str]:
    """Steps of k for a core that reorders: each vector of B is loaded, used and forgotten."""
    vectors, count = nr // 4, mr * nr // 4
    first = count + -(-mr // 4)
    passing = range(first, min(REGISTERS, first + vectors))
    a_pointer, b_pointer, counter = (f"${count + i}" for i in range(3))
    yield "1:"
    for register, start in zip(range(count, first), range(0, mr, 4), strict=True):
        kind = {1: "s", 2: "d"}.get(mr - start, "q")
        yield f"ldr {kind}{register}, [{a_pointer}, #{4 * start}]"
    loads = [f"ldr q{passing[v % len(passing)]}, [{b_pointer}, #{16 * v}]" for v in range(vectors)]
    yield from loads[: len(passing)]
    for vector in range(vectors):
        number = passing[vector % len(passing)]
        for row in range(mr):
            element = f"v{count + row // 4}.s[{row % 4}]"
            yield f"fmla v{row * vectors + vector}.4s, v{number}.4s, {element}"
        if vector + len(passing) < vectors:
            yield loads[vector + len(passing)]
    yield f"subs {counter}, {counter}, #1"
    yield f"add {a_pointer}, {a_pointer}, #{4 * mr}"
    yield f"add {b_pointer}, {b_pointer}, #{16 * vectors}"
    yield "b.ne 1b"
