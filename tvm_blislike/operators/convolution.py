"""Convolutions of images; those of signals and volumes become such before (`passes.planar`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.operators.operator import (
    WORD,
    Graph,
    Operator,
    attributes,
    exact,
    types_of,
    unpacked,
)
from tvm_blislike.tvm_seams import dtype_name, op_name, static_shape

if TYPE_CHECKING:
    import onnx
    from tvm import relax


class Convolution(Operator):
    """`relax.nn.conv2d` with OIHW weights, in any layout of the image; `Conv` of ONNX."""

    workload = Conv2dWorkload
    calls = frozenset(
        f"relax.nn.conv{rank}d{direction}" for rank in (1, 2, 3) for direction in ("", "_transpose")
    )
    nodes = frozenset(["Conv"])

    def refusal(self, call: relax.Call) -> str:
        """See `Operator.refusal`."""
        if op_name(call) != "relax.nn.conv2d":
            return f"only 2-D convolutions of {dtype_name(call)} are computed"
        layout = str(call.attrs.kernel_layout)
        return "" if layout == "OIHW" else f"its weights are in {layout}"

    def of_call(self, call: relax.Call) -> Conv2dWorkload:
        """See `Operator.of_call`."""
        attrs = call.attrs
        data, kernel = (static_shape(arg) for arg in call.args)
        return Conv2dWorkload(
            *Layout(attrs.data_layout).sizes(data),
            co=kernel[0],
            kh=kernel[2],
            kw=kernel[3],
            stride=_ints(attrs.strides),
            padding=_ints(attrs.padding),
            dilation=_ints(attrs.dilation),
            groups=int(attrs.groups),
            types=types_of(call),
        )

    def of_node(self, node: onnx.NodeProto, graph: Graph) -> Conv2dWorkload | None:
        """See `Operator.of_node`."""
        notes, types = attributes(node), graph.types(node)
        data, kernel = (graph.shapes.get(name, ()) for name in node.input[:2])
        padded = notes.get("auto_pad", b"NOTSET") != b"NOTSET"
        if types is None or padded or (len(data), len(kernel)) != (4, 4):
            return None
        return Conv2dWorkload(
            *data,
            co=kernel[0],
            kh=kernel[2],
            kw=kernel[3],
            stride=tuple(notes.get("strides", (1, 1))),
            padding=tuple(notes.get("pads", (0, 0, 0, 0))),
            dilation=tuple(notes.get("dilations", (1, 1))),
            groups=notes.get("group", 1),
            types=types,
        )

    def reference(self, workload: Conv2dWorkload, *operands: np.ndarray) -> np.ndarray:
        """One matrix product for each element of the kernel; NCHW, see `Operator.reference`."""
        if workload.types.is_bits:
            wide = replace(workload, ci=WORD * workload.ci, types=FLOAT32)
            image, weights = (unpacked(words, 1) for words in operands)
            # Of bits a and b differ a + b - 2 * a * b, and b where padding has no a.
            differ = self.reference(wide, image, 1 - 2 * weights)
            return differ + weights.sum((1, 2, 3)).reshape(1, -1, 1, 1)
        w, (image, weights) = workload, exact(*operands)
        top, left, bottom, right = w.padding
        image = np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)))
        out = np.zeros((w.n, w.groups, w.co // w.groups, w.oh * w.ow), image.dtype)
        grouped = weights.reshape(w.groups, w.co // w.groups, w.ci // w.groups, w.kh, w.kw)
        for y, x in np.ndindex(w.kh, w.kw):
            rows = slice(y * w.dilation[0], y * w.dilation[0] + (w.oh - 1) * w.stride[0] + 1)
            columns = slice(x * w.dilation[1], x * w.dilation[1] + (w.ow - 1) * w.stride[1] + 1)
            seen = image[:, :, rows, columns][:, :, :: w.stride[0], :: w.stride[1]]
            out += grouped[..., y, x] @ seen.reshape(w.n, w.groups, w.ci // w.groups, -1)
        return out.reshape(w.n, w.co, w.oh, w.ow)


def _ints(values: object) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
