"""Relax operators between numbers and words of signs, and what they are lowered to.

A code says by its bits which comparisons of a number with another one hold: a byte for each
element, so that it is stored by the kernel of the layer that made the number. A word holds one bit
of the codes of 32 channels.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx

from tvm_blislike.microkernels.products import multiplied
from tvm_blislike.model.marks import CODES_OF_SIGNS, DEFAULT_RULE, WORDS_OF_SIGNS
from tvm_blislike.model.types import BITS, Types
from tvm_blislike.operators.operator import WORD
from tvm_blislike.passes.binary.packing import packed_last
from tvm_blislike.tvm_seams import dtype_name, op_name, static_shape
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED, NEVER_FUSED
from tvm_blislike.tvm_seams.own_operators import called, declared

# What comparisons say of a number below, equal to, above another one, and of what is no number.
COMPARISONS: dict[str, tuple[bool, bool, bool, bool]] = {
    "below": (True, False, False, False),
    "up_to": (True, True, False, False),
    "from": (False, True, True, False),
    "above": (False, False, True, False),
}
# Bit 0 of a code where a number is below, bit 1 where it is above.
BOTH = "below_above"
CODES = tuple(f"{CODES_OF_SIGNS}{name}" for name in (*COMPARISONS, BOTH))


def _codes_type(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(static_shape(call.args[0]), "uint8")


def _words_type(call: relax.Call) -> relax.TensorType:
    shape, axis, planes = [*static_shape(call.args[0])], _number(call, 1), _number(call, 2)
    shape[axis] = planes * -(-shape[axis] // WORD)
    return relax.TensorType(shape, BITS.a)


def _number(call: relax.Call, argument: int) -> int:
    return int(call.args[argument].value)


_CODES = {
    name: declared(name, "Comparisons of a tensor with a constant, bits of bytes.", _codes_type)
    for name in CODES
}
_WORDS = declared(WORDS_OF_SIGNS, "Bits of the codes of 32 channels as words.", _words_type)


def codes(comparison: str, x: relax.Expr, other: relax.Expr) -> relax.Call:
    """Return the codes of a comparison, or of `BOTH`, with a constant that broadcasts."""
    return called(_CODES[f"{CODES_OF_SIGNS}{comparison}"], [x, other])


def words(x: relax.Expr, axis: int, planes: int) -> relax.Call:
    """Return words of codes along an axis: all of their bit 0, then of the other `planes`."""
    return called(_WORDS, [x, tirx.IntImm("int64", axis), tirx.IntImm("int64", planes)])


def words_along(call: relax.Call, source: relax.Expr, axis: int) -> relax.Call:
    """Return a call of `words` on codes whose channels are along another axis."""
    return words(source, axis, _number(call, 2))


# --- lowering --------------------------------------------------------------------------------


def lower_codes(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return the TE definition of codes."""
    name = op_name(call).removeprefix(CODES_OF_SIGNS)
    return builder.call_te(_codes_te, *call.args, name, primfunc_name_hint="sign_codes")


def _codes_te(x: te.Tensor, other: te.Tensor, name: str) -> te.Tensor:
    missing = len(x.shape) - len(other.shape)
    parts = ("below", "above") if name == BOTH else (name,)

    def value(*at: Any) -> Any:
        place = (0 if int(e) == 1 else i for i, e in zip(at[missing:], other.shape, strict=True))
        one, two = x(*at), other(*place)
        bits = (_HOLDS[part](one, two) for part in parts)
        found = [tirx.Select(bit, _byte(1 << n), _byte(0)) for n, bit in enumerate(bits)]
        return found[0] + found[1] if name == BOTH else found[0]

    return te.compute(x.shape, value, name="codes")


_HOLDS = {
    "below": lambda one, other: one < other,
    "up_to": lambda one, other: one <= other,
    "from": lambda one, other: one >= other,
    "above": lambda one, other: one > other,
}


def _byte(number: int) -> Any:
    return tirx.const(number, "uint8")


