"""Values of bfloat16 become words of 16 bits: the upper halves of fp32.

TVM keeps what a function allocates as bfloat16 in fp32, which micro-kernels cannot read, and makes
vectors of it others before LLVM sees them. So nothing is left of the type but the parameters of
functions: what is loaded from those is taken for words, memory of a function's own holds words, and
a conversion to fp32 is a shift. One from fp32 rounds to the nearest, ties to even ones, and keeps
what is no number: an instruction where the core has one (`vcvtneps2bf16`), else additions.
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes  # noqa: F401  names bfloat16 for NumPy
import numpy as np
import tvm_ffi
from tvm import ir, tirx

from tvm_blislike.schedules.lowering.rewrite import collect, has_feature, is_if

_TYPE = re.compile(r"bfloat16(?P<lanes>x\d+)?")
_SYMBOL = re.compile(r"blislike_bfloat16_of_(?P<lanes>\d+)(?P<plain>_plain)?")
# LLVM's name of the extension with the instruction on x86.
_INSTRUCTION = "avx512bf16"
_POINTER = ir.Op.get("tirx.tvm_access_ptr")
_REINTERPRET = ir.Op.get("tirx.reinterpret")
_TWO_VALUES = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


def of_bfloat16(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace values of bfloat16 in a function whose vectors are written out.

    Parameters
    ----------
    func : PrimFunc
        Below the level of blocks. Its parameters keep their types.
    """
    buffers = [alloc.buffer for alloc in collect(func.body, tirx.AllocBuffer)]
    own = {buffer: _like(buffer) for buffer in buffers if _is_one(buffer)}
    if not own and not any(map(_is_one, func.params)):
        return func
    return func.with_body(_Words(own, has_feature(func, _INSTRUCTION)).without(func.body))


def _like(buffer: Any) -> Any:
    """Return a buffer of words whose rows are as far apart."""
    strides, alignment = list(buffer.strides) or None, buffer.data_alignment
    name, shape = buffer.name, buffer.shape
    return tirx.decl_buffer(shape, "uint16", name, strides=strides, data_alignment=alignment)


def source(symbol: str) -> str:
    """Return the function of LLVM that rounds, "" when the name is none of these."""
    found = _SYMBOL.fullmatch(symbol)
    if found is None:
        return ""
    of = f"<{found['lanes']} x {{}}>" if int(found["lanes"]) > 1 else "{}"
    single, double, half, flags = map(of.format, ("float", "i32", "i16", "i1"))
    head = f"define linkonce_odr {half} @{symbol}({single} %x) alwaysinline nounwind {{\n"
    if not found["plain"]:
        narrow = of.format("bfloat")
        lines = (f"%n = fptrunc {single} %x to {narrow}", f"%r = bitcast {narrow} %n to {half}")
    else:

        def every(value: int) -> str:
            return f"splat (i32 {value})" if int(found["lanes"]) > 1 else str(value)

        lines = (
            f"%b = bitcast {single} %x to {double}",
            f"%u = lshr {double} %b, {every(16)}",
            f"%o = and {double} %u, {every(1)}",
            f"%h = add {double} %b, {every(0x7FFF)}",
            f"%s = add {double} %h, %o",
            # Its upper half may hold no digit that is not 0: one that says that it is no number.
            f"%q = or {double} %b, {every(1 << 22)}",
            f"%w = fcmp uno {single} %x, %x",
            f"%c = select {flags} %w, {double} %q, {double} %s",
            f"%t = lshr {double} %c, {every(16)}",
            f"%r = trunc {double} %t to {half}",
        )
    return head + "".join(f"  {line}\n" for line in lines) + f"  ret {half} %r\n}}\n"


def _is_one(value: Any) -> bool:
    """Whether a buffer, a parameter or a value is of the type."""
    return _TYPE.fullmatch(str(getattr(value, "dtype", None) or value.ty)) is not None


def _of(dtype: str, like: Any) -> str:
    """Return a type with as many lanes as a value."""
    lanes = re.search(r"x\d+$", str(like.ty))
    return dtype + (lanes[0] if lanes else "")


