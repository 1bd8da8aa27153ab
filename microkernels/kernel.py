"""One register block: its shape, its name, its register budget and its loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm_blislike.microkernels import neon_in_order, neon_panels
from tvm_blislike.model.types import FLOAT32, Types

# NEON, `rows` view: vectors of A for four k steps stay in registers beside the block and a row of
# B. With more than this LLVM 22 spills on some core (30: none; 31: 7x12 on Cortex-A53).
_MOST_WITH_VECTORS_OF_A = 30


@dataclass(frozen=True)
class Microkernel:
    """One register block.

    Parameters
    ----------
    isa : str
        "avx512", "avx2" or "neon".
    mr, nr : int
        Rows and columns of the block, in elements.
    lanes : int
        Elements of C in one vector register; divides `nr`.
    types : Types
        Data types of A, B and C, where the sums are.
    a_by_lane : bool
        A arrives by vector loads and is multiplied by element (NEON `fmla v, v, v.s[i]`);
        otherwise each element is a broadcast from memory (x86).
    """

    isa: str
    mr: int
    nr: int
    lanes: int
    types: Types = FLOAT32
    a_by_lane: bool = False

    @property
    def name(self) -> str:
        """Derived name, such as `avx512_f32_14x32`."""
        return kernel_name(self.isa, self.mr, self.nr, self.types)

    @property
    def operand_lanes(self) -> int:
        """Elements of A in one vector register."""
        return self.lanes * self.types.acc_bytes // self.types.a_bytes

    @property
    def vectors(self) -> int:
        """Vector registers in one row of the block."""
        return self.nr // self.lanes

    @property
    def registers(self) -> int:
        """Vector registers that the k loop keeps alive: accumulators, one row of B, and A.

        Of a row of B that does not fit only the vectors that pass through are counted.
        """
        return neon_panels.REGISTERS if self.panels_only else self._block_and_operands

    @property
    def panels_only(self) -> bool:
        """Whether a row of B does not fit, so that only panels will do (`neon_panels`)."""
        return self.a_by_lane and self._block_and_operands > neon_panels.REGISTERS

    @property
    def _block_and_operands(self) -> int:
        if self.a_by_lane:
            a = -(-self.mr // self.operand_lanes)
        else:
            # A one-vector row of AVX-512 folds the broadcast into the FMA: no register for A.
            a = 0 if self.isa == "avx512" and self.vectors == 1 else 1
        return self.mr * self.vectors + self.vectors + a

    @property
    def has_ordered_loop(self) -> bool:
        """Whether its loop on panels is ordered for cores that issue in order (`neon_in_order`)."""
        single = self.isa == "neon" and self.types == FLOAT32
        return single and neon_in_order.fits(self.mr, self.nr)

    @property
    def loads_a_vectors(self) -> bool:
        """Whether the `rows` view loads A as vectors along k, not one element at a time."""
        return self.a_by_lane and self.registers_in_place <= _MOST_WITH_VECTORS_OF_A

    @property
    def registers_in_place(self) -> int:
        """Vector registers of a k loop with a vector along k of every row of A (`rows` view)."""
        return self.mr * (self.vectors + 1) + self.vectors

    def a_loads(self, rows: int, view: str = "rows", in_order: bool = False) -> float:
        """Return the loads of A in one k step of a block of `rows` rows that take time.

        Beside the multiply-adds of a loop ordered for such a core (`neon_in_order`) none does.
        """
        if in_order and view == "panel" and self.has_ordered_loop and rows == self.mr:
            return 0.0
        if view == "panel" and self.a_by_lane:
            return float(sum(1 for _ in vector_loads(rows, self.operand_lanes)))
        return rows / self.operand_lanes if self.loads_a_vectors else rows

    def loads_per_fma(self, view: str = "rows") -> float:
        """Return the elements and vectors loaded in one k step over its FMAs."""
        loads = self.a_loads(self.mr, view) + self.vectors
        return loads / (self.mr * self.vectors)


def kernel_name(isa: str, mr: int, nr: int, types: Types) -> str:
    """Return the name of the micro-kernel with that shape."""
    return f"{isa}_{types.short}_{mr}x{nr}"


def within_budget(kernels: Sequence[Microkernel], registers: int) -> tuple[Microkernel, ...]:
    """Keep the kernels whose accumulators and operands fit into `registers` vector registers."""
    return tuple(k for k in kernels if k.registers <= registers)


def vector_loads(total: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Yield the vector loads of `total` elements: (start, width), widths powers of two."""
    start = 0
    while start < total:
        width = lanes
        while width > total - start:
            width //= 2
        yield start, width
        start += width
