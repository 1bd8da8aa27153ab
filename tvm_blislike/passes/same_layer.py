"""A matrix product or convolution once more, of other operands and types."""

from __future__ import annotations

from tvm import relax

from tvm_blislike.tvm_seams import op_name


def on_operands(
    call: relax.Call, data: relax.Expr, weights: relax.Expr, out_dtype: str
) -> relax.Call:
    """Return a call's operator on other operands.

    Parameters
    ----------
    call : relax.Call
        `matmul`, or `nn.conv2d` on NCHW and OIHW.
    data, weights : relax.Expr
        In the place of its own, in the same layouts.
    out_dtype : str
        Data type of the sums.
    """
    if op_name(call) == "relax.matmul":
        return relax.op.matmul(data, weights, out_dtype=out_dtype)
    attrs = call.attrs
    return relax.op.nn.conv2d(
        data,
        weights,
        strides=attrs.strides,
        padding=attrs.padding,
        dilation=attrs.dilation,
        groups=attrs.groups,
        out_dtype=out_dtype,
    )
