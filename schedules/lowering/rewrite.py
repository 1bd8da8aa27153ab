"""Small looks at loops, and small rewrites of them, that all passes over lowered code share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.target.codegen import target_has_features

from tvm_blislike.model.directive import Directive
from tvm_blislike.model.loop_names import Named

_IF_THEN_ELSE = ir.Op.get("prim.if_then_else")
# The type of indices in lowered code.
INT = "int32"


def collect(node: Any, kind: type | tuple[type, ...]) -> list[Any]:
    """Return every sub-node of `node` that is of `kind`, outer ones before those inside them."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (kind, found.append), order="pre")
    return found


def innermost(func: tirx.PrimFunc) -> list[s_tir.SBlock]:
    """Return the blocks of a function that have no others inside."""
    blocks = collect(func.body, s_tir.SBlock)
    return [block for block in blocks if not collect(block.body, s_tir.SBlock)]


def with_body(func: tirx.PrimFunc, body: tirx.Stmt) -> tirx.PrimFunc:
    """Return a function with another body; itself with its own: TVM goes through a new one."""
    return func if body.same_as(func.body) else func.with_body(body)


def uses_any(node: Any, variables: Iterable[tirx.Var]) -> bool:
    """Whether `node` mentions one of `variables`."""
    return not set(variables).isdisjoint(collect(node, tirx.Var))


def integer(value: int) -> tirx.IntImm:
    """Return an integer constant of lowered code."""
    return tirx.IntImm(INT, value)


def constant(expr: Any) -> int | None:
    """Return the value of an integer constant, None for anything else."""
    if isinstance(expr, int):
        return expr
    return int(expr.value) if isinstance(expr, tirx.IntImm) else None


def at_directives(
    body: tirx.Stmt, kind: type[Directive], change: Callable[[tirx.For, Any], tirx.Stmt]
) -> tirx.Stmt:
    """Return a statement with each loop that carries a directive changed, inner ones first."""

    def visit(loop: tirx.For) -> tirx.Stmt:
        directive = kind.of(loop)
        return loop if directive is None else change(loop, directive)

    return tvm_ffi.structural_map(body, [(tirx.For, visit)])


def is_named(loop: tirx.For, *names: str) -> bool:
    """Whether a loop has one of the names."""
    named = Named.of(loop)
    return named is not None and named.name in names


def is_if(node: Any) -> bool:
    """Whether an expression chooses one of two values by a condition."""
    return isinstance(node, ir.Call) and node.op.same_as(_IF_THEN_ELSE)


def terms_of(condition: Any) -> list[Any]:
    """Return the conditions that a conjunction joins."""
    if isinstance(condition, tirx.And):
        return [*terms_of(condition.a), *terms_of(condition.b)]
    return [condition]


def contains(terms: Iterable[Any], term: Any) -> bool:
    """Whether one of some expressions is a term."""
    return any(tvm_ffi.structural_equal(term, each) for each in terms)


def distinct(terms: Iterable[Any]) -> list[Any]:
    """Return expressions without those that are there already."""
    kept: list[Any] = []
    for term in terms:
        if not contains(kept, term):
            kept.append(term)
    return kept


def substitute(node: Any, values: Mapping[tirx.Var, Any]) -> Any:
    """Return a statement or an expression with expressions or integers in place of variables."""
    if not values:
        return node
    new = {
        var: tirx.IntImm(var.ty.dtype, value) if isinstance(value, int) else value
        for var, value in values.items()
    }
    return tvm_ffi.structural_map(node, [(tirx.Var, lambda var: new.get(var, var))])


def redirected(
    body: tirx.Stmt, place: Callable[[Any, Any], tuple[Any, list[Any]] | None]
) -> tirx.Stmt:
    """Return a statement whose accesses go to another buffer and indices where `place` says so."""

    def load(access: Any) -> Any:
        new = place(access.source, access.indices)
        return access if new is None else tirx.BufferLoad(*new)

    def store(access: Any) -> Any:
        new = place(access.buffer, access.indices)
        return access if new is None else tirx.BufferStore(new[0], access.value, new[1])

    return tvm_ffi.structural_map(body, [(ir.TensorLoad, load), (tirx.BufferStore, store)])


def decided(call: ir.Call, analyzer: sym.Analyzer) -> Any:
    """Return the value that a call chooses where its condition is known, else the call."""
    if not is_if(call):
        return call
    condition = analyzer.simplify(call.args[0])
    known = constant(condition)
    if known is not None:
        return call.args[1] if known else call.args[2]
    return tirx.if_then_else(condition, call.args[1], call.args[2])


def remade(loop: tirx.For, **changes: Any) -> tirx.For:
    """Return a loop with some of its fields changed."""
    fields = {
        "loop_var": loop.loop_var,
        "min": loop.min,
        "extent": loop.extent,
        "kind": loop.kind,
        "body": loop.body,
        "thread_binding": loop.thread_binding,
        "annotations": loop.annotations,
    }
    return tirx.For(**{**fields, **changes})


def without(loop: tirx.For, *kinds: type[Directive], **changes: Any) -> tirx.For:
    """Return a loop without some of its directives, and with some of its fields changed."""
    keys = [kind.key for kind in kinds]
    kept = {key: note for key, note in loop.annotations.items() if key not in keys}
    return remade(loop, annotations=kept, **changes)


def has_feature(func: tirx.PrimFunc, feature: str) -> bool:
    """Whether the target of a function has a feature of LLVM, said by itself or by its processor.

    Kernels of models carry no target yet where they are lowered: theirs is the current one.
    """
    target = func.attrs.get("target") if func.attrs else None
    target = tvm.target.Target.current() if target is None else target
    return target is not None and bool(target_has_features(feature, target))


def sequence(parts: list[tirx.Stmt]) -> tirx.Stmt:
    """Return one statement for a list of them."""
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)


def over_lanes(lane: tirx.Var, count: int, body: tirx.Stmt) -> tirx.For:
    """Return a loop over the lanes of a vector; a single one needs none."""
    kind = tirx.ForKind.VECTORIZED if count > 1 else tirx.ForKind.SERIAL
    return tirx.For(lane, tirx.IntImm("int32", 0), tirx.IntImm("int32", count), kind, body)
