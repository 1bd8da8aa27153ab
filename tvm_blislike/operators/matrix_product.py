"""Products of matrices, and of batches of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.operators.operator import Graph, Operator, attributes, exact, types_of, unpacked
from tvm_blislike.tvm_seams import is_constant, static_shape

if TYPE_CHECKING:
    import onnx
    from tvm import relax


class MatrixProduct(Operator):
    """`relax.matmul`; `MatMul` and `Gemm` of ONNX.

    A matrix B serves the whole batch of A, which then counts as rows; otherwise the batches must be
    equal.
    """

    workload = GemmWorkload
    calls = frozenset(["relax.matmul"])
    nodes = frozenset(["Gemm", "MatMul"])

    def refusal(self, call: relax.Call) -> str:
        """See `Operator.refusal`."""
        a, b = (static_shape(arg) for arg in call.args)
        if min(len(a), len(b)) < 2:
            return "an operand is a vector"
        return "" if len(b) == 2 or a[:-2] == b[:-2] else "one batch serves several of the other"

    def of_call(self, call: relax.Call) -> GemmWorkload:
        """See `Operator.of_call`."""
        a, b = (static_shape(arg) for arg in call.args)
        *batch, m, k = a
        if len(b) == 2:
            m, batch = m * math.prod(batch), []
        constant = is_constant(call.args[1])
        return GemmWorkload(m, b[-1], k, math.prod(batch), types_of(call), constant)

    def of_node(self, node: onnx.NodeProto, graph: Graph) -> GemmWorkload | None:
        """Return the product of two matrices with a constant B; a transposed A is left out."""
        notes, types = attributes(node), graph.types(node)
        a, b = (graph.shapes.get(name, ()) for name in node.input[:2])
        plain = (len(a), len(b)) == (2, 2) and not notes.get("transA")
        if types is None or not plain or node.input[1] not in graph.constants:
            return None
        return GemmWorkload(a[0], b[0] if notes.get("transB") else b[1], a[1], types=types)

    def call_shapes(self, workload: GemmWorkload) -> tuple[tuple[int, ...], ...]:
        """See `Operator.call_shapes`: here each product of a batch has a B of its own."""
        w = workload
        batch = (w.batch,) if w.batch > 1 else ()
        return (*batch, w.m, w.k), (*batch, w.k, w.n)

    def reference(self, workload: GemmWorkload, *operands: np.ndarray) -> np.ndarray:
        """See `Operator.reference`."""
        if workload.types.is_bits:
            a, b = unpacked(operands[0], -1), unpacked(operands[1], -2)
            return a @ (1 - 2 * b) + b.sum(-2, keepdims=True)
        a, b = exact(*operands)
        return a @ b
