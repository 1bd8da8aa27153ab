"""From Relax calls to workloads."""

from __future__ import annotations

import math

from tvm import relax

from tvm_blislike.adapter import dtype_name, is_constant, op_name, static_shape
from tvm_blislike.layouts import nchw_sizes
from tvm_blislike.workload import Conv2dWorkload, GemmWorkload


def conv2d_workload(call: relax.Call) -> Conv2dWorkload | None:
    """Return the workload of a `relax.nn.conv2d` with OIHW weights, None for any other call.

    The data may be in any layout of `tvm_blislike.layouts`. Symbolic shapes, mixed data
    types and empty tensors have no workload.
    """
    if op_name(call) != "relax.nn.conv2d" or call.attrs.kernel_layout != "OIHW":
        return None
    attrs = call.attrs
    data, kernel = static_shape(call.args[0]), static_shape(call.args[1])
    dtypes = {dtype_name(arg) for arg in call.args}
    if data is None or kernel is None or len(dtypes) != 1 or 0 in (*data, *kernel):
        return None
    return Conv2dWorkload(
        *nchw_sizes(str(attrs.data_layout), data),
        co=kernel[0],
        kh=kernel[2],
        kw=kernel[3],
        stride=_ints(attrs.strides),
        padding=_ints(attrs.padding),
        dilation=_ints(attrs.dilation),
        groups=int(attrs.groups),
        dtype=dtypes.pop(),
    )


def gemm_workload(call: relax.Call) -> GemmWorkload | None:
    """Return the workload of a `relax.matmul`, None for any other call.

    A matrix B serves the whole batch of A, which then counts as rows; otherwise the batches must
    be equal. Vectors, broadcast batches, symbolic shapes, mixed data types and empty tensors have
    no workload.
    """
    if op_name(call) != "relax.matmul":
        return None
    a, b = static_shape(call.args[0]), static_shape(call.args[1])
    dtypes = {dtype_name(arg) for arg in call.args}
    if a is None or b is None or len(dtypes) != 1 or min(len(a), len(b)) < 2:
        return None
    if 0 in (*a, *b):
        return None
    *batch, m, k = a
    if len(b) == 2:
        m, batch = m * math.prod(batch), []
    elif list(b[:-2]) != batch:
        return None
    constant = is_constant(call.args[1])
    return GemmWorkload(m, b[-1], k, math.prod(batch), dtypes.pop(), constant)


def _ints(values: object) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
