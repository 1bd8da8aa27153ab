"""Rows of 8-bit integers by weights of 4 bits for AVX-512 with VNNI: bound by memory.

    y[i, j] = sum over blocks b of sa[i, b] * s[b, j] * dot[i, b, j]
    dot[i, b, j] = sum over k of the block of a[i, k] * (q[k, j] - z[b, j])

Weights lie in panels of 16 columns, in them block by block. A vector of 64 bytes has eight steps of
k: the low halves of its bytes the first four, as `vpdpbusd` takes them, the high halves the others.
So a load, a shift and two masks serve two multiply-adds of 16 columns. Asking for weights ahead
gained nothing (Sapphire Rapids, 22 to 24 GB/s). The sum of a block starts with what the zero points
take from it: they are known before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.hardware import Core
from tvm_blislike.microkernels.avx512_u8s8 import KERNELS
from tvm_blislike.tvm_seams.attributes import NO_ALIAS

# Columns of a panel: sums of a vector.
COLUMNS = 16
# The zero point where blocks have none of their own.
MIDDLE = 8
# Steps of k of a vector, and of a word of the rows.
STEPS, _WORD = 8, 4
_LINE = 64
_VNNI = "llvm.x86.avx512.vpdpbusd.512"
_LOW_HALVES = 0x0F0F0F0F


def is_of(core: Core) -> bool:
    """Whether a core has the instruction, which the micro-kernels of 8 bits use, too."""
    return any(k.isa is core.isa and {*k.features} <= {*core.features} for k in KERNELS)


def packed(steps: np.ndarray, block: int) -> np.ndarray:
    """Pack weights of 4 bits.

    Parameters
    ----------
    steps : numpy.ndarray
        uint8 (k, n) below 16; k whole blocks, n whole panels.
    block : int
        Steps of k of a block.

    Returns
    -------
    numpy.ndarray
        uint8 (panels, blocks, 64 * vectors of a block).
    """
    k, n = steps.shape
    # (vector, half, step, panel, column) -> (panel, vector, column, step)
    parts = steps.reshape(k // STEPS, 2, _WORD, n // COLUMNS, COLUMNS).transpose(1, 3, 0, 4, 2)
    low, high = parts
    return (low | high << 4).reshape(n // COLUMNS, k // block, -1)


def by_panels(values: np.ndarray) -> np.ndarray:
    """Return what belongs to blocks and columns, (blocks, n), as (panels, blocks, columns)."""
    blocks, n = values.shape
    return np.ascontiguousarray(values.reshape(blocks, n // COLUMNS, COLUMNS).transpose(1, 0, 2))


def product(m: int, n: int, k: int, block: int, zeros: bool) -> tirx.PrimFunc:
    """Return the function (a, scales and sums of a, weights, scales, zero points, y), scheduled.

    Parameters
    ----------
    m, n, k : int
        Rows, columns (whole panels), steps (whole blocks).
    block : int
        Steps of a block: whole vectors.
    zeros : bool
        Whether blocks and columns have zero points of their own; otherwise it is 8 for all, and
        the function has no such parameter.
    """
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main", **NO_ALIAS})
            operands = _parameters(m, n, k, block, zeros)
            with T.sblock("root"):
                T.reads()
                T.writes()
                with T.parallel(0, n // COLUMNS) as panel:
                    _panel(operands, panel)
    return builder.get()


@dataclass(frozen=True)
class _Operands:
    """The parameters of the function, of which zeros may be missing."""

    a: Any
    scales_a: Any
    sums_a: Any
    weights: Any
    scales: Any
    zeros: Any
    y: Any

    @property
    def rows(self) -> int:
        """Rows of a."""
        return int(self.a.shape[0])

    @property
    def vectors(self) -> int:
        """Vectors of weights of a block."""
        return int(self.weights.shape[2]) // _LINE


def _parameters(m: int, n: int, k: int, block: int, zeros: bool) -> _Operands:
    panels, blocks = n // COLUMNS, k // block
    shapes = {
        "a": ((m, blocks, block), "int8"),
        "scales_a": ((m, blocks), "float32"),
        "sums_a": ((m, blocks), "int32"),
        "weights": ((panels, blocks, _LINE * block // STEPS), "uint8"),
        "scales": ((panels, blocks, COLUMNS), "float32"),
        "zeros": ((panels, blocks, COLUMNS), "uint8"),
        "y": ((m, n), "float32"),
    }
    if not zeros:
        del shapes["zeros"]
    buffers = {name: T.arg(name, T.buffer(*of)) for name, of in shapes.items()}
    return _Operands(**{"zeros": None, **buffers})


def _panel(o: _Operands, panel: Any) -> None:
    """Emit the sums of all rows and of the columns of a panel."""
    lanes = T.ramp(0, 1, COLUMNS)
    sums = [T.alloc_buffer((COLUMNS,), "float32") for _ in range(o.rows)]
    for each in sums:
        T.buffer_store(each, T.broadcast(T.float32(0), COLUMNS), [lanes])
    with T.serial(0, int(o.scales.shape[1])) as block:
        _block(o, panel, block, sums)
    for row, each in enumerate(sums):
        at = [row, T.ramp(panel * COLUMNS, 1, COLUMNS)]
        T.buffer_store(o.y, tirx.BufferLoad(each, [lanes]), at)


def _block(o: _Operands, panel: Any, block: Any, sums: list[Any]) -> None:
    """Emit what a block adds to the sums of a panel.

    Each half has sums of its own: multiply-adds of one chain wait for each other.
    """
    lanes, nothing = T.ramp(0, 1, COLUMNS), T.broadcast(T.int32(0), COLUMNS)
    chains = [[_starts(o, row, panel, block) for row in range(o.rows)], [nothing] * o.rows]
    for vector in range(o.vectors):
        loaded = tirx.BufferLoad(o.weights, [panel, block, T.ramp(_LINE * vector, 1, _LINE)])
        for half, part in enumerate(_halves(loaded)):
            words = [_word(o.a, r, block, vector * STEPS + half * _WORD) for r in range(o.rows)]
            chains[half] = [_dot(c, part, w) for c, w in zip(chains[half], words, strict=True)]
    scale = tirx.BufferLoad(o.scales, [panel, block, lanes])
    for row, (total, low, high) in enumerate(zip(sums, *chains, strict=True)):
        of_row = T.broadcast(tirx.BufferLoad(o.scales_a, [row, block]), COLUMNS)
        term = T.Cast(f"float32x{COLUMNS}", low + high) * (scale * of_row)
        T.buffer_store(total, tirx.BufferLoad(total, [lanes]) + term, [lanes])


def _starts(o: _Operands, row: int, panel: Any, block: Any) -> Any:
    """Return what the zero points of a block take from its sums."""
    total = tirx.BufferLoad(o.sums_a, [row, block])
    if o.zeros is None:
        return T.broadcast(total * T.int32(-MIDDLE), COLUMNS)
    places = tirx.BufferLoad(o.zeros, [panel, block, T.ramp(0, 1, COLUMNS)])
    return T.Cast(f"int32x{COLUMNS}", places) * T.broadcast(T.int32(0) - total, COLUMNS)


def _halves(loaded: Any) -> tuple[Any, Any]:
    """Return the low and the high halves of 64 bytes, each as a vector of words."""
    words = T.reinterpret(f"int32x{COLUMNS}", loaded)
    mask = T.broadcast(T.int32(_LOW_HALVES), COLUMNS)
    return words & mask, (words >> T.broadcast(T.int32(4), COLUMNS)) & mask


def _word(a: Any, row: int, block: Any, first: int) -> Any:
    return T.reinterpret("int32", tirx.BufferLoad(a, [row, block, T.ramp(first, 1, _WORD)]))


def _dot(sums: Any, weights: Any, word: Any) -> Any:
    unsigned = T.reinterpret("uint8x64", weights)
    signed = T.reinterpret("int8x64", T.broadcast(word, COLUMNS))
    return T.call_llvm_pure_intrin(f"int32x{COLUMNS}", _VNNI, sums, unsigned, signed)
