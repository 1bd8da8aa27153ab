"""Products that no pass of ours has seen: PrimFuncs of `te.compute` or of TVM's legalization.

Such a function takes B as it is, so packing is a part of each call. A schedule of the original
function says by an annotation which configuration takes its place when it is built (`finish`).
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, te, tirx

from tvm_blislike.model.config import Config
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.schedules import get_implementation
from tvm_blislike.schedules.common import root_block
from tvm_blislike.schedules.lowering.rewrite import collect

# Ranks of A and B; a matrix B serves all of a batch.
_RANKS = ((2, 2), (3, 2), (3, 3))


def product_of(func: tirx.PrimFunc) -> GemmWorkload | None:
    """Return the workload of a function (A, B, C) that is a plain product, None for any other."""
    if len(func.params) != 3:
        return None
    a, b, c = (_shape(param) for param in func.params)
    if a is None or b is None or (len(a), len(b)) not in _RANKS or a[-1] != b[-2]:
        return None
    if c != (*a[:-1], b[-1]) or (len(b) == 3 and a[0] != b[0]):
        return None
    dtypes = {str(param.dtype) for param in func.params}
    if len(dtypes) != 1 or not _same(func, _product(a, b, *dtypes)):
        return None
    batch = a[0] if len(a) == 3 else 1
    return GemmWorkload(a[-2], b[-1], a[-1], batch, Types.of(*dtypes), constant_b=False)


def sums_windows(sch: s_tir.Schedule) -> bool:
    """Whether a function sums products over several axes, as convolutions do."""
    blocks = map(sch.get, sch.get_child_blocks(root_block(sch)))
    return any(_reduced_axes(block) > 1 and _multiplies(block.body) for block in blocks)


def _reduced_axes(block: Any) -> int:
    return sum(var.iter_type == tirx.IterVar.CommReduce for var in block.iter_vars)


def _multiplies(body: tirx.Stmt) -> bool:
    """Whether values of two tensors are multiplied."""
    factors = ((product.a, product.b) for product in collect(body, tirx.Mul))
    return any(all(isinstance(x, ir.TensorLoad) for x in pair) for pair in factors)


def replaced(func: tirx.PrimFunc, workload: GemmWorkload, config: Config) -> tirx.PrimFunc:
    """Return the function with what a configuration computes in its place, not yet scheduled."""
    implementation = get_implementation(config.implementation)
    a, b = (
        te.placeholder(_shape(param), str(param.dtype), name=name)
        for param, name in zip(func.params[:2], "ab", strict=True)
    )
    packed = implementation.pack_te(workload, config, b)
    return te.create_prim_func([a, b, implementation.compute(workload, config, a, packed)])


def _shape(param: Any) -> tuple[int, ...] | None:
    """Return the shape of a parameter, None where it is no tensor of known shape."""
    shape = getattr(param, "shape", None)
    if shape is None or not all(isinstance(extent, tirx.IntImm) for extent in shape):
        return None
    return tuple(int(extent) for extent in shape)


def _product(a: tuple[int, ...], b: tuple[int, ...], dtype: str) -> tirx.PrimFunc:
    left, right = (te.placeholder(shape, dtype) for shape in (a, b))
    k = te.reduce_axis((0, a[-1]), "k")

    def value(*at: Any) -> Any:
        of_batch = at[:1] if len(b) == 3 else ()
        return te.sum(left[(*at[:-1], k)] * right[(*of_batch, k, at[-1])], axis=k)

    return te.create_prim_func([left, right, te.compute((*a[:-1], b[-1]), value)])


def _same(func: tirx.PrimFunc, other: tirx.PrimFunc) -> bool:
    """Whether two functions have the same body, whatever their names, attributes and indices."""
    bare = [tirx.PrimFunc(f.params, f.body, f.ret_type) for f in (func, other)]
    narrow = tirx.transform.ForceNarrowIndexToInt32()
    ours, theirs = (narrow(tvm.IRModule({"main": f}))["main"] for f in bare)
    return tvm_ffi.structural_equal(ours, theirs, map_free_vars=True)
