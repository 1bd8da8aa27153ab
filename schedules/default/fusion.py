"""One parallel loop for consecutive stages that hand over their rows.

Softmax is four stages over the same rows. As four parallel loops it pays four times for fork
and join, and each stage finds its input gone from the cache. Where iteration p of a stage
reads, of all that earlier stages computed, only what their iteration p wrote, they share a loop.
"""

from __future__ import annotations

from tvm import ir, sym, tirx

from tvm_blislike.schedules.default.access import loop_analyzer
from tvm_blislike.schedules.default.nest import Stmts
from tvm_blislike.schedules.lowering.rewrite import collect, constant, sequence, substitute


def share_parallel_loops(stages: list[Stmts], internal: list[tirx.Buffer]) -> list[Stmts]:
    """Merge neighbouring stages into shared parallel loops.

    Parameters
    ----------
    stages : list of list of tirx.Stmt
        Emitted code of every stage, in order; views are declared in front of the loops.
    internal : list of tirx.Buffer
        Flat buffers through which the stages communicate.

    Returns
    -------
    list of list of tirx.Stmt
        The same or fewer stages, in order.
    """
    merged: list[Stmts] = []
    for stage in stages:
        joined = _join(merged[-1], stage, internal) if merged else None
        if joined is None:
            merged.append(stage)
        else:
            merged[-1] = joined
    return merged


def _join(first: Stmts, second: Stmts, internal: list[tirx.Buffer]) -> Stmts | None:
    one, two = _only_parallel_loop(first), _only_parallel_loop(second)
    if one is None or two is None or constant(one.extent) != constant(two.extent):
        return None
    if _passes_a_parameter(first, second, internal):
        return None
    written = [s.buffer for s in collect(one, tirx.BufferStore)]
    shared = [b for b in internal if any(b.same_as(w) for w in written)]
    if not all(_stays_in_row(each, shared) for each in (one, two)):
        return None
    body = sequence([one.body, substitute(two.body, {two.loop_var: one.loop_var})])
    loop = tirx.For(one.loop_var, one.min, one.extent, one.kind, body)
    views = [s for s in [*first, *second] if isinstance(s, tirx.DeclBuffer)]
    return [*views, loop]


def _passes_a_parameter(first: Stmts, second: Stmts, internal: list[tirx.Buffer]) -> bool:
    """Tell whether `second` reads an output of the function that `first` computes."""
    views = {
        d.buffer: collect(d.data, tirx.Var)[0]
        for stmt in [*first, *second]
        for d in collect(stmt, tirx.DeclBuffer)
    }
    stores = [s.buffer for stmt in first for s in collect(stmt, tirx.BufferStore)]
    loads = [x.source for stmt in second for x in collect(stmt, ir.TensorLoad)]
    outputs = [views.get(b, b) for b in stores if not any(b.same_as(i) for i in internal)]
    return any(views.get(x, x).same_as(b) for x in loads for b in outputs)


def _only_parallel_loop(stmts: Stmts) -> tirx.For | None:
    loops = [s for s in stmts if not isinstance(s, tirx.DeclBuffer)]
    if len(loops) != 1 or not isinstance(loops[0], tirx.For):
        return None
    return loops[0] if loops[0].kind == tirx.ForKind.PARALLEL else None


def _stays_in_row(loop: tirx.For, shared: list[tirx.Buffer]) -> bool:
    """Tell whether iteration p touches of each shared buffer only its p-th equal part."""
    analyzer = loop_analyzer(collect(loop, tirx.For))
    for access in collect(loop, (tirx.BufferStore, ir.TensorLoad)):
        buffer = access.buffer if isinstance(access, tirx.BufferStore) else access.source
        if not any(buffer.same_as(b) for b in shared):
            continue
        row, rest = divmod(int(buffer.shape[0]), int(loop.extent))
        if rest or not _within(access.indices[0], loop.loop_var, row, analyzer):
            return False
    return True


def _within(index: tirx.Expr, variable: tirx.Var, row: int, analyzer: sym.Analyzer) -> bool:
    if isinstance(index, tirx.Ramp):
        return False
    linear = sym.detect_linear_equation(analyzer.simplify(index), [variable])
    if not linear or constant(linear[0]) != row:
        return False
    bound = analyzer.const_int_bound(linear[1])
    return int(bound.min_value) >= 0 and int(bound.max_value) < row
