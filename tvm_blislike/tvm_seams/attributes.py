"""Attributes and annotations of PrimFuncs that TVM's passes read, by what they bring about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tvm import ir, tirx

# Numbers of an enumeration of C++ that Python has no names for. Elementwise operators and
# broadcasts behind the function are fused into it.
FUSES_WHAT_FOLLOWS: Mapping[str, Any] = {"op_pattern": 4}
# Fused into a kernel that reads its result, never into that of a layer which makes its operand.
BEGINS_A_KERNEL: Mapping[str, Any] = {"op_pattern": 1}
# Fused like a transposition: each element is made of any elements of the operands.
FUSES_LIKE_A_MOVE: Mapping[str, Any] = {"op_pattern": 2}
# Never fused with anything.
NEVER_FUSED: Mapping[str, Any] = {"op_pattern": 8}
# No two parameters lie in the same memory: LLVM may then reorder loads and stores.
NO_ALIAS: Mapping[str, Any] = {"tirx.noalias": True}
# Keys and values of attributes of statements. Parallel loops inside one share a launch of the
# threads, each of which goes through the loops around them; behind the other they wait for all.
ONE_LAUNCH = ("pragma_parallel_launch_point", 1)
BARRIER_BEHIND = ("pragma_parallel_barrier_when_finish", 1)
# Rules for default schedules leave the function alone.
IS_SCHEDULED: Mapping[str, Any] = {"tirx.is_scheduled": True}


def with_sources(func: tirx.PrimFunc, sources: Iterable[str]) -> tirx.PrimFunc:
    """Return `func` with functions in LLVM's language beside it, which LLVM may inline."""
    body = func.body
    for source in sources:
        zero, text = tirx.IntImm("int32", 0), ir.StringImm(source)
        body = tirx.AttrStmt(zero, "pragma_import_llvm", text, body)
    return func if body.same_as(func.body) else func.with_body(body)
