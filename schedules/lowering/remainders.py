"""Remainders by powers of two, written so that LLVM does not take them for sums without overflow.

Where `i % 4` is part of an index, LLVM reads it as a counter of two bits. Its loop vectorizer asks
whether that counter, and the index around it, ever overflow, and in LLVM 22 (before the change
"Bail out on wider AddRecs in SCEVWrapPredicate::implies", pull request 191498) the answer for the
wider of the two stands for both: `x[o % 3 * 20 + i % 4 * 5 + j]` becomes a read of consecutive rows
beyond the fourth one, with AVX-512 and AVX2 alike. So the quotient is written as a product and a
shift, of a factor that is no power of two: to LLVM that is an index of no known step.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from tvm_blislike.schedules.lowering.rewrite import collect, constant, substitute

# Added to a power of two. Not 1: LLVM knows what (a * (2^s + 1)) >> s is.
_ADDED = 3
# Largest value of the types of indices.
_LARGEST = {"int32": 2**31 - 1, "int64": 2**63 - 1}


def hide(body: tirx.Stmt) -> tirx.Stmt:
    """Rewrite the remainders in the body of a PrimFunc, right before code is generated."""
    if not any(map(_is_counter, collect(body, tirx.FloorMod))):
        return body
    analyzer = _with_ranges(body)
    values = {bind.var: bind.value for bind in collect(body, tirx.Bind)}

    def rewritten(node: tirx.FloorMod) -> Any:
        if not _is_counter(node):
            return node
        bound = analyzer.const_int_bound(_written_out(node.a, values))
        return _remainder(node, int(bound.min_value), int(bound.max_value))

    return tvm_ffi.structural_map(body, [(tirx.FloorMod, rewritten)])


def _is_counter(node: tirx.FloorMod) -> bool:
    """Whether it is the remainder of loop variables, by a power of two beyond one."""
    divisor = constant(node.b)
    if divisor is None or divisor < 2 or divisor & (divisor - 1):
        return False
    return str(node.ty) in _LARGEST and not collect(node.a, (ir.TensorLoad, ir.Call))


def _with_ranges(body: tirx.Stmt) -> sym.Analyzer:
    """Return an analyzer that knows the range of each loop; of the longest one of a variable."""
    ranges: dict[tirx.Var, tuple[int, int]] = {}
    for loop in collect(body, tirx.For):
        first, count = constant(loop.min), constant(loop.extent)
        if first is not None and count is not None:
            low, high = ranges.get(loop.loop_var, (first, first + count))
            ranges[loop.loop_var] = min(low, first), max(high, first + count)
    analyzer = sym.Analyzer()
    for var, (low, high) in ranges.items():
        analyzer.bind(var, ir.Range(low, high))
    return analyzer


def _written_out(expr: Any, values: dict[tirx.Var, Any]) -> Any:
    """Return an expression without variables that stand for others."""
    while any(var in values for var in collect(expr, tirx.Var)):
        expr = substitute(expr, values)
    return expr


def _remainder(node: tirx.FloorMod, low: int, high: int) -> Any:
    """Return `a % 2^k` for a dividend of a known range, which may be negative.

    (a * (2^s + 3)) >> (s + k) is a // 2^k as long as 3 a < 2^s: that adds 3 a / 2^s < 1 to a, less
    than what a lacks of the next multiple of 2^k.
    """
    divisor, type_ = int(node.b), str(node.ty)
    raised = max(0, -(low // divisor) * divisor)
    steps = (_ADDED * (high + raised)).bit_length()
    factor, shift = 2**steps + _ADDED, steps + divisor.bit_length() - 1
    if max(raised, (high + raised) * factor, 2**shift) > _LARGEST[type_]:
        if type_ == "int64":
            return node
        wide = tirx.FloorMod(tirx.Cast("int64", node.a), tirx.IntImm("int64", divisor))
        return tirx.Cast("int32", _remainder(wide, low, high))
    dividend = node.a + tirx.IntImm(type_, raised) if raised else node.a
    quotient = tirx.shift_right(dividend * tirx.IntImm(type_, factor), tirx.IntImm(type_, shift))
    return dividend - quotient * tirx.IntImm(type_, divisor)
