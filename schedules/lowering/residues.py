"""Arithmetic of uint32 modulo 2^32, by functions of LLVM.

TVM tells LLVM that additions and products of integers of 32 bits never overflow, and LLVM may draw
conclusions. Sums that are meant to (`conv2d_winograd.integers`) are calls of functions that do
not say so; they are one instruction each and inlined.
"""

from __future__ import annotations

import re
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_blislike.schedules.lowering.rewrite import collect

_OPERATIONS = {tirx.Add: "add", tirx.Sub: "sub", tirx.Mul: "mul"}
_SYMBOL = re.compile(r"blislike_residue_(?P<operation>[a-z]+)_(?P<lanes>\d+)")
_VECTOR = re.compile(r"uint32(?:x(?P<lanes>\d+))?")


def by_functions(body: tirx.Stmt) -> tirx.Stmt:
    """Replace additions, subtractions and products of uint32, of vectors too.

    Bodies without a buffer of uint32 are left as they are.
    """
    if all(str(each.buffer.dtype) != "uint32" for each in collect(body, tirx.AllocBuffer)):
        return body
    return tvm_ffi.structural_map(body, [(kind, _replaced) for kind in _OPERATIONS])


def _replaced(node: Any) -> Any:
    found = _VECTOR.fullmatch(str(node.ty))
    if found is None:
        return node
    name = f"blislike_residue_{_OPERATIONS[type(node)]}_{found['lanes'] or 1}"
    return tirx.call_pure_extern(str(node.ty), name, node.a, node.b)


def source(symbol: str) -> str:
    """Return the LLVM function of that name, "" when it is none of these."""
    found = _SYMBOL.fullmatch(symbol)
    if found is None:
        return ""
    lanes = int(found["lanes"])
    dtype = f"<{lanes} x i32>" if lanes > 1 else "i32"
    return (
        f"define linkonce_odr {dtype} @{symbol}({dtype} %a, {dtype} %b) alwaysinline nounwind {{\n"
        f"  %r = {found['operation']} {dtype} %a, %b\n"
        f"  ret {dtype} %r\n}}\n"
    )
