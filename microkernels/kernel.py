"""One register block: its shape, its name, its register budget and its loads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm_blislike.hardware import Isa
from tvm_blislike.microkernels.k_loops import KLoop
from tvm_blislike.microkernels.masks import closing_rows
from tvm_blislike.microkernels.products import FMA, Product
from tvm_blislike.microkernels.tile_loops import TileLoop, fits
from tvm_blislike.model.types import FLOAT32, Types, kernel_name

# NEON, `rows` view: vectors of A for four k steps stay in registers beside the block and a row of
# B. With more than this LLVM 22 spills on some core (30: none; 31: 7x12 on Cortex-A53).
_MOST_WITH_VECTORS_OF_A = 30
# Registers that a block leaves free where LLVM is sure not to spill: on AVX-512, LLVM 22 spills
# blocks that leave one (14x32: up to 32 accesses in 112 multiply-adds) and none that leave two.
_SPARE_REGISTERS = 2


@dataclass(frozen=True)
class Microkernel:
    """One register block.

    Parameters
    ----------
    isa : Isa
        Instruction set.
    mr, nr : int
        Rows and columns of the block, in elements.
    types : Types
        Data types of A, B and C, where the sums are.
    features : tuple of str
        Extensions that a core must have (`Isa.features`).
    product : Product
        The multiply-add of one register of C, and the steps of k that it takes.
    loop : KLoop or None
        K loops that are functions of LLVM, for the uses that they serve.
    tiles : TileLoop or None
        The block is in tile registers, of a unit with k loops of its own.
    superseded_by : tuple of str
        Extensions with better micro-kernels of the same types: cores that have one need not look.
    needs : tuple of str
        LLVM's names of what all cores of the instruction set have, but virtual machines may lack
        (`Isa.optional`).
    """

    isa: Isa
    mr: int
    nr: int
    types: Types = FLOAT32
    features: tuple[str, ...] = ()
    product: Product = FMA
    loop: KLoop | None = None
    tiles: TileLoop | None = None
    superseded_by: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Derived name, such as `avx512_f32_14x32`."""
        return kernel_name(self.isa.name, self.mr, self.nr, self.types, self.ks)

    @property
    def ks(self) -> int:
        """Steps of k that a multiply-add takes."""
        return self.product.ks

    @cached_property
    def lanes(self) -> int:
        """Elements of C in one vector register; divides `nr`."""
        return self.isa.vector_bytes // self.types.acc_bytes

    @property
    def operand_lanes(self) -> int:
        """Groups of A in one vector register; of a single element each where ks is 1."""
        return self.isa.vector_bytes // (self.types.a_bytes * self.ks)

    @property
    def copied_lanes(self) -> int:
        """Elements of A in one vector register, as copies of it take them."""
        return self.isa.vector_bytes // self.types.a_bytes

    @property
    def closing_rows(self) -> int:
        """Rows of a panel of B behind the groups of a call (`masks`)."""
        return closing_rows(self.types)

    @property
    def takes_groups(self) -> bool:
        """Whether a step of k is several: elements side by side, or the signs of a word."""
        return self.ks > 1 or self.types.is_bits

    @property
    def group_type(self) -> str:
        """Data type of a group of A as the product takes it."""
        return self.product.group_type or self.types.a

    @property
    def vectors(self) -> int:
        """Vector registers in one row of the block."""
        return self.nr // self.lanes

    @property
    def registers(self) -> int:
        """Vector registers that the k loop keeps alive: accumulators, one row of B, and A.

        Of a row of B that does not fit only the vectors that pass through are counted, of a block
        in tile registers nothing.
        """
        if self.tiles is not None:
            return 0
        return self.isa.vector_registers if self.panels_only else self._block_and_operands

    @property
    def is_tight(self) -> bool:
        """Whether the block leaves fewer registers than LLVM may want for loads ahead."""
        return self.registers + _SPARE_REGISTERS > self.isa.vector_registers

    @property
    def folds_a(self) -> bool:
        """Whether multiply-adds may read elements of A from memory themselves."""
        return self.isa.folds_broadcast and self.product.folds_a

    @property
    def panels_only(self) -> bool:
        """Whether a row of B does not fit: only panels will do, with a loop of their own."""
        return self.loop is not None and self._block_and_operands > self.isa.vector_registers

    @property
    def own_loop(self) -> bool:
        """Whether no k loop is LLVM's, which may spill."""
        return self.panels_only or self.tiles is not None or self.product.rows > 1

    @property
    def _block_and_operands(self) -> int:
        if self.isa.lane_operand:
            a = -(-self.mr // self.operand_lanes)
        else:
            # Of a row of one vector the multiply-add may do the broadcast: no register for A.
            a = 0 if self.folds_a and self.vectors == 1 else 1
        return self.mr * self.vectors + self.vectors * self.product.b_vectors + a

    @property
    def loads_a_vectors(self) -> bool:
        """Whether the `rows` view loads A as vectors along k, not one element at a time."""
        return self.isa.lane_operand and self.registers_in_place <= _MOST_WITH_VECTORS_OF_A

    @property
    def registers_in_place(self) -> int:
        """Vector registers of a k loop with a vector along k of every row of A (`rows` view)."""
        return self.mr * (self.vectors + 1) + self.vectors

    def takes(self, image_rows: int) -> bool:
        """Whether the rows of a block may be those of several image rows, of equal length."""
        return self.tiles is None or fits(self.mr, self.nr, image_rows)

    def a_loads(self, rows: int, view: str = "rows", in_order: bool = False) -> float:
        """Return the loads of A in one k step of a block of `rows` rows that take time.

        Beside the multiply-adds of a loop ordered for such a core none does.
        """
        if self.product.rows > 1:
            return rows if view != "panel" else math.ceil(rows / self.product.rows)
        hidden = self.loop is not None and self.loop.hides_loads(self.mr, self.nr)
        if hidden and in_order and view in self.loop.views and rows == self.mr:
            return 0.0
        if view == "panel" and self.isa.lane_operand:
            return float(sum(1 for _ in vector_loads(rows, self.operand_lanes)))
        return rows / self.operand_lanes if self.loads_a_vectors else rows

    def loads_per_fma(self, view: str = "rows") -> float:
        """Return the elements and vectors loaded in one k step over its FMAs."""
        loads = self.a_loads(self.mr, view) + self.vectors * self.product.b_vectors
        return loads / (self.mr * self.vectors) + self.product.folded_b


def within_budget(kernels: Sequence[Microkernel]) -> tuple[Microkernel, ...]:
    """Keep the kernels whose accumulators and operands fit into the vector registers."""
    return tuple(k for k in kernels if k.registers <= k.isa.vector_registers)


def vector_loads(total: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Yield the vector loads of `total` elements: (start, width), widths powers of two."""
    start = 0
    while start < total:
        width = lanes
        while width > total - start:
            width //= 2
        yield start, width
        start += width
