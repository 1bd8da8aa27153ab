"""Weights times a number for each input channel, in the order that a kernel takes.

They are packed when the model is compiled, and only multiplied in each call: in the packed order,
row by row, which threads divide. 240x40 weights take 5.5 us so with two threads, 18 where each call
packs them; with one thread 8.8 and 7, both of which wait for memory (Zen 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import relax

from tvm_blislike.tvm_seams import constant, constant_array, is_constant, op_name, static_shape

Pack = Callable[[np.ndarray], np.ndarray]


def packed_product(
    builder: relax.BlockBuilder, operand: relax.Expr, pack: Pack
) -> relax.Expr | None:
    """Return the packed form of an operand that is a product of constants by gates.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Which has emitted the operand, and emits the product of packed weights.
    operand : relax.Expr
        What `passes.gates` makes of OIHW weights: `reshape(multiply((o, i), (1, i)))`.
    pack : callable
        Packs such weights.

    Returns
    -------
    relax.Expr or None
        None for any other operand, and where packing does more than to move weights: sums of
        several channels have no gate.
    """
    product = _bound(builder, _bound(builder, operand, "relax.reshape"), "relax.multiply")
    if product is None or not is_constant(product.args[0]):
        return None
    matrix, gates = product.args
    shape = static_shape(operand)
    if static_shape(gates) != (1, shape[1]) or shape[:2] != static_shape(matrix):
        return None
    weights = constant_array(matrix).reshape(shape)
    spread = spread_of(pack, weights)
    if spread is None:
        return None
    return relax.op.multiply(
        constant(pack(weights), str(weights.dtype)),
        builder.emit(relax.op.reshape(gates, spread)),
    )


def _bound(builder: relax.BlockBuilder, made: relax.Expr | None, name: str) -> relax.Call | None:
    """Return the call of an operator that makes a variable, or the first operand of a call."""
    var = made.args[0] if isinstance(made, relax.Call) else made
    value = builder.lookup_binding(var) if isinstance(var, relax.Var) else None
    return value if op_name(value) == name else None


def spread_of(pack: Pack, weights: np.ndarray) -> tuple[int, ...] | None:
    """Return the shape in which a row of gates, one per input channel, meets packed OIHW weights.

    Found by packing the number of its channel in place of each weight; None where no shape is
    right. What packing leaves 0 has no channel.
    """
    channels = weights.shape[1]
    numbers = np.arange(1, channels + 1).astype(weights.dtype)
    packed = pack(np.broadcast_to(numbers[:, None, None], weights.shape))
    origin, shape = (0,) * packed.ndim, []
    for axis, size in enumerate(packed.shape):
        second = packed[(*origin[:axis], 1, *origin[axis + 1 :])] if size > 1 else 0
        shape.append(size if second > 1 else 1)
    if math.prod(shape) != channels:
        return None
    right = (packed == numbers.reshape(shape)) | (packed == 0)
    return tuple(shape) if right.all() else None
