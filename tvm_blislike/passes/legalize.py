"""What no implementation computes: TVM's own definitions, but for some operators."""

from __future__ import annotations

import tvm
from tvm import relax, topi

from tvm_blislike.passes.concat import lower_concat
from tvm_blislike.passes.moves import lower_interleave
from tvm_blislike.passes.not_finite import NAMES, lower_not_finite


def legalize() -> tvm.transform.Pass:
    """Return the pass that lowers all operators."""

    def layout_transform(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        interleave = lower_interleave(builder, call)
        return call if interleave is None else interleave

    def concat(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        in_place = lower_concat(builder, call)
        return call if in_place is None else in_place

    def take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        # By default TVM reads whatever lies at an index out of range, and warns of it each time.
        data, indices = call.args
        axis = call.attrs.axis
        if axis is not None and axis < 0:  # its clipping takes an axis from behind for another
            axis = int(axis) + data.ty.ndim
        return builder.call_te(topi.take, data, indices, axis, mode="clip")

    def not_finite(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        lowered = lower_not_finite(builder, call)
        return call if lowered is None else lowered

    own = {
        **dict.fromkeys(NAMES, not_finite),
        "relax.concat": concat,
        "relax.layout_transform": layout_transform,
        "relax.take": take,
    }
    return tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(own),
            relax.transform.LegalizeOps(),
        ],
        name="blislike.Legalize",
    )
