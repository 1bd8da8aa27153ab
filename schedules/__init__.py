"""One file per algorithm with its TE definition; its schedule template is there or in `*_schedule`.

The other files are passes: `lowering` and those that it calls finish what the templates scheduled,
`default_rule` and the other `default_*` schedule what no template does.

`OWN` is the list of the library's implementations; adding one is one file and one entry.
"""

from __future__ import annotations

from tvm_blislike.schedules.conv2d_depthwise import definition as conv2d_depthwise
from tvm_blislike.schedules.conv2d_direct import definition as conv2d_direct
from tvm_blislike.schedules.conv2d_grouped import definition as conv2d_grouped
from tvm_blislike.schedules.conv2d_im2col import definition as conv2d_im2col
from tvm_blislike.schedules.conv2d_winograd import definition as conv2d_winograd
from tvm_blislike.schedules.conv2d_winograd_1d import definition as conv2d_winograd_1d
from tvm_blislike.schedules.gemm import definition as gemm

OWN = (
    conv2d_depthwise.IMPLEMENTATION,
    conv2d_direct.IMPLEMENTATION,
    conv2d_grouped.IMPLEMENTATION,
    conv2d_im2col.IMPLEMENTATION,
    conv2d_winograd.IMPLEMENTATION,
    conv2d_winograd_1d.IMPLEMENTATION,
    gemm.IMPLEMENTATION,
)
