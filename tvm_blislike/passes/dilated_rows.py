"""Dilated convolutions of a signal as plain ones of an image whose rows are as long as they dilate.

Element h d + c of a signal is pixel (h, c) of an image with rows of d. Its convolution dilated by d
meets elements that are d apart, pixels above each other:

    y[h d + c] = sum over j of w[j] x[(h + j) d + c - p] = sum over j of w[j] x[h + j - p / d, c]

That is a column of taps without gaps, which Winograd's algorithms compute with half of the products
and less, and no element moves. A signal that rows do not divide is filled up behind, and cut off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tvm import relax

from tvm_blislike.choose.strategy import Seconds
from tvm_blislike.cost_models.transforms import transform_seconds
from tvm_blislike.hardware import Core
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.operators.operator import types_of
from tvm_blislike.tvm_seams import static_shape

# How much sooner images have to be: predictions of two algorithms err by as much.
_LEAST_GAIN = 1.05


@dataclass(frozen=True)
class DilatedRows:
    """An image of a dilated convolution of a signal.

    Parameters
    ----------
    dilation : int
        Pixels of a row.
    rows, outputs : int
        Of the image and of its result.
    before, after : int
        Rows of padding.
    added, left : int
        Elements behind the signal that fill the last row, and those of the result that are cut off.
    """

    dilation: int
    rows: int
    outputs: int
    before: int
    after: int
    added: int
    left: int

    @staticmethod
    def of(layer: Conv2dWorkload) -> DilatedRows | None:
        """Return the image for a signal (n, ci, h, 1); None where none has the same pixels."""
        length, dilation, padding = layer.h, layer.dilation[0], layer.padding[0]
        is_signal = layer.w == layer.kw == 1 and not (layer.padding[1] or layer.padding[3])
        is_dense = layer.groups == 1 and layer.stride[0] == 1 and layer.kh > 1
        if not (is_signal and is_dense) or dilation == 1 or padding % dilation:
            return None
        rows, outputs, before = (
            -(-length // dilation),
            -(-layer.oh // dilation),
            padding // dilation,
        )
        after = outputs + layer.kh - 1 - before - rows
        if after < 0:
            # Rows that no output reads: the last ones of a result that is cut.
            outputs, after = outputs - after, 0
        added, left = rows * dilation - length, outputs * dilation - layer.oh
        return DilatedRows(dilation, rows, outputs, before, after, added, left)

    def layer(self, signal: Conv2dWorkload) -> Conv2dWorkload:
        """Return the convolution of the image."""
        return replace(
            signal,
            h=self.rows,
            w=self.dilation,
            padding=(self.before, 0, self.after, 0),
            dilation=(1, 1),
        )

    def is_sooner(self, signal: Conv2dWorkload, seconds: Seconds, core: Core, threads: int) -> bool:
        """Whether the image is predicted to take less time, copies included."""
        of_signal, of_image = seconds(signal), seconds(self.layer(signal))
        if of_signal is None or of_image is None:
            return False
        data, result = map(math.prod, signal.images)
        copied = (data if self.added else 0) + (result if self.left else 0)
        copying = transform_seconds(copied, core, threads) if copied else 0.0
        return (of_image + copying) * _LEAST_GAIN < of_signal


def signal_of(call: relax.Call) -> Conv2dWorkload:
    """Return the workload of a convolution of signals that lie along the height."""
    (n, ci, length), (co, _, taps) = (static_shape(arg) for arg in call.args)
    before, after = (int(each) for each in call.attrs.padding)
    return Conv2dWorkload(
        *(n, ci, length, 1, co, taps, 1),
        stride=(int(call.attrs.strides[0]), 1),
        padding=(before, 0, after, 0),
        dilation=(int(call.attrs.dilation[0]), 1),
        groups=int(call.attrs.groups),
        types=types_of(call),
    )
