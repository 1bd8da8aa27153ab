"""Kernels of the default rule that compute any number of rows, one after the other.

Where each row of the result follows from the same row of the operands, in the same way for all,
the kernel of one row serves every number of them. That it does so is read off the loops: one
spatial loop over the rows, whose variable indexes nothing but rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.target import Target

from tvm_blislike.errors import SizesMeetError
from tvm_blislike.hardware import Core
from tvm_blislike.model.marks import DEFAULT_RULE
from tvm_blislike.schedules.default.rule import DefaultCPU
from tvm_blislike.schedules.lowering.rewrite import collect, innermost, substitute
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED


def by_rows(funcs: Sequence[tirx.PrimFunc], core: Core, threads: int) -> tirx.PrimFunc:
    """Return the kernel of any number of rows.

    Parameters
    ----------
    funcs : sequence of tirx.PrimFunc
        The kernel at two sizes, not scheduled.

    Raises
    ------
    SizesMeetError
        When rows do not stay apart.
    """
    count = _rows(funcs)
    axes = [_axis(param, count) for param in funcs[0].params]
    for block in innermost(funcs[0]):
        _require_apart(block, count)
    scheduled = _of_one_row(funcs[0], count, core)
    return _over_rows(scheduled, axes, threads)


def _rows(funcs: Sequence[tirx.PrimFunc]) -> int:
    """Return the rows of the first function: the only number that differs."""
    first, second = ([int(i.value) for i in collect(f, tirx.IntImm)] for f in funcs)
    if len(first) != len(second):
        raise SizesMeetError("its loops are others at another size")
    pairs = {(one, other) for one, other in zip(first, second, strict=True)}
    differing = {one for one, other in pairs if one != other}
    if len(differing) != 1:
        raise SizesMeetError("its loops go over several sizes that follow from the open one")
    (count,) = differing
    if (count, count) in pairs:
        raise SizesMeetError("a constant of it equals a size")
    return count


def _axis(param: Any, count: int) -> int:
    """Return the axis of the rows, the first of more than one element; -1 for none."""
    shape = [int(size) for size in param.shape]
    found = [axis for axis, size in enumerate(shape) if size == count]
    if not found:
        return -1
    if len(found) > 1 or any(size != 1 for size in shape[: found[0]]):
        raise SizesMeetError("rows are not the outermost axis of a tensor")
    return found[0]


def _require_apart(block: s_tir.SBlock, count: int) -> None:
    rows = [each for each in block.iter_vars if int(each.dom.extent) == count]
    if len(rows) != 1 or rows[0].iter_type != tirx.IterVar.DataPar:
        raise SizesMeetError("it goes along the open size, or along two axes of it")
    var, analyzer = rows[0].var, sym.Analyzer()
    for each in block.iter_vars:
        analyzer.bind(each.var, each.dom)
    parts = [block.body, *([block.init] if block.init is not None else [])]
    accesses = [a for part in parts for a in collect(part, (ir.TensorLoad, tirx.BufferStore))]
    indexing = 0
    for access in accesses:
        buffer = access.source if isinstance(access, ir.TensorLoad) else access.buffer
        for size, index in zip(buffer.shape, access.indices, strict=True):
            is_row = int(size) == count and analyzer.simplify(index).same_as(var)
            uses = _own_uses(index if is_row else analyzer.simplify(index), var)
            if not is_row and (uses or int(size) == count):
                raise SizesMeetError("it brings rows together")
            indexing += _own_uses(index, var)
    if indexing != sum(collect(part, tirx.Var).count(var) for part in parts):
        raise SizesMeetError("what it computes depends on the place of a row")


def _own_uses(index: Any, var: tirx.Var) -> int:
    """Return how often an index has a variable, but for the indices of what it loads."""
    zero = tirx.IntImm("int32", 0)

    def without(load: ir.TensorLoad) -> Any:
        return tirx.Cast(str(load.ty), zero)

    plain = tvm_ffi.structural_map(index, [(ir.TensorLoad, without)])
    return collect(plain, tirx.Var).count(var)


def _of_one_row(func: tirx.PrimFunc, count: int, core: Core) -> tirx.PrimFunc:
    """Return the kernel of one row, as one thread computes it."""

    def fewer(number: tirx.IntImm) -> tirx.IntImm:
        return tirx.IntImm(str(number.ty), 1) if int(number.value) == count else number

    one = tvm_ffi.structural_map(func, [(tirx.IntImm, fewer)])
    target = Target(core.target_config(1))
    with target:
        sch = DefaultCPU(core).apply(one.with_attr("global_symbol", "main"), target, False)
    return sch.mod["main"].without_attr("global_symbol")


def _over_rows(func: tirx.PrimFunc, axes: Sequence[int], threads: int) -> tirx.PrimFunc:
    """Return the function that computes one row after the other."""
    rows, row = tirx.Var("rows", "int32"), tirx.Var("row", "int32")
    params, parts, declared, inner = [], {}, [], func.body.block
    for param, axis in zip(func.params, axes, strict=True):
        if axis < 0:
            params.append(param)
            continue
        shape = [rows if place == axis else int(size) for place, size in enumerate(param.shape)]
        whole = tirx.decl_buffer(shape, param.dtype, param.name)
        first = row * math.prod(int(size) for size in param.shape)
        params.append(whole)
        # Flat views that the rule made of a parameter begin at the row as well.
        views = [d.buffer for d in collect(inner.body, tirx.DeclBuffer) if _is_of(d, param)]
        for buffer in (param, *views):
            parts[buffer] = _at(buffer, whole, first)
            declared.append(tirx.DeclBuffer(parts[buffer], data=whole.data))

    def dropped(declaration: tirx.DeclBuffer) -> tirx.Stmt:
        return tirx.Evaluate(0) if declaration.buffer in parts else declaration

    body = tvm_ffi.structural_map(inner.body, [(tirx.DeclBuffer, dropped)])
    body = substitute(body, parts)
    block = s_tir.SBlock([], [], [], "row", body, None, inner.alloc_buffers, None, {})
    nested = tirx.SeqStmt([*declared, s_tir.SBlockRealize([], True, block)])
    kind = tirx.ForKind.PARALLEL if threads > 1 else tirx.ForKind.SERIAL
    loop = tirx.For(row, tirx.IntImm("int32", 0), rows, kind, nested)
    root = s_tir.SBlock([], [], [], "root", loop)
    rule = f"{func.attrs[DEFAULT_RULE]}, row by row"
    result = tirx.PrimFunc(params, s_tir.SBlockRealize([], True, root), func.ret_type, func.attrs)
    return result.with_attr({DEFAULT_RULE: rule, **IS_SCHEDULED})


def _is_of(declaration: tirx.DeclBuffer, param: Any) -> bool:
    """Whether a view lies in the memory of a parameter."""
    return tvm_ffi.structural_equal(declaration.data, param.data)


def _at(buffer: Any, whole: Any, first: Any) -> Any:
    """Return a buffer like another one, in the memory of a whole tensor from an element on."""
    shape = [int(size) for size in buffer.shape]
    return tirx.decl_buffer(shape, buffer.dtype, buffer.name, data=whole.data, elem_offset=first)
