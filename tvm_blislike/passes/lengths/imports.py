"""What a model is at its smallest size must follow from what it is at those that are compared.

Larger sizes do not show all: `x[:, :64]` has 64 columns of 113 and of 127, but 10 of 10. So the
imported modules are compared, in which nothing of a single row is simplified yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax

from tvm_blislike.errors import SizesMeetError
from tvm_blislike.passes.lengths.samples import shape_of
from tvm_blislike.passes.open_sizes import are_same
from tvm_blislike.tvm_seams import bindings, constant_array, is_constant, op_name, static_shape


def require_alike(mods: Sequence[tvm.IRModule], sizes: Sequence[int]) -> None:
    """Raise SizesMeetError unless imported modules differ in sizes alone, and these in proportion.

    Parameters
    ----------
    mods : sequence of IRModule
        Of each of `sizes`, the largest first.
    """
    each = [[binding.value for binding in bindings(mod["main"])] for mod in mods]
    names = [[op_name(value) for value in values] for values in each]
    if any(other != names[0] for other in names):
        raise SizesMeetError(f"the model has other operators at size {sizes[-1]}")
    for values in zip(*each, strict=True):
        shapes = [static_shape(value) for value in values]
        if None not in shapes:
            shape_of(shapes, sizes)
        if isinstance(values[0], relax.Call):
            for operands in zip(*(value.args for value in values), strict=True):
                _require_same_constants(operands)


def _require_same_constants(operands: Sequence[relax.Expr]) -> None:
    if not all(map(is_constant, operands)):
        return
    largest, *others = map(constant_array, operands)
    if not all(_begins_with(largest, other) for other in others):
        raise SizesMeetError("a constant follows from the size")


def _begins_with(whole: np.ndarray, part: np.ndarray) -> bool:
    if whole.ndim != part.ndim:
        return False
    rows = whole[tuple(map(slice, part.shape))]
    return are_same([part, rows])
