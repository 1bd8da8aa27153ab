"""Products of rows of floats that are split into several rows of a type that weights go with.

Each of the rows is multiplied, and the sums are joined. What rows are split into stands in
`fixed_point` and `brain_parts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax, te

from tvm_blislike.choose.storage_choice import SPLITS
from tvm_blislike.tvm_seams import constant, static_shape
from tvm_blislike.tvm_seams.attributes import NEVER_FUSED


def product(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    weights: np.ndarray,
    split: Callable[[te.Tensor], te.Tensor | list[te.Tensor]],
    join: Callable[..., te.Tensor],
    constants: Sequence[relax.Expr] = (),
) -> relax.Expr:
    """Emit the product of rows of fp32 by weights of 8 bits, without the scales of these.

    Parameters
    ----------
    data : relax.Expr
        float32 (..., k).
    weights : numpy.ndarray
        Of a type of 8 bits that has `SPLITS`, (k, n).
    split : callable
        Defines the parts of rows, (parts, m, k) of float32 (m, k), and what else joining takes.
    join : callable
        Defines the rows, float32 (m, n), of sums for each part, (parts, m, n), of what else
        `split` defines, and of the constants.
    constants : sequence of relax.Expr
        What else joining takes.

    Returns
    -------
    relax.Expr
        float32 (..., n).
    """
    dtype = str(weights.dtype)
    parts, types = SPLITS[dtype]
    *outer, k = static_shape(data)
    rows, n = math.prod(outer), weights.shape[1]
    matrix = builder.emit(relax.op.reshape(data, (rows, k)))
    name, never_fused = split.__name__, dict(NEVER_FUSED)
    defined = builder.emit(
        builder.call_te(split, matrix, primfunc_name_hint=name, primfunc_attrs=never_fused)
    )
    first, *others = [defined]
    if isinstance(defined.ty, relax.TupleType):
        each_of = range(len(defined.ty.fields))
        first, *others = [builder.emit(relax.TupleGetItem(defined, number)) for number in each_of]
    flat = builder.emit(relax.op.reshape(first, (parts * rows, k)))
    sums = builder.emit(relax.op.matmul(flat, constant(weights, dtype), out_dtype=types.acc))
    # A view, across which TVM fuses nothing: joining reads a row of each part.
    each = builder.emit(relax.op.reshape(sums, (parts, rows, n)))
    joined = builder.emit_te(join, each, *others, *constants, primfunc_name_hint=join.__name__)
    return builder.normalize(relax.op.reshape(joined, (*outer, n)))
