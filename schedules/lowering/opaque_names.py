"""Named vectors of floats whose values TVM's passes take as they are.

Wherever TVM's passes meet `Let`, they simplify the value and remember it in place of the name, in
every later one as well: the names of an exponential, each computed from those before, cost more
than all else in a kernel that ends in a sigmoid. There is nothing to simplify about them. What may
have an effect they leave alone, and a power that is not declared as pure counts as such; LLVM makes
its base of it, before anything else: x^1 is x.

Vectors alone: a scalar `Select` becomes a branch where a side may have an effect.
"""

from __future__ import annotations

import functools
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx


def opaque_names(body: tirx.Stmt) -> tirx.Stmt:
    """Return a statement with the values of names that are vectors of float32 made opaque."""
    return tvm_ffi.structural_map(body, [(tirx.Let, _opaque)])


def _opaque(let: tirx.Let) -> tirx.Let:
    dtype = tvm.DataType(let.value.ty.dtype)
    if dtype.lanes == 1 or dtype.bits != 32 or not str(dtype).startswith("float"):
        return let
    return tirx.Let(let.var, _first_power(let.value), let.body)


def _first_power(value: Any) -> ir.Call:
    """Return x^1, of which LLVM makes x again."""
    return tirx.call_llvm_intrin(value.ty, "llvm.powi", value, _one())


@functools.cache
def _one() -> tirx.IntImm:
    return tirx.IntImm("int32", 1)
