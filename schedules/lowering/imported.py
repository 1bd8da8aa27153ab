"""Functions in LLVM's language that a PrimFunc calls, and their source beside it."""

from __future__ import annotations

from tvm import ir, tirx

from tvm_blislike.schedules.lowering.rewrite import collect
from tvm_blislike.tvm_seams.attributes import with_sources

__all__ = ["names_called", "with_sources"]


def names_called(func: tirx.PrimFunc) -> list[str]:
    """Return the names of the functions that `func` calls by name, sorted, each once."""
    by_name = (
        call.args[0].value
        for call in collect(func.body, ir.Call)
        if call.args and isinstance(call.args[0], ir.StringImm)
    )
    return sorted({str(name) for name in by_name})
