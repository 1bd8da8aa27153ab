"""Random nodes of reductions, scans and sorting."""

from __future__ import annotations

import numpy as np
from graphs import Graph, RejectedError

_OPERATORS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceSumSquare"
).split()


def reduce(g: Graph) -> None:
    """A reduction over any axes, given as attribute or operand."""
    operator = g.pick(_OPERATORS)
    if operator == "ReduceLogSum":
        x = g.tensor(fits=lambda v: v.min(initial=1) > 0.01, kind="positive")
    elif operator in ("ReduceMax", "ReduceMin", "ReduceSum") and g.chance(0.2):
        x = g.tensor(("int64", "int32"))
    else:
        x = g.tensor()
    count = g.integer(0, x.rank)
    axes = g.rng.choice(x.rank, count, replace=False).tolist() if x.rank else []
    if g.opset >= 11:
        axes = [a - x.rank if g.chance(0.3) else a for a in axes]
    attributes = g.maybe(0.8, keepdims=g.integer(0, 1))
    operands = [x]
    if g.opset >= (13 if operator == "ReduceSum" else 18):
        if axes or g.chance(0.5):
            operands.append(g.constant(np.array(axes, "int64")))
        attributes |= g.maybe(0.3, noop_with_empty_axes=g.integer(0, 1))
    elif axes:
        attributes["axes"] = axes
    g.node(operator, operands, **attributes)


def arg_reduce(g: Graph) -> None:
    """ArgMax and ArgMin, the first or the last of equal values."""
    x = g.tensor(rank=(1, 2, 3, 4), fits=lambda v: v.size > 0)
    attributes = g.maybe(0.7, axis=g.integer(-x.rank, x.rank - 1), keepdims=g.integer(0, 1))
    if g.opset >= 12:
        attributes |= g.maybe(0.3, select_last_index=g.integer(0, 1))
    g.node(g.pick(["ArgMax", "ArgMin"]), [x], **attributes)


def top_k(g: Graph) -> None:
    """TopK, the largest or smallest."""
    if g.opset < 10:
        raise RejectedError("too early")
    x = g.tensor(rank=(1, 2, 3, 4), fits=lambda v: v.size > 0)
    axis = g.integer(-x.rank, x.rank - 1)
    k = g.constant([g.integer(1, x.shape[axis])], "int64")
    attributes = {"axis": axis}
    if g.opset >= 11:
        attributes |= g.maybe(0.5, largest=g.integer(0, 1))
    g.node("TopK", [x, k], 2, **attributes)


def cumsum(g: Graph) -> None:
    """CumSum along an axis, from either end."""
    if g.opset < 11:
        raise RejectedError("too early")
    x = g.tensor(rank=(1, 2, 3, 4)) if g.chance(0.8) else g.tensor(("int64", "int32"), rank=(1, 2))
    axis = g.constant(g.integer(-x.rank, x.rank - 1), g.pick(["int64", "int32"]))
    g.node("CumSum", [x, axis], **g.maybe(0.5, exclusive=g.integer(0, 1), reverse=g.integer(0, 1)))


def unique(g: Graph) -> None:
    """Unique and NonZero, whose results have shapes of run time."""
    if g.opset < 11:
        raise RejectedError("too early")
    x = g.tensor(("int64", "int32"), rank=(1, 2))
    if g.chance(0.5):
        g.node("NonZero", [x])
    else:
        g.node("Unique", [x], g.pick([1, 1, 4]), **g.maybe(0.6, sorted=g.integer(0, 1)))


NODES = {reduce: 8, arg_reduce: 2, top_k: 2, cumsum: 2, unique: 1}
