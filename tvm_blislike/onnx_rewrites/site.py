"""The place of one node in a graph: what is known around it, and what is put there instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.operators import attribute, describe

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Tensor:
    """What shape inference knows of a tensor; None for what it does not."""

    shape: tuple[int, ...] | None
    dtype: np.dtype | None


@dataclass
class Site:
    """One node to write otherwise.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.
    opset : int
        Version of ONNX's operators that it is written in.
    tensors : mapping of str to Tensor
        What its operands and results are.
    constants : mapping of str to onnx.TensorProto
        Operands whose values are known.
    names : iterator of str
        Names that no tensor of the model has.
    """

    node: onnx.NodeProto
    opset: int
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, onnx.TensorProto]
    names: Iterator[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute, texts as str."""
        value = attribute(self.node, name)
        if value is None:
            return default
        return value.decode() if isinstance(value, bytes) else value

    def has_operand(self, index: int) -> bool:
        """Whether an operand is given at all."""
        return len(self.node.input) > index and bool(self.node.input[index])

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an operand, which must be known."""
        return self._known(index).shape

    def dtype(self, index: int = 0) -> np.dtype:
        """Return the data type of an operand, which must be known."""
        return self._known(index).dtype

    def is_known(self, index: int = 0) -> bool:
        """Whether shape and data type of an operand are known."""
        found = self.tensors.get(self.node.input[index])
        return found is not None and found.shape is not None and found.dtype is not None

    def dtype_if_known(self, index: int) -> np.dtype | None:
        """Return the data type of an operand, None when it is not known."""
        found = self.tensors.get(self.node.input[index])
        return found.dtype if found else None

    def result_shape(self) -> tuple[int, ...] | None:
        """Return the shape of the first result, None when it is not known."""
        found = self.tensors.get(self.node.output[0])
        return found.shape if found else None

    def value(self, index: int) -> np.ndarray | None:
        """Return an operand that must be a constant, None when it is left out."""
        from onnx import numpy_helper

        if not self.has_operand(index):
            return None
        name = self.node.input[index]
        if name not in self.constants:
            self.refuse(f"its operand {name!r} is known at run time only")
        return numpy_helper.to_array(self.constants[name])

    def refuse(self, reason: str, hint: str | None = None) -> NoReturn:
        """Raise UnsupportedOperatorError naming the node."""
        raise UnsupportedOperatorError(f"unsupported {describe(self.node)}: {reason}", hint)

    def add(self, operator: str, *operands: str, **attributes: object) -> str:
        """Put a node here and return its result."""
        from onnx import helper

        result = next(self.names)
        made = helper.make_node(operator, operands, [result], self.node.name, **attributes)
        self.nodes.append(made)
        return result

    def cast(self, name: str, dtype: np.dtype) -> str:
        """Put a conversion here and return its result."""
        from onnx import helper

        return self.add("Cast", name, to=helper.np_dtype_to_tensor_dtype(dtype))

    def constant(self, array: np.ndarray) -> str:
        """Put a constant here and return its name."""
        from onnx import numpy_helper

        name = next(self.names)
        self.initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def _known(self, index: int) -> Tensor:
        if not self.is_known(index):
            name = self.node.input[index]
            self.refuse(f"the shape of {name!r} is not known before it runs")
        return self.tensors[self.node.input[index]]
