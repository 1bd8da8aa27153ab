"""K loops that exist in two forms: a function of LLVM for whole blocks, plain loops for cut ones.

A micro-kernel offers both (`microkernels.WHOLE`) before it is known where the edges of tiles are.
Once they have been split off, each copy keeps the form that its extents allow.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_blislike.microkernels import AXIS, WHOLE, neon_panels

_IMPORT = "pragma_import_llvm"


def choose(body: tirx.Stmt) -> tirx.Stmt:
    """Replace every pair of forms by the one that fits."""
    return tvm_ffi.structural_map(body, [(tirx.For, _chosen)])


def with_sources(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Attach the LLVM source of the functions that `func` calls."""
    names: set[str] = set()

    def called(call: Any) -> None:
        if call.args and isinstance(call.args[0], tvm.ir.StringImm):
            names.add(str(call.args[0].value))

    tvm_ffi.structural_walk(func.body, [(tvm.ir.Call, called)])
    sources = [source for source in map(neon_panels.source_of, sorted(names)) if source]
    body = func.body
    for source in sources:
        body = tirx.AttrStmt(tirx.IntImm("int32", 0), _IMPORT, tvm.ir.StringImm(source), body)
    return func.with_body(body) if sources else func


def _chosen(loop: tirx.For) -> tirx.Stmt:
    whole = loop.annotations.get(WHOLE) if loop.annotations else None
    if whole is None:
        return loop
    call, *plain = loop.body.seq
    loops = plain[0] if len(plain) == 1 else tirx.SeqStmt(plain)
    wanted = {str(axis): int(extent) for axis, extent in whole.items()}
    return call if _is_whole(loops, wanted) else loops


def _is_whole(body: tirx.Stmt, wanted: dict[str, int]) -> bool:
    found: list[bool] = []

    def visit(loop: tirx.For) -> None:
        axis = loop.annotations.get(AXIS) if loop.annotations else None
        if axis is not None and str(axis) in wanted:
            found.append(int(loop.extent) == wanted[str(axis)])

    tvm_ffi.structural_walk(body, [(tirx.For, visit)])
    return all(found)