class _Words:
    """Rewrites what takes values of the type: conversions, stores, comparisons, addresses."""

    def __init__(self, own: dict[Any, Any], rounds: bool) -> None:
        self.own, self.rounds = own, rounds

    def without(self, node: Any) -> Any:
        """Return a statement, or an expression of another type, without such values."""
        changes = [
            (tirx.AllocBuffer, self._allocation),
            (tirx.BufferStore, self._store),
            (tirx.Cast, self._conversion),
            (ir.Call, self._call),
            (_COMPARISONS, self._comparison),
        ]
        return tvm_ffi.structural_map(node, changes, order="pre")

    def _allocation(self, alloc: tirx.AllocBuffer) -> tirx.Stmt:
        words = self.own.get(alloc.buffer)
        return alloc if words is None else tirx.AllocBuffer(words, alloc.annotations)

    def _store(self, store: tirx.BufferStore) -> tirx.Stmt:
        own = self.own.get(store.buffer)
        if not _is_one(store.buffer) or (own is None and _is_wrapped(store.value)):
            return store
        word = self._word(store.value)
        if own is not None:
            return tirx.BufferStore(own, word, store.indices)
        value = tirx.reinterpret(_of("bfloat16", word), word)
        return tirx.BufferStore(store.buffer, value, store.indices)

    def _conversion(self, cast: tirx.Cast) -> Any:
        if not _is_one(cast.value):
            return cast
        wide = self._wide(cast.value)
        return wide if str(cast.ty) == str(wide.ty) else tirx.Cast(str(cast.ty), wide)

    def _call(self, call: ir.Call) -> Any:
        if call.op.same_as(_REINTERPRET) and _is_one(call.args[0]) and not _is_loaded(call):
            return tirx.reinterpret(str(call.ty), self._word(call.args[0]))
        if call.op.same_as(_POINTER):
            return self._pointer(call)
        return call

    def _comparison(self, node: Any) -> Any:
        return type(node)(*map(self._wide, (node.a, node.b))) if _is_one(node.a) else node

    def _pointer(self, call: ir.Call) -> Any:
        """Return an address in words; TVM does not find its way in those of bfloat16."""
        buffer, offset = call.args[1].args[0], call.args[2]
        if buffer in self.own:
            return self.own[buffer].access_ptr("rw", offset=offset)
        if not _is_one(buffer):
            return call
        first = [*[0] * (len(buffer.shape) - 1), offset]
        return tirx.address_of(tirx.BufferLoad(buffer, first))

    def _wide(self, value: Any) -> Any:
        """Return a value in fp32."""
        if isinstance(value, tirx.FloatImm):
            return tirx.const(value.value, "float32")
        if isinstance(value, _TWO_VALUES):
            return type(value)(self._wide(value.a), self._wide(value.b))
        word = self._word(value)
        bits = tirx.Cast(_of("uint32", word), word)
        sixteen = tirx.const(16, "uint32")
        if str(bits.ty) != "uint32":
            sixteen = tirx.Broadcast(sixteen, int(str(bits.ty).partition("x")[2]))
        return tirx.reinterpret(_of("float32", word), tirx.shift_left(bits, sixteen))

    def _word(self, value: Any) -> Any:
        """Return the bits of a value."""
        if isinstance(value, ir.TensorLoad):
            if value.source in self.own:
                return tirx.BufferLoad(self.own[value.source], value.indices)
            return tirx.reinterpret(_of("uint16", value), value)
        if isinstance(value, tirx.FloatImm):
            bits = np.array(value.value, "bfloat16").view(np.uint16)
            return tirx.const(int(bits), "uint16")
        if isinstance(value, tirx.Broadcast):
            return tirx.Broadcast(self._word(value.value), value.lanes)
        if isinstance(value, tirx.Select):
            arms = map(self._word, (value.true_value, value.false_value))
            return tirx.Select(self.without(value.condition), *arms)
        if is_if(value):
            condition, *arms = value.args
            return tirx.if_then_else(self.without(condition), *map(self._word, arms))
        if isinstance(value, tirx.Let):
            return tirx.Let(value.var, self.without(value.value), self._word(value.body))
        if isinstance(value, tirx.Cast):
            return self._rounded(self.without(value.value))
        if isinstance(value, _TWO_VALUES):
            return self._rounded(self._wide(value))
        if isinstance(value, ir.Call) and value.op.same_as(_REINTERPRET):
            bits = self.without(value.args[0])
            words = _of("uint16", value)
            return bits if str(bits.ty) == words else tirx.reinterpret(words, bits)
        raise TypeError(f"no words for {type(value).__name__} of bfloat16: {value}")

    def _rounded(self, value: Any) -> Any:
        single = _of("float32", value)
        value = value if str(value.ty) == single else tirx.Cast(single, value)
        lanes = single.partition("x")[2] or "1"
        name = f"blislike_bfloat16_of_{lanes}{'' if self.rounds else '_plain'}"
        return tirx.call_pure_extern(_of("uint16", value), name, value)


def _is_wrapped(value: Any) -> bool:
    """Whether a stored value is words already."""
    return (
        isinstance(value, ir.Call) and value.op.same_as(_REINTERPRET) and not _is_one(value.args[0])
    )


def _is_loaded(call: ir.Call) -> bool:
    """Whether a reinterpretation takes a parameter's element for a word already."""
    return isinstance(call.args[0], ir.TensorLoad) and str(call.ty).startswith("uint16")
