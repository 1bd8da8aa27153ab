"""The kernel that packs a bit of the codes of 32 neighbours into a word: a byte each, side by side.

Loads and stores are most of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.model.marks import REGISTER_BYTES
from tvm_blislike.model.types import BITS
from tvm_blislike.operators.operator import WORD
from tvm_blislike.schedules.lowering.llvm_functions import BITS_OF_BYTES
from tvm_blislike.tvm_seams.attributes import NO_ALIAS

# Bytes from which on threads divide the rows.
_MANY = 1 << 17
_ROWS = 16


def packed_last(rows: int, channels: int, planes: int) -> tirx.PrimFunc:
    """Return the scheduled function (codes, words).

    Parameters
    ----------
    rows, channels : int
        Shape of the codes, uint8.
    planes : int
        Bits of a code: words are (rows, planes * words of the channels), bits beyond them 0.
    """
    each = -(-channels // WORD)
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main", **NO_ALIAS})
            codes = T.match_buffer(T.arg("codes", T.handle()), (rows, channels), "uint8")
            words = T.match_buffer(T.arg("words", T.handle()), (rows, planes * each), BITS.a)
            with T.sblock("root"):
                T.reads()
                T.writes()
                many = rows * channels >= _MANY and rows % _ROWS == 0
                loop = T.parallel if many else T.serial
                with loop(0, rows // _ROWS if many else rows) as outer:
                    with T.serial(0, _ROWS if many else 1) as inner:
                        _row(codes, words, outer * _ROWS + inner if many else outer, planes)
    return builder.get().with_attr(REGISTER_BYTES, 0)


def _row(codes: Any, words: Any, row: Any, planes: int) -> None:
    whole, rest = divmod(int(codes.shape[1]), WORD)
    each = whole + bool(rest)
    for plane in range(planes):
        if whole:
            with T.serial(0, whole) as number:
                found = codes[row, T.ramp(number * WORD, 1, WORD)]
                if planes > 1:
                    found = found & T.broadcast(tirx.const(1 << plane, "uint8"), WORD)
                word = T.Cast(BITS.a, T.call_pure_extern("int32", BITS_OF_BYTES, found))
                T.buffer_store(words, word, [row, plane * each + number])
        if rest:
            bits = (_bit(codes[row, whole * WORD + n], plane, n) for n in range(rest))
            T.buffer_store(words, sum(bits, tirx.const(0, BITS.a)), [row, plane * each + whole])


def _bit(code: Any, plane: int, number: int) -> Any:
    shifted = T.Cast(BITS.a, code) >> tirx.const(plane, BITS.a)
    return (shifted & tirx.const(1, BITS.a)) << tirx.const(number, BITS.a)


def packed(signs: np.ndarray, axis: int) -> np.ndarray:
    """Return words (uint32) of booleans along an axis, bits beyond the last one 0."""
    moved = np.moveaxis(signs, axis, -1)
    missing = -moved.shape[-1] % WORD
    filled = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, missing)])
    made = np.packbits(filled, axis=-1, bitorder="little")
    made = np.ascontiguousarray(made).view("<u4")
    return np.ascontiguousarray(np.moveaxis(made, -1, axis))
