"""What the body of a loop becomes: copies, vectors, code with its conditions in front.

A Winograd pass is a chain of selects over the index of its result (`conv2d_winograd`): one branch
is left for each copy of the body. And a load that may lie outside the image has a condition of its
own, which would make scalar code or one branch per load; `hoist` tests what all loads of a row
have in common once, and in a second test whether all other conditions hold as well.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from tvm_blislike.model.directives import Vector
from tvm_blislike.schedules.lowering.rewrite import (
    collect,
    contains,
    distinct,
    is_if,
    over_lanes,
    remade,
    sequence,
    substitute,
    terms_of,
)

# Vectors of a `Vector` loop that are written out; a longer copy stays a loop (blocks of C are
# shorter, and must be written out to stay in registers).
_MOST_UNROLLED = 32


def vectorized(loop: tirx.For, vector: Vector) -> tirx.Stmt:
    """Return a loop as vectors of the width, and narrower ones for what is left."""
    if not int(loop.min) and int(loop.extent) == vector.lanes:
        # Most are one vector, thousands of them where a tile is written out: nothing to count.
        return over_lanes(loop.loop_var, vector.lanes, loop.body)
    parts = []
    start, left, width = int(loop.min), int(loop.extent), vector.lanes
    while left:
        count = left // width
        if count:
            parts.append(_vector_part(loop, start, count, width))
        start, left, width = start + count * width, left - count * width, width // 2
    return sequence(parts)


def _vector_part(loop: tirx.For, start: int, count: int, width: int) -> tirx.Stmt:
    outer, inner = tirx.Var("jv", "int32"), tirx.Var("lane", "int32")
    index = tirx.IntImm("int32", start) + outer * tirx.IntImm("int32", width) + inner
    body = substitute(loop.body, {loop.loop_var: index})
    vector = over_lanes(inner, width, body)
    outer_kind = tirx.ForKind.UNROLLED if count <= _MOST_UNROLLED else tirx.ForKind.SERIAL
    return tirx.For(outer, tirx.IntImm("int32", 0), tirx.IntImm("int32", count), outer_kind, vector)


def unrolled(loop: tirx.For) -> tirx.Stmt:
    """Return the copies of a loop's body, with the branch that each index selects."""
    first, count = int(loop.min), int(loop.extent)
    indices = range(first, first + count)
    copies = [_resolved(substitute(loop.body, {loop.loop_var: index})) for index in indices]
    return sequence(copies)


def _resolved(stmt: tirx.Stmt) -> tirx.Stmt:
    analyzer = sym.Analyzer()

    def branch(select: tirx.Select) -> Any:
        condition = analyzer.simplify(select.condition)
        if isinstance(condition, tirx.IntImm):
            return select.true_value if int(condition) else select.false_value
        return select

    return tvm_ffi.structural_map(stmt, [(tirx.Select, branch)])


def hoist(loop: tirx.For) -> tirx.For:
    """Move the conditions inside a loop to the front of its body.

    What all conditions have in common is tested first: without it nothing is loaded (`where`
    predicates of stores: nothing is stored). Then one test for all others together chooses between
    code without any condition and the code as it was. Conditions that depend on something inside
    the body, a loop variable or data, stay where they are.
    """
    inner = _variables(loop.body)
    conditions = [
        [t for t in terms_of(c) if not _depends(t, inner)] for c in _conditions(loop.body)
    ]
    if not any(conditions):
        return loop
    common = [t for t in conditions[0] if all(contains(c, t) for c in conditions[1:])]
    rest = distinct(t for c in conditions for t in c if not contains(common, t))
    inside = _assuming(loop.body, [*common, *rest])
    if rest:
        inside = tirx.IfThenElse(tirx.all(*rest), inside, _assuming(loop.body, common))
    body = inside
    if common:
        body = tirx.IfThenElse(tirx.all(*common), inside, _without(loop.body, common))
    return remade(loop, body=body)


def _conditions(stmt: tirx.Stmt) -> list[Any]:
    found: list[Any] = []

    def call(node: ir.Call) -> None:
        if is_if(node):
            found.append(node.args[0])

    def branch(node: tirx.IfThenElse) -> None:
        found.append(node.condition)

    tvm_ffi.structural_walk(stmt, [(ir.Call, call), (tirx.IfThenElse, branch)])
    return found


def _variables(stmt: tirx.Stmt) -> set[tirx.Var]:
    """Return the variables that a statement defines."""
    variables = {loop.loop_var for loop in collect(stmt, tirx.For)}
    return variables | {bound.var for bound in collect(stmt, (tirx.Bind, tirx.Let))}


def _depends(term: Any, inner: set[tirx.Var]) -> bool:
    """Whether a condition uses one of the variables, or data, which the body may change."""
    used = collect(term, (tirx.Var, ir.TensorLoad))
    return any(isinstance(node, ir.TensorLoad) or node in inner for node in used)


def _remaining(condition: Any, known: list[Any]) -> list[Any]:
    return [t for t in terms_of(condition) if not contains(known, t)]


def _assuming(stmt: tirx.Stmt, known: list[Any]) -> tirx.Stmt:
    """Return a statement without the conditions that are known to hold."""

    def call(node: ir.Call) -> Any:
        if not is_if(node):
            return node
        left = _remaining(node.args[0], known)
        return tirx.if_then_else(tirx.all(*left), *node.args[1:]) if left else node.args[1]

    def branch(node: tirx.IfThenElse) -> Any:
        left = _remaining(node.condition, known)
        if not left:
            return node.then_case
        return tirx.IfThenElse(tirx.all(*left), node.then_case, node.else_case)

    return tvm_ffi.structural_map(stmt, [(ir.Call, call), (tirx.IfThenElse, branch)])


def _without(stmt: tirx.Stmt, refuted: list[Any]) -> tirx.Stmt:
    """Return a statement where conditions that need one of `refuted` do not hold."""

    def fails(condition: Any) -> bool:
        return any(contains(refuted, term) for term in terms_of(condition))

    def call(node: ir.Call) -> Any:
        return node.args[2] if is_if(node) and fails(node.args[0]) else node

    def branch(node: tirx.IfThenElse) -> Any:
        if not fails(node.condition):
            return node
        return node.else_case if node.else_case is not None else tirx.Evaluate(0)

    return tvm_ffi.structural_map(stmt, [(ir.Call, call), (tirx.IfThenElse, branch)])
