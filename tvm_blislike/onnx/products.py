"""CumProd: a converter of its own, after TVM's of CumSum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from tvm_blislike.tvm_seams import static_shape


def cum_prod(
    builder: relax.BlockBuilder, operands: Sequence[relax.Expr | None], settings: Mapping[str, Any]
) -> relax.Expr:
    """Convert `CumProd` of a constant axis; ONNX, CumProd-26."""
    data, axis = operands[:2]
    where = int(axis.value.numpy().item()) % len(static_shape(data))
    backwards = bool(settings.get("reverse", 0))
    ordered = builder.emit(relax.op.flip(data, where)) if backwards else data
    exclusive = bool(settings.get("exclusive", 0))
    product = builder.emit(relax.op.cumprod(ordered, where, exclusive=exclusive))
    return builder.emit(relax.op.flip(product, where)) if backwards else product
