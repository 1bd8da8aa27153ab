"""K loops become functions of LLVM, and what they keep in an order of their own is put in rows.

To a schedule a block of C is a buffer: set to zero, updated by calls of a micro-kernel, and read by
the epilogue. A loop that keeps C in its own order (`KLoop.finish`) takes zeros as they are; behind
the loops over its calls, another function puts the sums where the epilogue looks for them.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from tvm_blislike.microkernels import LOOPS
from tvm_blislike.microkernels.k_loops import KLoop
from tvm_blislike.model.directive import MisplacedDirective
from tvm_blislike.model.directives import KLoopCall
from tvm_blislike.schedules.lowering.llvm_functions import chosen, cut_block, rows_of_c
from tvm_blislike.schedules.lowering.rewrite import at_directives, collect
from tvm_blislike.schedules.lowering.tiles import zeroes


def called(body: tirx.Stmt) -> tirx.Stmt:
    """Have the functions of `KLoopCall` loops called, and blocks of C finished behind their loops.

    Raises
    ------
    MisplacedDirective
        When nothing in front of such loops zeroes C.
    """
    found = 0

    def visit(statements: tirx.SeqStmt) -> tirx.Stmt:
        nonlocal found
        parts = list(statements.seq)
        for place in range(len(parts) - 1, 0, -1):
            calls = _calls(parts[place])
            if calls and zeroes(parts[place - 1], calls[0].body.seq[0].value.args[8]):
                parts.insert(place + 1, _finish(calls[0]))
                found += len(calls)
        return tirx.SeqStmt(parts) if len(parts) > len(statements.seq) else statements

    changed = tvm_ffi.structural_map(body, [(tirx.SeqStmt, visit)])
    if found < len(_calls(body)):
        raise MisplacedDirective("KLoopCall: no statement in front of its loops zeroes C")
    return at_directives(changed, KLoopCall, chosen)


def _calls(stmt: tirx.Stmt) -> list[tirx.For]:
    """Return the calls of loops whose blocks have to be finished."""
    calls = (loop for loop in collect(stmt, tirx.For) if KLoopCall.of(loop) is not None)
    return [loop for loop in calls if _loop_of(loop).finish is not None]


def _loop_of(call: tirx.For) -> KLoop:
    return LOOPS[str(call.body.seq[0].value.args[0].value)]


def _finish(call: tirx.For) -> tirx.Stmt:
    whole = KLoopCall.of(call)
    block = cut_block(call, whole)
    symbol = _loop_of(call).symbol(block, finish=True)
    return tirx.Evaluate(tirx.call_extern("void", symbol, *rows_of_c(call, whole, block)))
