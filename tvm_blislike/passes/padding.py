"""Zeros around the data of a convolution become the convolution's own padding."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.tvm_seams import op_name

PAD = "relax.nn.pad"
# Each with the axes of its pixels, behind those of the batch and of channels.
PADDED = {f"relax.nn.conv{axes}d": axes for axes in (1, 2, 3)}


@mutator
class Padding(PyExprMutator):
    """Convolutions of what was padded read what was there before; transposed ones do not pad."""

    def __init__(self, mod: tvm.IRModule, _func: relax.Function) -> None:
        super().__init__(mod)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Return a convolution with more padding; any other call as it is."""
        call = super().visit_call_(call)
        source = call.args[0] if op_name(call) in PADDED else None
        before = self.lookup_binding(source) if isinstance(source, relax.Var) else None
        if op_name(before) != PAD or not str(call.attrs.data_layout).startswith("NC"):
            return call
        widths = _of_pixels(before, PADDED[op_name(call)])
        return call if widths is None else _padded(call, before.args[0], widths)


def _of_pixels(pad: relax.Call, axes: int) -> list[int] | None:
    """Return zeros in front of each axis of pixels, then behind; None where others are padded."""
    widths = [int(width) for width in pad.attrs.pad_width]
    is_zero = str(pad.attrs.pad_mode) == "constant" and float(pad.attrs.pad_value) == 0.0
    if not is_zero or len(widths) != 2 * (axes + 2) or any(widths[:4]) or min(widths) < 0:
        return None
    return [*widths[4::2], *widths[5::2]]


def _padded(call: relax.Call, data: relax.Expr, widths: Sequence[int]) -> relax.Call:
    attrs = call.attrs
    operator = getattr(relax.op.nn, op_name(call).removeprefix("relax.nn."))
    return operator(
        data,
        call.args[1],
        strides=attrs.strides,
        padding=[int(one) + other for one, other in zip(attrs.padding, widths, strict=True)],
        dilation=attrs.dilation,
        groups=attrs.groups,
        data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout,
        out_layout=attrs.out_layout,
        out_dtype=attrs.out_dtype,
    )
