"""Products whose rows have much in common, and what rounding their weights loses of that.

Errors of rounded weights are the same in every row: of what rows have in common they do not average
out, neither over rows nor from layer to layer. That part is a product of one row, the mean, by what
rounding took from the weights, and it can be added back for few bytes. Rows behind an activation
have a mean that is not 0; attention takes means of rows, so its result is nearly one, and of the
values only what it makes of them counts. Queries and keys go through a softmax, and what a
normalization makes has a mean near 0 in the first layers: their products stay as they are.

M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019),
section 4.2, with the mean of data in place of one that is estimated ahead.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
import tvm
from tvm import relax, te

from tvm_blislike.passes.attention.functions import VALUES, attention_of
from tvm_blislike.passes.image_operators import BINARY, UNARY
from tvm_blislike.passes.storage import StoredWeights, stored
from tvm_blislike.tvm_seams import bindings, constant, op_name, static_shape

# Bytes are enough of what is a five hundredth of the weights.
LOST = "int8"
_ACTIVATIONS = {
    f"relax.{name}" for name in ("nn.relu nn.silu nn.gelu nn.softplus sigmoid exp erf").split()
}
_SOFTMAX = "relax.nn.softmax"
_MOVES = {"relax.reshape", "relax.permute_dims"}
# Rows of a matrix of which the mean is taken: it is a thirtieth of what rows differ by off.
_ROWS = 32


def with_common_rows(mod: tvm.IRModule, func: relax.Function) -> set[relax.Var]:
    """Return results of products whose rows have much in common (see above)."""
    values = {binding.var: binding.value for binding in bindings(func)}
    mixed = {var: _mixed(mod, value, values) for var, value in values.items()}
    attentions = {var: rows for var, rows in mixed.items() if rows is not None}
    found = {
        var
        for var, value in values.items()
        if op_name(value) == "relax.matmul" and _is_activated(value.args[0], values, attentions)
    }
    for rows in attentions.values():
        made_of = _made_of(rows, values)
        found |= {each for each in made_of if op_name(values[each]) == "relax.matmul"}
    return found


def lost_by(weights: np.ndarray, rounded: np.ndarray) -> StoredWeights:
    """Return what weights of a matrix, finite ones, are more than rounded ones, in bytes."""
    return stored(weights - rounded.astype(np.float32), LOST, 1)


def sum_of_rows(builder: relax.BlockBuilder, data: relax.Expr) -> tuple[relax.Var, int]:
    """Emit the sum of some rows of each matrix, evenly spaced, in 16 bits; return their number too.

    A row of float32 with as many axes. One kernel, which widens what it adds up: conversions would
    be another one, through memory.
    """
    *outer, rows, _ = static_shape(data)
    step = -(-rows // _ROWS)
    taken = -(-rows // step)

    def summed(matrices: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((0, size)) for size in (*outer, taken)]
        places = (*axes[:-1], axes[-1] * step)
        return te.compute(
            (*[1] * len(axes), matrices.shape[-1]),
            lambda *at: te.sum(matrices[(*places, at[-1])].astype("float32"), axis=axes),
            name="sum_of_rows",
        )

    total = builder.emit_te(summed, data, primfunc_name_hint="sum_of_rows")
    return total, taken * math.prod(outer)


def lost_product(
    builder: relax.BlockBuilder, total: relax.Var, rows: int, lost: StoredWeights
) -> relax.Var:
    """Emit the product of a mean row, the sum of so many, by what weights lost: a row."""
    weights = constant(lost.values, LOST)
    product = builder.emit(relax.op.matmul(total, weights, out_dtype="float32"))
    scaled = relax.op.multiply(product, constant(lost.scales / rows, "float32"))
    # A view, across which TVM fuses nothing: the sum would become a part of this small kernel.
    return builder.emit(relax.op.reshape(builder.emit(scaled), [lost.scales.size]))


def _mixed(
    mod: tvm.IRModule, value: relax.Expr, values: Mapping[relax.Var, relax.Expr]
) -> relax.Expr | None:
    """Return the values whose means are the result of an attention, None for anything else."""
    if attention_of(mod, value) is not None:
        return value.args[1].fields[VALUES]
    if op_name(value) != "relax.matmul":
        return None
    weights = _made_of(value.args[0], values)
    return value.args[1] if any(op_name(values[v]) == _SOFTMAX for v in weights) else None


def _is_activated(
    data: relax.Expr, values: Mapping[relax.Var, relax.Expr], attentions: Collection[relax.Var]
) -> bool:
    """Whether data are made elementwise of an attention, or by an activation."""
    return any(
        v in attentions or op_name(values[v]) in _ACTIVATIONS for v in _made_of(data, values)
    )


def _made_of(data: relax.Expr, values: Mapping[relax.Var, relax.Expr]) -> list[relax.Var]:
    """Return what data are made of elementwise, up to the first values that are made otherwise."""
    found: dict[relax.Var, None] = {}
    waiting = [data]
    while waiting:
        var = waiting.pop()
        if not isinstance(var, relax.Var) or var in found or var not in values:
            continue
        found[var] = None
        name = op_name(values[var])
        if name in BINARY or name in UNARY or name in _MOVES:
            waiting.extend(values[var].args)
    return list(found)
