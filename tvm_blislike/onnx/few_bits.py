"""`MatMulNBits` of few rows: a function of the floats and the integers, which stay integers.

The function says what is computed; `passes.few_bits` puts a kernel of the core in its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.relax import op

from tvm_blislike.model.marks import FEW_BITS
from tvm_blislike.tvm_seams import constant, constant_array, static_shape
from tvm_blislike.tvm_seams.attributes import NEVER_FUSED


def matmul(
    builder: relax.BlockBuilder, operands: Sequence[relax.Expr | None], settings: Mapping[str, Any]
) -> relax.Expr:
    """Convert what `rewrites.blocks` leaves of `MatMulNBits`: data, steps, scales, zero points.

    The constants have the axes (k, n) and (blocks of k, n).
    """
    data, *parts = operands
    shape = static_shape(data)
    rows = builder.emit(op.reshape(data, (math.prod(shape[:-1]), shape[-1])))
    call = builder.call_te(
        _product,
        rows,
        *(constant(constant_array(part), str(constant_array(part).dtype)) for part in parts),
        primfunc_name_hint="few_bits",
        primfunc_attrs={**NEVER_FUSED, FEW_BITS: int(settings["block_size"])},
    )
    result = builder.emit(call)
    return builder.normalize(op.reshape(result, (*shape[:-1], static_shape(result)[-1])))


def weights(steps: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Return weights in float32, (k, n), given steps (k, n), scales and zero points by block."""
    block = -(-len(steps) // len(scales))
    scale, zero = (part.repeat(block, 0)[: len(steps)] for part in (scales, zeros))
    return (steps.astype(np.float32) - zero) * scale


def _product(x: te.Tensor, steps: te.Tensor, scales: te.Tensor, zeros: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, x.shape[1]), "k")
    block = int(steps.shape[0]) // int(scales.shape[0])

    def value(i: Any, j: Any) -> Any:
        step = steps[k, j].astype("float32") - zeros[k // block, j].astype("float32")
        return te.sum(x[i, k] * (step * scales[k // block, j]), axis=k)

    return te.compute((x.shape[0], steps.shape[1]), value, name="few_bits")
