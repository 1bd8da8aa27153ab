"""What the library knows of an instruction set: facts as data, one instance in a file of its own.

Code that depends on one of these facts asks for the fact, never for a name: the next instruction
set that has it (SVE, AVX10) then needs its own file and kernels, and no other line.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """An extension that some cores of an instruction set have and micro-kernels may require.

    Parameters
    ----------
    name : str
        As cores and micro-kernels call it, the same for the same thing everywhere: "fp16".
    llvm : str
        As LLVM calls it.
    flag : str
        As the operating system announces it, in lower case without underscores.
    """

    name: str
    llvm: str
    flag: str


@dataclass(frozen=True)
class Isa:
    """One instruction set of vectors.

    Parameters
    ----------
    name : str
        As micro-kernels and the TOML of a core call it.
    vector_registers : int
        How many there are.
    vector_bytes : int
        Size of one.
    register : str
        Name of register 0 without its number, as LLVM's clobber lists take it. A clobbered part of
        a wider register clobbers all of it.
    lane_operand : bool
        A multiply-add takes one element of a vector register as a factor, so A arrives by loads
        of whole vectors; otherwise each element of A is a broadcast from memory.
    folds_broadcast : bool
        A multiply-add does that broadcast itself, without a register, if it is the only one to
        use it.
    memory_operand : bool
        Arithmetic reads a vector from memory without a register of its own.
    signed_dot : bool
        Dot products of 8 bits take two signed factors; otherwise the first one is unsigned.
    narrows_pairs : bool
        Narrowing joins vectors: results of fewer bits fill registers, as cheap to store as others.
    packs : str
        LLVM's name of a pack that saturates in lanes of 128 bits, with {} for the instruction's:
        packssdw, packsswb, packuswb; "": it has none.
    max_keeps_nan : bool
        The larger or smaller of a number and what is none is what is none, whichever comes first.
    shifts_per_cycle : float or None
        Pairs of vectors that are shifted by elements in a cycle; None: as many as multiply-adds.
    flags : frozenset of str
        What the operating system announces on machines that have it.
    mcpu : str
        Processor that LLVM compiles for on the present machine; "": that of the described core.
    mattr : tuple of str
        LLVM features that are always asked for.
    optional : tuple of (str, str)
        LLVM features that `mcpu` implies and a virtual machine may lack: (LLVM's name, flag).
    features : tuple of Feature
        Extensions beyond.
    states_absence : bool
        LLVM is told which features are missing: the described core's `mcpu` may imply them.
    pipelines : str
        Processor whose description of pipelines llvm-mca uses for cores that have none.
    """

    name: str
    vector_registers: int
    vector_bytes: int
    register: str
    lane_operand: bool = False
    folds_broadcast: bool = False
    memory_operand: bool = False
    signed_dot: bool = False
    narrows_pairs: bool = False
    packs: str = ""
    max_keeps_nan: bool = False
    shifts_per_cycle: float | None = None
    flags: frozenset[str] = frozenset()
    mcpu: str = ""
    mattr: tuple[str, ...] = ()
    optional: tuple[tuple[str, str], ...] = ()
    features: tuple[Feature, ...] = ()
    states_absence: bool = False
    pipelines: str = ""

    @property
    def clobbers(self) -> str:
        """Every vector register as one of LLVM's lists of what a piece of assembly overwrites."""
        return ",".join(f"~{{{self.register}{i}}}" for i in range(self.vector_registers))

    def found(self, flags: frozenset[str]) -> tuple[str, ...]:
        """Return the names of the features that the operating system announces."""
        return tuple(feature.name for feature in self.features if feature.flag in flags)

    def target(self, flags: frozenset[str]) -> tuple[str, ...]:
        """Return LLVM's features of a machine: a virtual one's masked features stay unused."""
        lacking = tuple(f"-{llvm}" for llvm, flag in self.optional if flag not in flags)
        signs = {True: "+", False: "-" if self.states_absence else ""}
        extensions = ((signs[f.flag in flags], f.llvm) for f in self.features)
        return (*self.mattr, *lacking, *(sign + llvm for sign, llvm in extensions if sign))
