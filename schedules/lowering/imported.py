"""Functions in LLVM's language that a PrimFunc calls, and their source beside it."""

from __future__ import annotations

from collections.abc import Iterable

from tvm import ir, tirx

from tvm_blislike.schedules.lowering.rewrite import collect


def names_called(func: tirx.PrimFunc) -> list[str]:
    """Return the names of the functions that `func` calls by name, sorted, each once."""
    by_name = (
        call.args[0].value
        for call in collect(func.body, ir.Call)
        if call.args and isinstance(call.args[0], ir.StringImm)
    )
    return sorted({str(name) for name in by_name})


def with_sources(func: tirx.PrimFunc, sources: Iterable[str]) -> tirx.PrimFunc:
    """Return `func` with LLVM functions beside it, which LLVM may inline."""
    body = func.body
    for source in sources:
        zero, text = tirx.IntImm("int32", 0), ir.StringImm(source)
        body = tirx.AttrStmt(zero, "pragma_import_llvm", text, body)
    return func if body.same_as(func.body) else func.with_body(body)
