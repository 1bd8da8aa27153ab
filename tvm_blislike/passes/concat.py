"""Concatenation without a copy: its parts are computed where they will lie in the result.

Where everything before the concatenated axis has extent one (blocks of channels of a single
image, or a batch), each part is one piece of the result's memory. The kernel that computes it then
gets that piece as its output, and the concatenation itself disappears. Anything else is
concatenated by a kernel: channels of NHWC images, and blocks of channels of several images.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, s_tir, te, tirx, topi

from tvm_blislike.model.marks import CANVAS, CONCAT
from tvm_blislike.schedules.default.rule import DefaultCPU
from tvm_blislike.tvm_seams import (
    attributes,
    bindings,
    dtype_name,
    functions,
    op_name,
    static_shape,
)

# Tensors of the runtime begin at multiples of this (`TVM_KALLOC_ALIGNMENT`); a piece that does
# not would be copied by `ensure_zero_offset`.
_ALIGNMENT_BYTES = 64


def lower_concat(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Return the TE definition of a concatenation that may become one without copies.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to add the kernel.
    call : relax.Call
        `relax.concat`.

    Returns
    -------
    relax.Expr or None
        None where a kernel has to concatenate: it is then fused with what follows.
    """
    parts = parts_of(call)
    if not parts or not are_pieces([static_shape(part) for part in parts], call):
        return None
    axis = _axis_of(call)
    note = {CONCAT: axis, **attributes.NEVER_FUSED}
    return builder.call_te(
        lambda *tensors: topi.concatenate(tensors, axis),
        *parts,
        primfunc_name_hint="concatenate",
        primfunc_attrs=note,
    )


def parts_of(call: relax.Call) -> list[relax.Expr]:
    """Return what a `relax.concat` joins, if it is several tensors of known sizes, else none."""
    parts = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    return [] if len(parts) < 2 or any(static_shape(p) is None for p in parts) else parts


def _axis_of(call: relax.Call) -> int:
    return int(call.attrs.axis or 0) % len(static_shape(call))


def are_pieces(shapes: Sequence[tuple[int, ...]], call: relax.Call) -> bool:
    """Whether parts of these shapes are each an aligned piece of the result's memory.

    Parameters
    ----------
    call : relax.Call
        `relax.concat` of them, or of as many images more.
    """
    axis, dtype = _axis_of(call), dtype_name(call)
    leading = {extent for shape in shapes for extent in shape[:axis]}
    sizes = [_bytes(shape, dtype) for shape in shapes]
    return leading <= {1} and all(size and size % _ALIGNMENT_BYTES == 0 for size in sizes[:-1])


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * tvm.DataType(dtype).itemsize


