"""Depthwise convolutions of a volume whose slices are a batch of images (`passes.planar`).

TVM has no such operator: one of images does not meet several of them, and one of volumes has other
layouts. Its attributes are those of `relax.nn.conv3d`, but the layouts of images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax

from tvm_blislike.model.layouts import NCHW, Layout
from tvm_blislike.model.marks import VOLUME_CONVOLUTION
from tvm_blislike.model.workload import Conv3dWorkload
from tvm_blislike.operators.operator import Graph, Operator, exact, types_of
from tvm_blislike.tvm_seams import dtype_name, static_shape
from tvm_blislike.tvm_seams.own_operators import called, declared

if TYPE_CHECKING:
    import onnx

_KERNEL = "OIDHW"


class VolumeConvolution(Operator):
    """The operator of this module, in any layout of the images."""

    workload = Conv3dWorkload
    calls = frozenset([VOLUME_CONVOLUTION])
    nodes = frozenset()

    def refusal(self, call: relax.Call) -> str:
        """See `Operator.refusal`."""
        return ""

    def of_call(self, call: relax.Call) -> Conv3dWorkload:
        """See `Operator.of_call`."""
        attrs, (strides, dilation, padding) = call.attrs, steps_of(call)
        co, _, kd, kh, kw = static_shape(call.args[1])
        return Conv3dWorkload(
            *Layout(attrs.data_layout).sizes(static_shape(call.args[0])),
            co=co,
            kh=kh,
            kw=kw,
            stride=strides[1:],
            padding=(*padding[1:3], *padding[4:]),
            dilation=dilation[1:],
            groups=int(attrs.groups),
            types=types_of(call),
            depth_taps=kd,
            depth_stride=strides[0],
            depth_padding=(padding[0], padding[3]),
            depth_dilation=dilation[0],
        )

    def of_node(self, node: onnx.NodeProto, graph: Graph) -> Conv3dWorkload | None:
        """See `Operator.of_node`: no node has slices as images."""
        return None

    def reference(self, workload: Conv3dWorkload, *operands: np.ndarray) -> np.ndarray:
        """One product for each element of the kernel; see `Operator.reference`."""
        w, (image, weights) = workload, exact(*operands)
        top, left, bottom, right = w.padding
        padding = (w.depth_padding, (0, 0), (top, bottom), (left, right))
        image = np.repeat(np.pad(image, padding), w.co // w.ci, axis=1)
        out = np.zeros(w.result_shape, image.dtype)
        sizes, strides = (w.od, w.oh, w.ow), (w.depth_stride, *w.stride)
        for z, y, x in np.ndindex(w.kd, w.kh, w.kw):
            begins = z * w.depth_dilation, y * w.dilation[0], x * w.dilation[1]
            slices, rows, columns = (
                slice(begin, begin + (size - 1) * step + 1, step)
                for begin, size, step in zip(begins, sizes, strides, strict=True)
            )
            out += image[slices, :, rows, columns] * weights[:, 0, z, y, x].reshape(1, -1, 1, 1)
        return out


def volume_convolution(
    data: relax.Expr,
    weights: relax.Expr,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out_dtype: str | None = None,
) -> relax.Call:
    """Return a depthwise convolution of one volume, not yet emitted.

    Parameters
    ----------
    data : relax.Expr
        (d, c, h, w).
    weights : relax.Expr
        (co, 1, kd, kh, kw).
    strides, dilation : sequence of int
        Along depth, height and width.
    padding : sequence of int
        In front, above, to the left; behind, below, to the right.
    out_dtype : str, optional
        That of the result, where it is not that of the data.

    Returns
    -------
    relax.Call
        (od, co, oh, ow).
    """
    # For its attributes alone: as a call of volumes it would be none.
    like = relax.op.nn.conv3d(
        data,
        weights,
        list(strides),
        list(padding),
        list(dilation),
        groups=static_shape(data)[1],
        data_layout=NCHW,
        kernel_layout=_KERNEL,
        out_layout=NCHW,
        out_dtype=out_dtype,
    )
    return called(_OPERATOR, [data, weights], like.attrs)


def steps_of(call: relax.Call) -> tuple[tuple[int, ...], ...]:
    """Return strides, dilation and padding of a call, as `volume_convolution` has them."""
    attrs = call.attrs
    given = attrs.strides, attrs.dilation, attrs.padding
    return tuple(tuple(int(value) for value in values) for values in given)


def _result(call: relax.Call) -> relax.TensorType:
    strides, dilation, padding = steps_of(call)
    (d, _, h, w), (co, _, *kernel) = map(static_shape, call.args)
    sizes = [
        (size + padding[axis] + padding[axis + 3] - dilation[axis] * (taps - 1) - 1)
        // strides[axis]
        + 1
        for axis, (size, taps) in enumerate(zip((d, h, w), kernel, strict=True))
    ]
    dtype = str(call.attrs.out_dtype or "") or dtype_name(call.args[0])
    return relax.TensorType([sizes[0], co, *sizes[1:]], dtype)


_OPERATOR = declared(VOLUME_CONVOLUTION, "Depthwise convolution of slices of a volume.", _result)
