"""Tables of 256 bytes: one byte of the table for each byte of data.

Instruction sets whose permutations reach a whole table have a file (`avx512_lookup`,
`neon_lookup`); everywhere else a byte is a load of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm_blislike.hardware import Isa

ENTRIES = 256


@dataclass(frozen=True)
class Lookup:
    """How an instruction set looks up a vector of bytes.

    Parameters
    ----------
    isa : Isa
        Instruction set.
    lanes : int
        Bytes of a vector; divides the entries of a table.
    looked_up : callable
        (vectors of the table, vector of indices): the vector of what stands there, all uint8.
    features : tuple of str
        Extensions that a core must have (`Isa.features`).
    """

    isa: Isa
    lanes: int
    looked_up: Callable[[list[Any], Any], Any]
    features: tuple[str, ...] = ()
