"""Calls of transcendental functions become vector arithmetic.

LLVM has no vector exp: a `tirx.exp` on sixteen lanes becomes sixteen calls of `expf`, a
`tirx.tanh` thirty-two. `vectorize_math` replaces such calls on float32 by what `vector_functions`
and `vector_powers` make of them.

A vector of 64 bytes is divided in 16 cycles (Golden Cove; one of 32 bytes in 5), enough for 32
products: there a quotient by a constant is a product with its reciprocal and a correction (the
hard swish 7.7 instead of 11.7 cycles a vector). The quotient of a sigmoid has a divisor to invert
first, by Newton's steps: 16.7 cycles instead of 13.3, so it stays a division.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_blislike.schedules.lowering.rewrite import collect, is_if, remade, uses_any
from tvm_blislike.schedules.lowering.vector_functions import (
    Expr,
    by_constant,
    cosh,
    erf,
    exp,
    f32,
    log,
    sigmoid,
    sinh,
    tanh,
)
from tvm_blislike.schedules.lowering.vector_powers import power

_REWRITES: dict[str, Callable[..., Expr | None]] = {
    "tirx.exp": exp,
    "tirx.sigmoid": sigmoid,
    "tirx.tanh": tanh,
    "tirx.erf": erf,
    "tirx.cosh": cosh,  # TVM cannot compile these two in vectors at all
    "tirx.sinh": sinh,
    "tirx.log": log,
    "tirx.pow": power,
}


# Divisors between these have reciprocals, and usual quotients remainders, that are normal.
_LEAST, _MOST = 2.0**-60, 2.0**60


def vectorize_math(node: Any, divides: bool = True) -> Any:
    """Replace calls of transcendental functions on float32 by vector arithmetic.

    Parameters
    ----------
    node : tirx.Expr, tirx.Stmt or tirx.PrimFunc
        What to rewrite: scalar code. Mark loops as vectorized before: there, a statement with
        several functions in it becomes several statements.
    divides : bool
        Whether quotients by constants are divisions.

    Returns
    -------
    same kind as `node`
        With `exp`, `sigmoid`, `tanh`, `cosh`, `sinh`, `erf`, `log`, and `pow` by multiples of 1/4,
        replaced; those of float16 are computed in float32. Other types and functions are left
        alone.
    """
    if isinstance(node, tirx.PrimFunc):
        if not any(map(_is_known, collect(node.body, ir.Call))):
            if divides or not collect(node.body, tirx.Div):
                return node
        body = vectorize_math(node.body, divides)
        return tirx.PrimFunc(node.params, body, node.ret_type, node.attrs)
    node = tvm_ffi.structural_map(node, [(ir.Call, _widened)])
    node = apart(node, _split_store)
    if not divides:
        # TVM's simplifier refuses a name in a condition that is used behind it as well.
        named = {
            q for c in collect(node, ir.Call) if is_if(c) for q in collect(c.args[0], tirx.Div)
        }

        def product(quotient: tirx.Div) -> Expr:
            return quotient if quotient in named else _divide_by_constant(quotient)

        node = tvm_ffi.structural_map(node, [(tirx.Div, product)])
    # Before its operands: a division must still see the power below it.
    callbacks = [(ir.Call, _replaced), (tirx.Div, _divide_by_power)]
    node = tvm_ffi.structural_map(node, callbacks, order="pre")
    return tvm_ffi.structural_map(node, [(tirx.For, _left_to_llvm)])


def _left_to_llvm(loop: tirx.For) -> tirx.For:
    """Return a loop over lanes as a plain one where they share a call with names in it.

    TVM's vectorizer looks at such a call twice where it is a factor, takes its names for new ones,
    and fails. Values in place of the names would not do: TVM takes the roundings out of a
    polynomial, x + c - c.
    """
    if loop.kind != tirx.ForKind.VECTORIZED or not collect(loop.body, tirx.Let):
        return loop
    varying = _varying(loop)
    shared = (call for call in collect(loop.body, ir.Call) if not uses_any(call, varying))
    if any(collect(call, tirx.Let) for call in shared):
        return remade(loop, kind=tirx.ForKind.SERIAL)
    return loop


def _varying(loop: tirx.For) -> set[tirx.Var]:
    """Return the variables whose values differ between the lanes of a loop."""
    bound = [(let.var, let.value) for let in collect(loop.body, tirx.Let)]
    for realize in collect(loop.body, s_tir.SBlockRealize):
        axes = [axis.var for axis in realize.block.iter_vars]
        bound += zip(axes, realize.iter_values, strict=True)
    varying, more = {loop.loop_var}, {loop.loop_var}
    while more:
        more = {var for var, value in bound if uses_any(value, varying)} - varying
        varying |= more
    return varying


def _divide_by_constant(quotient: tirx.Div) -> Expr:
    """Turn a / c into products, but where LLVM makes one of it: c is a power of two."""
    divisor = quotient.b
    if not isinstance(divisor, tirx.FloatImm) or str(quotient.ty) != "float32":
        return quotient
    value = float(divisor.value)
    if not _LEAST <= abs(value) <= _MOST or abs(math.frexp(value)[0]) == 0.5:
        return quotient
    return by_constant(quotient.a, value)


def _divide_by_power(quotient: tirx.Div) -> Expr:
    """Turn a / x^(3/4) into a * x^(-3/4): the roots come out inverted, so no division."""
    power_call = quotient.b
    if not (isinstance(power_call, ir.Call) and isinstance(power_call.op, ir.Op)):
        return quotient
    if power_call.op.name != "tirx.pow" or str(quotient.ty) != "float32":
        return quotient
    base, exponent = power_call.args
    if not isinstance(exponent, tirx.FloatImm) or float(exponent.value) * 4 % 2 != 1:
        return quotient
    inverse = power(base, f32(-float(exponent.value)))
    return quotient if inverse is None else quotient.a * inverse


def _is_known(call: ir.Call) -> bool:
    """Whether a call is of one of the functions, in any type."""
    return isinstance(call.op, ir.Op) and call.op.name in _REWRITES


def _is_replaced(call: ir.Call) -> bool:
    """Whether a call is one that `vectorize_math` replaces."""
    return _is_known(call) and str(call.ty) == "float32"


def _replaced(call: ir.Call) -> Expr:
    replacement = _REWRITES[call.op.name](*call.args) if _is_replaced(call) else None
    return call if replacement is None else replacement


def _widened(call: ir.Call) -> Expr:
    """Return a function of float16 as one of float32 between conversions."""
    if not _is_known(call) or str(call.ty) != "float16":
        return call
    operands = [tirx.Cast("float32", operand) for operand in call.args]
    return tirx.Cast("float16", tirx.call_intrin("float32", call.op.name, *operands))


# Returns a store, or several with what they need in between in buffers of a vector, which are
# appended to a list; given are also how many elements a vector has, and the number of the present.
Split = Callable[[tirx.BufferStore, tirx.Expr | int, tirx.Expr, list[tirx.Buffer]], tirx.Stmt]


def apart(node: Any, split: Split) -> Any:
    """Give parts of an expression statements of their own, in vector loops and outside of them.

    The bindings of one function, inside those of the next, would cost TVM's simplifier minutes. It
    looks through names as well, so the value in between goes through a buffer; LLVM removes that.
    """
    node = tvm_ffi.structural_map(node, [(tirx.For, partial(_apart_in_vectors, split=split))])
    return tvm_ffi.structural_map(node, [(tirx.BufferStore, partial(_apart_alone, split=split))])


def _apart_in_vectors(loop: tirx.For, split: Split) -> tirx.Stmt:
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    buffers: list[tirx.Buffer] = []
    lane = loop.loop_var - loop.min

    def parted(store: tirx.BufferStore) -> tirx.Stmt:
        branches = _branches(store, loop)
        if branches is None:
            return split(store, loop.extent, lane, buffers)
        parts = [parted(branch) for branch in branches]
        if not any(isinstance(part, tirx.SeqStmt | tirx.IfThenElse) for part in parts):
            return store
        return tirx.IfThenElse(store.value.args[0], *parts)

    body = tvm_ffi.structural_map(loop.body, [(tirx.BufferStore, parted)])
    if not buffers:
        return loop
    return tirx.SeqStmt([*map(tirx.AllocBuffer, buffers), remade(loop, body=body)])


def _branches(store: tirx.BufferStore, loop: tirx.For) -> list[tirx.BufferStore] | None:
    """Return the stores of either value where a condition that all lanes share chooses one.

    What a condition guards is computed behind it: statements of its own are, too.
    """
    value = store.value
    if not is_if(value) or uses_any(value.args[0], _varying(loop)):
        return None
    return [tirx.BufferStore(store.buffer, each, store.indices) for each in value.args[1:]]


def _apart_alone(store: tirx.BufferStore, split: Split) -> tirx.Stmt:
    """Do so in no vector loop: its tail may be one element, and scalars are as slow to simplify."""
    buffers: list[tirx.Buffer] = []
    parted = split(store, 1, tirx.IntImm("int32", 0), buffers)
    return tirx.SeqStmt([*map(tirx.AllocBuffer, buffers), parted]) if buffers else store


def _split_store(
    store: tirx.BufferStore,
    extent: tirx.Expr | int,
    lane: tirx.Expr,
    buffers: list[tirx.Buffer],
) -> tirx.Stmt:
    calls = collect(store.value, ir.Call)
    known = [call for call in calls if _is_replaced(call)]
    several = len(known) > 1 and len(set(known) - _guarded(calls)) > 1
    taken: list[tuple[ir.Call, tirx.Buffer]] = []

    def take(call: ir.Call) -> Expr:
        if call not in found:
            return call
        # The sigmoid of x sigmoid(x) has x twice.
        known = [buffer for old, buffer in taken if tvm_ffi.structural_equal(old, call)]
        buffer = known[0] if known else tirx.decl_buffer((extent,), "float32", "value")
        if not known:
            taken.append((call, buffer))
        return tirx.BufferLoad(buffer, [lane])

    # Operands before the calls that use them.
    value = store.value
    while found := _innermost(_to_be_apart(calls, several)):
        value = tvm_ffi.structural_map(value, [(ir.Call, take)])
        calls = collect(value, ir.Call)
    if not taken:
        return store
    buffers += [buffer for _, buffer in taken]
    parts = [tirx.BufferStore(buffer, call, [lane]) for call, buffer in taken]
    return tirx.SeqStmt([*parts, tirx.BufferStore(store.buffer, value, store.indices)])


def _to_be_apart(calls: list[ir.Call], several: bool) -> set[ir.Call]:
    """Return the calls of an expression that get statements of their own.

    Functions that are replaced, where there are several, and of other calls those inside of another
    one that holds something to be named, such as the first of two roundings: TVM's pass that makes
    vectors comes to such names twice, and refuses them then.
    """
    if len(calls) < 2:
        return set()
    found = {call for call in calls if several and _is_replaced(call)}
    for outer in calls:
        if not _is_replaced(outer) and _names_something(outer):
            inner = {call for arg in outer.args for call in collect(arg, ir.Call)}
            found |= {c for c in inner if str(c.ty) == "float32" and not _is_replaced(c)}
    # What a condition guards must stay behind it; a function of the choice need not.
    return found - _guarded(calls) if found else found


def _names_something(call: ir.Call) -> bool:
    operands = [node for arg in call.args for node in collect(arg, (ir.Call, tirx.Div))]
    return any(isinstance(node, tirx.Div) or _is_replaced(node) for node in operands)


def _innermost(calls: set[ir.Call]) -> set[ir.Call]:
    """Return those of some calls that have none of them in their operands."""
    return {
        call
        for call in calls
        if calls.isdisjoint(inner for arg in call.args for inner in collect(arg, ir.Call))
    }


def _guarded(calls: list[ir.Call]) -> set[ir.Call]:
    """Return the calls inside a branch of an `if_then_else`."""
    branches = (branch for call in calls if is_if(call) for branch in call.args[1:])
    return {call for branch in branches for call in collect(branch, ir.Call)}
