"""What every kind of operator is asked."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tvm_blislike.model.types import Types, data_range, weights_range
from tvm_blislike.tvm_seams import dtype_name, op_name, static_shape

if TYPE_CHECKING:
    import onnx
    from tvm import relax

    from tvm_blislike.model.workload import Workload

_SEED = 20
# Signs of a word.
WORD = 32


@dataclass(frozen=True)
class Graph:
    """What is known of the tensors of an ONNX graph.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        By name, completely known ones only.
    dtypes : mapping of str to str
        Data types by name.
    constants : collection of str
        Names of tensors known at compile time.
    """

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    constants: Collection[str] = ()

    def types(self, node: onnx.NodeProto) -> Types | None:
        """Return the types of a node's factors and sums, None where one is not known."""
        a, b, out = (self.dtypes.get(name) for name in (*node.input[:2], node.output[0]))
        return None if None in (a, b, out) else Types(a, b, out, out)


class Operator(ABC):
    """Recognizes calls of its kind, and computes them in plain NumPy.

    Attributes
    ----------
    workload : type
        Class of its workloads, which name their operands.
    calls : frozenset of str
        Names of Relax operators of this kind, those included that never have a workload.
    nodes : frozenset of str
        Names of ONNX operators.
    """

    workload: ClassVar[type[Workload]]
    calls: ClassVar[frozenset[str]]
    nodes: ClassVar[frozenset[str]]

    def why_not(self, call: relax.Call) -> str:
        """Return why a Relax call has no workload, empty for one that has a workload."""
        shapes = [static_shape(arg) for arg in call.args]
        if None in shapes:
            return "its sizes are known at run time only"
        if any(0 in shape for shape in shapes):
            return "an operand is empty"
        types = types_of(call)
        known = types.is_integer_dot, types.is_bits, types.is_stored, types.is_bfloat_dot
        if not (types.is_uniform or any(known)):
            return f"no kernel multiplies {types.a} by {types.b} and sums in {types.acc}"
        return self.refusal(call)

    @abstractmethod
    def refusal(self, call: relax.Call) -> str:
        """Return why a Relax call of known sizes and types has no workload, or ""."""

    @abstractmethod
    def of_call(self, call: relax.Call) -> Workload:
        """Return the workload of a Relax call that has one."""

    @abstractmethod
    def of_node(self, node: onnx.NodeProto, graph: Graph) -> Workload | None:
        """Return the workload of an ONNX node, None where it has none."""

    @abstractmethod
    def reference(self, workload: Workload, *operands: np.ndarray) -> np.ndarray:
        """Return the result by a slow, plain definition: float64, or int64 of integers."""

    def call_shapes(self, workload: Workload) -> tuple[tuple[int, ...], ...]:
        """Return the shapes in which operands of a Relax call go into its kernel, but images."""
        return tuple(workload.operands.values())

    def random(self, workload: Workload) -> tuple[np.ndarray, ...]:
        """Return seeded operands: floats whose results are about 1, integers of the whole range.

        Integers test a kernel exactly: the reference sums them without rounding. Integers of 16
        bits are values of 8.
        """
        rng = np.random.default_rng(_SEED)
        scale = np.float32(1 / math.sqrt(workload.extents["depth"]))
        made = []
        for number, (shape, dtype) in enumerate(
            zip(workload.operands.values(), workload.operand_types, strict=True)
        ):
            if np.dtype(dtype).kind in "iu":
                limits = (weights_range if number else data_range)(workload.types)
                made.append(rng.integers(*limits, shape, dtype, endpoint=True))
                continue
            values = rng.standard_normal(shape, dtype=np.float32)
            if number:
                values *= scale
            made.append(values.astype(dtype, copy=False))
        return tuple(made)


def types_of(call: relax.Call) -> Types:
    """Return the types of a Relax call of two factors, which sums in the type of its result."""
    a, b, out = (dtype_name(expr) for expr in (*call.args, call))
    return Types(a, b, out, out)


def exact(*operands: np.ndarray) -> list[np.ndarray]:
    """Return operands in the type that a reference computes in."""
    integers = all(operand.dtype.kind in "iu" for operand in operands)
    return [operand.astype(np.int64 if integers else np.float64) for operand in operands]


def unpacked(words: np.ndarray, axis: int) -> np.ndarray:
    """Return the bits of words of signs along an axis, float64, which sums them exactly."""
    moved = np.ascontiguousarray(np.moveaxis(words, axis, -1)).astype("<u4")
    bits = np.unpackbits(moved.view(np.uint8), axis=-1, bitorder="little")
    return np.moveaxis(bits, -1, axis).astype(np.float64)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of an ONNX node by name."""
    from onnx import helper

    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def described(call: relax.Call) -> str:
    """Return the operator and the shapes and data types of its operands and result."""

    def tensor(expr: relax.Expr) -> str:
        sizes = static_shape(expr)
        shape = "?" if sizes is None else "x".join(map(str, sizes)) or "scalar"
        return f"{shape} {dtype_name(expr)}"

    operands = " by ".join(map(tensor, call.args))
    return f"{op_name(call).rpartition('.')[2]} {operands} -> {tensor(call)}"