def lower_words(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return the call of the kernel of words, or their TE definition where channels lie apart."""
    data, axis, planes = call.args[0], _number(call, 1), _number(call, 2)
    shape = static_shape(data)
    if axis < len(shape) - 1:
        return builder.call_te(_words_te, data, axis, planes, primfunc_name_hint="pack_signs")
    func = packed_last(math.prod(shape[:-1]), shape[-1], planes)
    func = func.without_attr("global_symbol")
    func = func.with_attr({**IS_SCHEDULED, **NEVER_FUSED, DEFAULT_RULE: "words of signs"})
    gvar = builder.add_func(func, "pack_signs")
    rows = builder.emit(relax.op.reshape(data, (math.prod(shape[:-1]), shape[-1])))
    made = (int(func.params[-1].shape[0]), int(func.params[-1].shape[1]))
    result = builder.emit(relax.call_tir(gvar, [rows], relax.TensorType(made, BITS.a)))
    return relax.op.reshape(result, _words_type(call).shape)


def _words_te(x: te.Tensor, axis: int, planes: int) -> te.Tensor:
    shape, channels = [*x.shape], int(x.shape[axis])
    each = -(-channels // WORD)
    shape[axis] = planes * each

    def value(*at: Any) -> Any:
        plane, first = at[axis] // each, at[axis] % each * WORD

        def bit(number: int) -> Any:
            code = x(*at[:axis], first + number, *at[axis + 1 :]).astype(BITS.a)
            found = ((code >> plane.astype(BITS.a)) & 1) << tirx.const(number, BITS.a)
            inside = number < channels % WORD or channels % WORD == 0
            if inside:
                return found
            return tirx.if_then_else(first + number < channels, found, tirx.const(0, BITS.a))

        return sum((bit(number) for number in range(1, WORD)), bit(0))

    return te.compute(shape, value, name="words")


def lower_product(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Return a plain definition of a layer of words that no implementation computes.

    TVM's own would multiply the words. None for a layer of anything else.
    """
    if Types(*map(dtype_name, (*call.args, call)), "int32").product != BITS.product:
        return None
    if op_name(call) == "relax.matmul":
        return builder.call_te(_product_te, *call.args, primfunc_name_hint="matmul")
    attrs = call.attrs
    steps = [[int(v) for v in values] for values in (attrs.strides, attrs.dilation, attrs.padding)]
    groups, shape = int(attrs.groups), static_shape(call)
    return builder.call_te(
        _convolution_te, *call.args, *steps, groups, shape, primfunc_name_hint="conv2d"
    )


def _product_te(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, a.shape[-1]), "k")

    def value(*at: Any) -> Any:
        of_b = (*at[:-2], k, at[-1]) if len(b.shape) > 2 else (k, at[-1])
        return te.sum(multiplied(BITS, a(*at[:-1], k), b(*of_b)), axis=k)

    return te.compute((*a.shape[:-1], b.shape[-1]), value, name="matmul")


def _convolution_te(
    x: te.Tensor,
    weights: te.Tensor,
    strides: list[int],
    dilation: list[int],
    padding: list[int],
    groups: int,
    shape: tuple[int, ...],
) -> te.Tensor:
    _, _, h, w = (int(extent) for extent in x.shape)
    co, ci, kh, kw = (int(extent) for extent in weights.shape)
    axes = [te.reduce_axis((0, extent), name) for extent, name in ((ci, "c"), (kh, "y"), (kw, "x"))]
    c, ry, rx = axes

    def value(n: Any, o: Any, oy: Any, ox: Any) -> Any:
        y = oy * strides[0] + ry * dilation[0] - padding[0]
        at = ox * strides[1] + rx * dilation[1] - padding[1]
        inside = tirx.all(y >= 0, y < h, at >= 0, at < w)
        pixel = x[n, o // (co // groups) * ci + c, y, at]
        pixel = tirx.if_then_else(inside, pixel, tirx.const(0, BITS.a))
        return te.sum(multiplied(BITS, pixel, weights[o, c, ry, rx]), axis=axes)

    return te.compute(shape, value, name="conv2d")
