"""What no implementation computes: TVM's own definitions, but for some operators."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, topi

from tvm_blislike.passes.concat import lower_concat
from tvm_blislike.passes.moves import lower_interleave
from tvm_blislike.passes.not_finite import NAMES, lower_not_finite

Lower = Callable[[relax.BlockBuilder, relax.Call], relax.Expr | None]


def legalize() -> tvm.transform.Pass:
    """Return the pass that lowers all operators."""
    own = {
        **dict.fromkeys(NAMES, _or_itself(lower_not_finite)),
        "relax.concat": _or_itself(lower_concat),
        "relax.layout_transform": _or_itself(lower_interleave),
        "relax.take": _take,
    }
    return tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(own),
            relax.transform.LegalizeOps(),
        ],
        name="blislike.Legalize",
    )


def _or_itself(lower: Lower) -> Lower:
    """Return the function that leaves a call to TVM where another one returns None."""

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        lowered = lower(builder, call)
        return call if lowered is None else lowered

    return legalized


def _take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # By default TVM reads whatever lies at an index out of range, and warns of it each time.
    data, indices = call.args
    axis = call.attrs.axis
    if axis is not None and axis < 0:  # its clipping takes an axis from behind for another
        axis = int(axis) + data.ty.ndim
    return builder.call_te(topi.take, data, indices, axis, mode="clip")
