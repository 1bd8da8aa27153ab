"""From Relax calls to workloads."""

from __future__ import annotations

import math

from tvm import relax

from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.tvm_seams import dtype_name, is_constant, op_name, static_shape

CONVOLUTIONS = frozenset(
    f"relax.nn.conv{rank}d{direction}" for rank in (1, 2, 3) for direction in ("", "_transpose")
)
# What sums products, in the data type of its result.
SUMS = CONVOLUTIONS | {"relax.matmul"}


def workload_of(call: relax.Call) -> Workload | None:
    """Return what a call computes, None for what is no layer or has no workload (`why_not`)."""
    return conv2d_workload(call) or gemm_workload(call)


def conv2d_workload(call: relax.Call) -> Conv2dWorkload | None:
    """Return the workload of a `relax.nn.conv2d` with OIHW weights, None for any other call.

    The data may be in any layout of `tvm_blislike.model.layouts`. `why_not` tells which have none.
    """
    if op_name(call) != "relax.nn.conv2d" or why_not(call):
        return None
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
        types=Types.of(dtype_name(call)),
    )


def gemm_workload(call: relax.Call) -> GemmWorkload | None:
    """Return the workload of a `relax.matmul`, None for any other call.

    A matrix B serves the whole batch of A, which then counts as rows; otherwise the batches must
    be equal. `why_not` tells which calls have no workload.
    """
    if op_name(call) != "relax.matmul" or why_not(call):
        return None
    a, b = (static_shape(arg) for arg in call.args)
    *batch, m, k = a
    if len(b) == 2:
        m, batch = m * math.prod(batch), []
    constant = is_constant(call.args[1])
    return GemmWorkload(m, b[-1], k, math.prod(batch), Types.of(dtype_name(call)), constant)


def why_not(call: relax.Call) -> str:
    """Return why a call of `SUMS` has no workload, empty for one that has a workload."""
    shapes = [static_shape(arg) for arg in call.args]
    if None in shapes:
        return "its sizes are known at run time only"
    if any(0 in shape for shape in shapes):
        return "an operand is empty"
    dtypes = [dtype_name(arg) for arg in call.args]
    if {*dtypes} != {dtype_name(call)}:
        factors = " by ".join(dtypes)
        return f"no kernel multiplies {factors} and sums in {dtype_name(call)}"
    if op_name(call) == "relax.matmul":
        return _no_product(*shapes)
    if op_name(call) != "relax.nn.conv2d":
        return f"only 2-D convolutions of {dtypes[0]} are computed"
    layout = str(call.attrs.kernel_layout)
    return "" if layout == "OIHW" else f"its weights are in {layout}"


def described(call: relax.Call) -> str:
    """Return the operator and the shapes and data types of its operands and result."""

    def tensor(expr: relax.Expr) -> str:
        sizes = static_shape(expr)
        shape = "?" if sizes is None else "x".join(map(str, sizes)) or "scalar"
        return f"{shape} {dtype_name(expr)}"

    operands = " by ".join(map(tensor, call.args))
    return f"{op_name(call).rpartition('.')[2]} {operands} -> {tensor(call)}"


def _no_product(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    if min(len(a), len(b)) < 2:
        return "an operand is a vector"
    return "" if len(b) == 2 or a[:-2] == b[:-2] else "one batch serves several of the other"


def _ints(values: object) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
