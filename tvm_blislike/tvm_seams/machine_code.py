"""A small reader of LLVM's assembly: functions, innermost loops, and what a k loop consists of.

x86 in AT&T syntax (the destination is the last operand), AArch64 in its own (it is the first).
Apple's form of AArch64, `fmla.4s v0, v1, v2[0]`, is read as `fmla v0.4s, v1.4s, v2.s[0]`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import tvm

_VERSION = "target.llvm_version_major"
_LABEL = re.compile(r"^([.\w$]+):")
_SYMBOL = re.compile(r"^([A-Za-z_][\w.$]*):", re.MULTILINE)
# Mach-O: symbols begin with an underscore, labels inside functions with an L.
_MACH_O = re.compile(r"^\s*\.section\s+__TEXT,", re.MULTILINE)
_MACH_O_SYMBOL = re.compile(r"^_([\w.$]+):", re.MULTILINE)
# Mnemonic and shape of Apple's vector instructions; conditions (`b.ls`) are no shapes.
_APPLE = re.compile(r"(\w+)\.(\d*[bhsdq])$")
_FMA = re.compile(r"v?f(n?m)(add|sub)|fml[as]|vp?dp|vpmaddwd|vpopcnt|(us|[us])(dot|mmla)|[us]adalp")
_BRANCH = re.compile(r"^(j\w+|b|b\.\w+|cbn?z|tbn?z)$")


def llvm_version() -> int:
    """Return the major version of the LLVM that TVM compiles with."""
    return int(tvm.get_global_func(_VERSION)())


@dataclass(frozen=True)
class Instruction:
    """One instruction: its mnemonic and the text of its operands."""

    name: str
    operands: str

    @property
    def is_fma(self) -> bool:
        """Whether it multiplies and adds, scalar, vector or groups of elements."""
        return _FMA.match(self.name) is not None

    @property
    def is_branch(self) -> bool:
        """Whether it may jump to a label."""
        return _BRANCH.match(self.name) is not None

    @property
    def is_call(self) -> bool:
        """Whether it calls a function."""
        return self.name.startswith("call") or self.name in ("bl", "blr")

    @property
    def uses_stack(self) -> bool:
        """Whether an address is relative to the stack pointer; %rbp and x29 may hold anything."""
        return re.search(r"\(%rsp\b|\[sp\b", self.operands) is not None

    @property
    def is_prefetch(self) -> bool:
        """Whether it asks for a cache line and no more."""
        return self.name.startswith(("prefetch", "prfm"))

    @property
    def moves_register(self) -> bool:
        """Whether it copies a vector register into another."""
        if self.name.startswith("vmov"):
            return "(" not in self.operands
        return self.name == "mov" and self.operands.startswith("v") and "[" not in self.operands

    @property
    def reads_memory(self) -> bool:
        """Whether an operand lies in memory."""
        return "(" in self.operands or "[" in _without_lanes(self.operands)

    @property
    def is_store(self) -> bool:
        """Whether it writes memory (AArch64)."""
        return self.name.startswith("st")

    @property
    def registers_loaded(self) -> int:
        """Registers or operands that it fills from memory."""
        if not self.reads_memory or self.is_prefetch or self.is_store:
            return 0
        return 2 if self.name == "ldp" else 1

    @property
    def target(self) -> str:
        """Label that a branch jumps to."""
        return self.operands.split(",")[-1].strip()

    def __str__(self) -> str:
        return f"{self.name} {self.operands}"


def instructions(text: str) -> list[Instruction | str]:
    """Return instructions and labels (as plain strings) in order, without directives."""
    found: list[Instruction | str] = []
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label:
            found.append(label.group(1))
            continue
        # Comments: "# text" in x86, "// text" and "; text" in AArch64, where "#8" is a number.
        code = re.split(r"\s#\s|//|;", line, maxsplit=1)[0].strip()
        code = code.removeprefix("{vex}").lstrip()  # An encoding, where there are two.
        # Directives, and what marks inline assembly ("#APP").
        if code and not code.startswith((".", "#")):
            name, _, operands = code.partition("\t")
            found.append(_usual(name.strip(), operands.strip()))
    return found


def _usual(name: str, operands: str) -> Instruction:
    """Return an instruction with the shape of vectors at its registers."""
    apple = _APPLE.fullmatch(name)
    if not apple:
        return Instruction(name, operands)
    mnemonic, shape = apple.groups()
    element = shape[-1]

    def shaped(register: re.Match[str]) -> str:
        return f"{register[1]}.{element if register[2] else shape}"

    return Instruction(mnemonic, re.sub(r"\b(v\d+)\b(?=(\[| *\}\[)?)", shaped, operands))


def functions(text: str) -> dict[str, str]:
    """Return the text of each function by its name."""
    symbol = _MACH_O_SYMBOL if _MACH_O.search(text) else _SYMBOL
    starts = [(found.start(), found.group(1)) for found in symbol.finditer(text)]
    ends = [start for start, _ in starts[1:]] + [len(text)]
    return {name: text[start:end] for (start, name), end in zip(starts, ends, strict=True)}


def innermost_loops(text: str) -> list[list[Instruction]]:
    """Return the bodies of loops (label .. backward branch to it) without a loop inside."""
    code = instructions(text)
    labels = {item: i for i, item in enumerate(code) if isinstance(item, str)}
    spans = {
        (labels[item.target], i)
        for i, item in enumerate(code)
        if isinstance(item, Instruction) and item.is_branch and labels.get(item.target, i) < i
    }
    inner = [s for s in spans if not any(t != s and s[0] <= t[0] and t[1] <= s[1] for t in spans)]
    return [
        [item for item in code[first : last + 1] if isinstance(item, Instruction)]
        for first, last in sorted(inner)
    ]


def k_loop(text: str) -> list[Instruction]:
    """Return the one innermost loop that holds multiply-adds.

    Raises
    ------
    ValueError
        When there is none, or more than one.
    """
    loops = [loop for loop in innermost_loops(text) if any(i.is_fma for i in loop)]
    if len(loops) != 1:
        raise ValueError(f"{len(loops)} innermost loops with multiply-adds, expected one")
    return loops[0]


@dataclass(frozen=True)
class LoopCounts:
    """What the instructions of a loop are.

    Parameters
    ----------
    instructions, fmas : int
        All of them, and the multiply-adds among them.
    loads : int
        Vector registers (or elements) filled from memory; a pair load counts twice.
    spills : int
        Accesses to the stack.
    moves : int
        Vector registers copied into others.
    """

    instructions: int
    fmas: int
    loads: int
    spills: int
    moves: int


def count(loop: list[Instruction]) -> LoopCounts:
    """Count what a loop consists of."""
    return LoopCounts(
        len(loop),
        sum(i.is_fma for i in loop),
        sum(i.registers_loaded for i in loop),
        sum(i.uses_stack for i in loop),
        sum(i.moves_register for i in loop),
    )


def _without_lanes(operands: str) -> str:
    """Drop the lane of `v0.s[1]`, which is no address."""
    return re.sub(r"\.\w+\[\d+\]", "", operands)
