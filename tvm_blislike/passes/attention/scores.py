"""What stands between the first product of an attention and its softmax: scale and masks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from tvm_blislike.model.attention import Mask
from tvm_blislike.passes.attention.views import Sources, is_copy, number_of, scaled_of
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
)

Shape = tuple[int, ...]
# What is added to a score and lower takes its place: no score is as large as its last digit.
_LOW = -1e30


@dataclass(frozen=True)
class Operand:
    """A mask, and the shape of the scores that it is of.

    Parameters
    ----------
    value : relax.Expr or None
        Floats to be added, or `kept`; None where `diagonal` says all.
    kept : bool or None
        Scores are kept where `value`, of truth values, is this, and are `fill` elsewhere; None: it
        is added.
    """

    shape: Shape
    value: relax.Expr | None = None
    kept: bool | None = None
    fill: float = 0.0
    diagonal: Mask | None = None

    def floats(self) -> relax.Expr:
        """Return the mask as floats, see `Mask.replaces`; not yet emitted."""
        if self.kept is None:
            return self.value
        kept, fill = np.float32(0), np.float32(self.fill)
        values = (kept, fill) if self.kept else (fill, kept)
        if is_constant(self.value):
            return constant(np.where(constant_array(self.value), *values), "float32")
        return relax.op.where(self.value, *(relax.const(v) for v in values))


@dataclass(frozen=True)
class Scores:
    """Scores as they go into a softmax.

    Parameters
    ----------
    product : relax.Call
        Q K^T.
    scale : float
        Of the product.
    masks : tuple of Operand
        In their order.
    """

    product: relax.Call
    scale: float = 1.0
    masks: tuple[Operand, ...] = ()


def read(expr: relax.Expr, sources: Sources, uses: Mapping[relax.Var, int]) -> Scores | None:
    """Return what an expression of scores is made of; None for anything else.

    None also where somebody else reads a value in between: it has to be computed anyway.
    """
    if uses.get(expr, 1) > 1:
        return None
    call = sources.value(expr)
    if op_name(call) == "relax.matmul":
        return Scores(call)
    if is_copy(call):
        return read(call.args[0], sources, uses)
    if op_name(call) == "relax.reshape":
        keeps_rows = static_shape(call)[-2:] == static_shape(call.args[0])[-2:]
        return read(call.args[0], sources, uses) if keeps_rows else None
    product = scaled_of(call)
    if product is not None:
        inner = read(product[0], sources, uses)
        is_first = inner is not None and not inner.masks
        return replace(inner, scale=inner.scale * product[1]) if is_first else None
    return _masked(call, sources, uses)


def _masked(call: relax.Expr, sources: Sources, uses: Mapping[relax.Var, int]) -> Scores | None:
    """Return scores behind a mask."""
    for data, mask in _masks(call):
        if static_shape(data) != static_shape(call):
            continue
        inner = read(data, sources, uses)
        if inner is not None:
            return replace(inner, masks=(*inner.masks, _by_diagonal(mask)))
    return None


def _masks(call: relax.Expr) -> list[tuple[relax.Expr, Operand]]:
    """Return the ways to take a call for scores and a mask."""
    name, shape = op_name(call), static_shape(call) if isinstance(call, relax.Call) else None
    if name == "relax.add":
        pairs = (call.args, reversed(call.args))
        return [(data, Operand(shape, mask)) for data, mask in pairs if _is_mask(mask)]
    if name != "relax.where" or static_shape(call.args[0]) is None:
        return []
    condition, *values = call.args
    found = []
    for kept, (data, other) in zip((True, False), (values, reversed(values)), strict=True):
        fill = number_of(other)
        if fill is not None and fill != 0 and not math.isnan(fill):
            found.append((data, Operand(shape, condition, kept, fill)))
    return found


def _is_mask(expr: relax.Expr) -> bool:
    return static_shape(expr) is not None and dtype_name(expr) == "float32"


def _by_diagonal(mask: Operand) -> Operand:
    """Return a constant mask that keeps what is before a diagonal as such, any other as it is."""
    if not is_constant(mask.value) or constant_array(mask.value).ndim < 2:
        return mask
    values = constant_array(mask.value)
    if mask.kept is None:
        lowest = float(values.min(initial=0))
        if lowest > _LOW or not np.isin(values, (0, np.float32(lowest))).all():
            return mask
        kept, fill = values == 0, lowest
    else:
        kept, fill = values == mask.kept, mask.fill
    rows, columns = kept.shape[-2:]
    if (rows, columns) != mask.shape[-2:]:
        return mask
    diagonal = int(kept.reshape(-1, rows, columns)[0, 0].sum()) - 1
    if not (kept == np.tri(rows, columns, diagonal, dtype=bool)).all():
        return mask
    return Operand(mask.shape, diagonal=Mask(diagonal=diagonal, fill=fill))
