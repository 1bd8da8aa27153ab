"""Sizes that no tensor can have: windows beyond their image, sums of nothing, too many elements."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tvm_blislike.errors import ModelError
from tvm_blislike.onnx.shapes import constants_of, shapes_of
from tvm_blislike.onnx.unsupported import describe

if TYPE_CHECKING:
    import onnx
    import tvm

Sizes = Sequence[int] | None
# Kernels index with 32 bits.
MOST_ELEMENTS = 2**31 - 1
# Parts of the names of operators, TVM's and ONNX's.
_WITH_WINDOW = re.compile("conv|pool", re.IGNORECASE)
# TVM leaves the result as it finds it in memory when there is nothing to reduce.
_REDUCING = re.compile("conv|pool|matmul|gemm|einsum|sum|prod|mean|max|min|std|var|reduce", re.I)


def rendered(shape: Sequence[int | str] | None) -> str:
    """Return a shape as the command line takes it; an unnamed size is `?`."""
    if shape is None:
        return "unknown rank"
    return "x".join(str(size) or "?" for size in shape) or "scalar"


def check_sizes(
    proto: onnx.ModelProto,
    name: str,
    inputs: Mapping[str, Sequence[int]],
    module: tvm.IRModule,
) -> None:
    """Raise ModelError, naming the node, when a tensor of a model cannot exist.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; only looked at when `module` has such a tensor.
    name : str
        What to call it.
    inputs : mapping of str to sequence of int
        Shapes of its inputs.
    module : tvm.IRModule
        What was imported.
    """
    from tvm import relax

    from tvm_blislike.tvm_seams import functions, op_name, static_shape

    found: list[tuple[str, tuple[int, ...]]] = []

    def visit(expr: relax.Expr) -> None:
        if op_name(expr) and _is_impossible(
            op_name(expr), static_shape(expr), [static_shape(arg) for arg in expr.args]
        ):
            found.append((f"a result of {op_name(expr)}", static_shape(expr)))

    for _, func in functions(module):
        relax.analysis.post_order_visit(func, visit)
    if found:
        subject, sizes = _culprit(proto, inputs) or found[0]
        raise ModelError(f"{subject} of {name}: {_why(sizes)}", _hint(sizes))


def _is_impossible(operator: str, sizes: Sizes, operands: Sequence[Sizes]) -> bool:
    """Whether an operator cannot give a tensor of these sizes, of operands of others."""
    if sizes is None:
        return False
    if min(sizes, default=1) < 0 or math.prod(sizes) > MOST_ELEMENTS:
        return True
    was_empty = any(0 in operand for operand in operands if operand is not None)
    if 0 in sizes:
        return not was_empty and _WITH_WINDOW.search(operator) is not None
    return was_empty and _REDUCING.search(operator) is not None


def _culprit(
    proto: onnx.ModelProto, inputs: Mapping[str, Sequence[int]]
) -> tuple[str, tuple[int, ...]] | None:
    """Return the first node with such a result, and its sizes; None where ONNX cannot tell."""
    try:
        shapes = shapes_of(proto, inputs, constants_of(proto))
    except Exception:  # an inconsistent model: each part of ONNX raises its own kind
        return None
    for node in proto.graph.node:
        operands = [shapes.get(name) for name in node.input]
        for name in node.output:
            if _is_impossible(node.op_type, shapes.get(name), operands):
                return describe(node), shapes[name]
    return None


def _why(sizes: Sequence[int]) -> str:
    if min(sizes, default=1) < 1:
        return (
            f"its window does not fit into the padded image: the result would be {rendered(sizes)}"
        )
    count = math.prod(sizes)
    if count > MOST_ELEMENTS:
        most = f"a tensor has {MOST_ELEMENTS:,} at most"
        return f"its result of {rendered(sizes)} has {count:,} elements; {most}"
    return f"an operand is empty, its result of {rendered(sizes)} is not"


def _hint(sizes: Sequence[int]) -> str | None:
    fits = min(sizes, default=1) > 0
    return None if fits else "it needs a larger image, more padding or a smaller kernel"
