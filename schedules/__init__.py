"""One file per algorithm with its TE definition; its schedule template is there or in `*_schedule`.

The other files are passes: `lowering` and those that it calls finish what the templates scheduled,
`default_rule` and the other `default_*` schedule what no template does.

`OWN` is the list of the library's implementations; adding one is one file and one entry.
"""

from __future__ import annotations

from tvm_blislike.schedules import (
    conv2d_depthwise,
    conv2d_direct,
    conv2d_grouped,
    conv2d_im2col,
    conv2d_winograd,
    conv2d_winograd_1d,
    gemm,
)

OWN = (
    conv2d_depthwise.IMPLEMENTATION,
    conv2d_direct.IMPLEMENTATION,
    conv2d_grouped.IMPLEMENTATION,
    conv2d_im2col.IMPLEMENTATION,
    conv2d_winograd.IMPLEMENTATION,
    conv2d_winograd_1d.IMPLEMENTATION,
    gemm.IMPLEMENTATION,
)