@tvm.transform.module_pass(opt_level=0, name="blislike.ConcatInPlace")
def concat_in_place(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Let the kernels before a concatenation write into its result.

    It runs after `CallTIRRewrite`, when every kernel's output is an allocation of its own, and
    before memory is planned: the planner knows that a view keeps the viewed tensor alive.
    """
    if not any(func.attrs and CONCAT in func.attrs for _, func in mod.functions_items()):
        return mod
    result = mod.clone()
    for gvar, func in functions(mod):
        line = _Function(result, func)  # names of earlier copies are taken
        result.update_func(gvar, line.rewritten())
        for name, kernel in line.copies.items():
            result.update_func(name, kernel)
    return result


@dataclass(frozen=True)
class _Piece:
    """Where a part of a concatenation lies.

    Parameters
    ----------
    part : relax.Var
        What is concatenated.
    host : relax.Var
        Allocation of the result.
    offset : int
        Bytes from its beginning.
    """

    part: relax.Var
    host: relax.Var
    offset: int


class _Function:
    """The straight line of one Relax function: who allocates, who concatenates."""

    def __init__(self, mod: tvm.IRModule, func: relax.Function) -> None:
        self.mod, self.func = mod, func
        blocks = func.body.blocks if isinstance(func.body, relax.SeqExpr) else []
        self.bindings = list(itertools.chain.from_iterable(block.bindings for block in blocks))
        self.values = {b.var: b.value for b in bindings(func)}
        self.builder = relax.BlockBuilder(mod)
        # Kernels for parts that cannot be computed in place: constants, arguments of the model,
        # parts of two results.
        self.copies: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
        self.in_place: dict[relax.Var, _Piece] = {}
        self.allocated: set[relax.Var] = set()

    def rewritten(self) -> relax.Function:
        """Return the function without the concatenations of whole pieces."""
        concats = {
            binding: self._pieces(binding.value)
            # The last one first: its result may hold those of earlier ones.
            for binding in reversed(self.bindings)
            if self._is_concat(binding.value)
        }
        if not concats:
            return self.func
        emitted: list[relax.Binding] = []
        for binding in self.bindings:
            if binding in concats:
                emitted += self._copied(concats[binding])
            elif self._is_allocation(binding.var):
                emitted += self._allocated(binding.var)
            else:
                emitted.append(binding)
        body = relax.SeqExpr([relax.BindingBlock(emitted)], self.func.body.body)
        func = self.func
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)

    def _pieces(self, call: relax.Call) -> list[_Piece]:
        """Return the parts of a concatenation that must be copied; note the others' places."""
        *parts, result = call.args
        if CANVAS in self.mod[call.op].attrs:
            parts.pop()  # The extents of images.
        host = self._root(result)
        sizes = [_bytes(static_shape(part), dtype_name(part)) for part in parts]
        left = []
        for part, offset in zip(parts, itertools.accumulate(sizes, initial=0), strict=False):
            root = self._root(part)
            piece = _Piece(part, host, offset)
            if root is None or root in self.in_place:
                left.append(piece)
            else:
                self.in_place[root] = piece
        return left

    def _is_concat(self, value: relax.Expr) -> bool:
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.GlobalVar):
            return False
        attrs = self.mod[value.op].attrs
        return attrs is not None and CONCAT in attrs

    def _is_allocation(self, var: relax.Var) -> bool:
        return op_name(self.values.get(var)) == "relax.builtin.alloc_tensor"

    def _root(self, var: relax.Expr) -> relax.Var | None:
        """Return the allocation behind a variable, through other names and reshapes."""
        while isinstance(var, relax.Var) and not self._is_allocation(var):
            value = self.values.get(var)
            var = value.args[0] if op_name(value) == "relax.reshape" else value
        return var if isinstance(var, relax.Var) else None

    def _allocated(self, var: relax.Var) -> list[relax.Binding]:
        """Return the bindings that give an allocation its memory, that of its host first."""
        if var in self.allocated:
            return []
        self.allocated.add(var)
        if var not in self.in_place:
            return [relax.VarBinding(var, self.values[var])]
        piece = self.in_place[var]
        return [*self._allocated(piece.host), *self._view(var, piece)]

    def _view(self, var: relax.Var, piece: _Piece) -> list[relax.Binding]:
        """Return the bindings that make a variable the tensor of a piece."""
        shape, dtype = relax.ShapeExpr(static_shape(var)), dtype_name(var)
        memory = relax.op.memory
        view = self.builder.normalize(memory.view(piece.host, shape, dtype, piece.offset))
        at = relax.Var(f"{var.name}_view", view.ty)
        # Kernels take tensors without an offset: the runtime moves the pointer instead.
        aligned = self.builder.normalize(memory.ensure_zero_offset(at))
        return [relax.VarBinding(at, view), relax.VarBinding(var, aligned)]

    def _copied(self, pieces: list[_Piece]) -> list[relax.Binding]:
        """Return the bindings that copy parts to their places."""
        result: list[relax.Binding] = []
        for piece in pieces:
            target = relax.Var("piece", piece.part.ty)
            call = relax.Call(self._copy_kernel(piece.part), [piece.part, target])
            nothing = relax.Var("_", relax.TupleType([]))
            result += [*self._view(target, piece), relax.VarBinding(nothing, call)]
        return result

    def _copy_kernel(self, part: relax.Expr) -> tvm.ir.GlobalVar:
        source = te.placeholder(static_shape(part), dtype_name(part), name="part")
        target = te.compute(source.shape, lambda *i: source(*i), name="piece")
        func = te.create_prim_func([source, target]).with_attr(attributes.NO_ALIAS)
        scheduled = s_tir.dlight.ApplyDefaultSchedule(DefaultCPU())(tvm.IRModule({"copy": func}))
        gvar = self.builder.add_func(scheduled["copy"], "copy")
        self.copies[gvar] = self.builder.get()[gvar]
        return gvar
