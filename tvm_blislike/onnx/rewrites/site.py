"""The place of one node in a graph: what is known around it, and what is put there instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx.graphs import attribute
from tvm_blislike.onnx.settings import setting_of_run_time
from tvm_blislike.onnx.unsupported import describe

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
    read : set of str
        Tensors that nodes read, or that are results of the model.
    """

    node: onnx.NodeProto
    opset: int
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, onnx.TensorProto]
    names: Iterator[str]
    read: Set[str]
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

    def is_of(self, dtype: type) -> bool:
        """Whether the first operand is known to be of a data type."""
        found = self.known_dtype()  # NumPy takes None for float64
        return found is not None and found == dtype

    def results(self) -> int:
        """How many results the node has up to the last that anybody reads."""
        read = [i for i, name in enumerate(self.node.output, 1) if name in self.read]
        return max(read, default=0)

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an operand, which must be known."""
        found = self.tensors.get(self.node.input[index])
        if found is None or found.shape is None:
            name = self.node.input[index]
            self.refuse(f"the shape of {name!r} is not known before it runs")
        return found.shape

    def dtype(self, index: int = 0) -> np.dtype:
        """Return the data type of an operand, which must be known."""
        found = self.known_dtype(index)
        if found is None:
            self.refuse(f"the data type of {self.node.input[index]!r} is not known")
        return found

    def known_dtype(self, index: int = 0) -> np.dtype | None:
        """Return the data type of an operand, None when it is not known."""
        found = self.tensors.get(self.node.input[index])
        return found.dtype if found else None

    def is_known(self, index: int = 0) -> bool:
        """Whether shape and data type of an operand are known."""
        found = self.tensors.get(self.node.input[index])
        return found is not None and found.shape is not None and found.dtype is not None

    def is_empty(self) -> bool:
        """Whether the first operand is known to have no elements."""
        return self.is_known() and 0 in self.shape()

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
            unknown = setting_of_run_time(self.node, self.constants)
            self.refuse(unknown or f"its operand {name!r} is known at run time only")
        return numpy_helper.to_array(self.constants[name])

    def known(self, index: int) -> np.ndarray | None:
        """Return the value of an operand, None when it is known at run time only or left out."""
        from onnx import numpy_helper

        tensor = self.constants.get(self.node.input[index]) if self.has_operand(index) else None
        return None if tensor is None else numpy_helper.to_array(tensor)

    def refuse(self, reason: str, hint: str | None = None) -> NoReturn:
        """Raise UnsupportedOperatorError naming the node."""
        raise UnsupportedOperatorError(f"unsupported {describe(self.node)}: {reason}", hint)

    def add(self, operator: str, *operands: str, **attributes: object) -> str:
        """Put a node here and return its result."""
        return self.add_all(operator, operands, 1, **attributes)[0]

    def add_all(
        self, operator: str, operands: Sequence[str], results: int, **attributes: object
    ) -> list[str]:
        """Put a node of several results here and return them."""
        from onnx import helper

        names = [next(self.names) for _ in range(results)]
        made = helper.make_node(operator, operands, names, self.node.name, **attributes)
        self.nodes.append(made)
        return names

    def again(self, *operands: str, without: Sequence[str] = ()) -> str:
        """Put the node here with other operands, and its attributes but some."""
        result = self.add(self.node.op_type, *operands)
        kept = [item for item in self.node.attribute if item.name not in without]
        self.nodes[-1].attribute.extend(kept)
        return result

    def instead(
        self, operator: str, operand: str, dtype: type, without: Sequence[str] = ()
    ) -> Site:
        """Return this place with another operator for its node, which others may write otherwise.

        Its only operand has the shape of the first one here, and the given data type; it has the
        attributes of the node but some.
        """
        from onnx import helper

        node = helper.make_node(operator, [operand], self.node.output, self.node.name)
        node.attribute.extend(item for item in self.node.attribute if item.name not in without)
        known = Tensor(self.shape() if self.is_known() else None, np.dtype(dtype))
        return replace(self, node=node, tensors={**self.tensors, operand: known})

    def constant(self, array: np.ndarray) -> str:
        """Put a constant here and return its name."""
        from onnx import numpy_helper

        name = next(self.names)
        self.initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def number(self, value: int) -> str:
        """Put a number here, an index or an axis."""
        return self.constant(np.array(value, np.int64))

    def cast(self, tensor: str, dtype: np.dtype | type) -> str:
        """Put a cast here."""
        from onnx import helper

        return self.add("Cast", tensor, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reshaped(self, tensor: str, shape: Sequence[int]) -> str:
        """Put a reshape here; sizes of 0 are none, not those of the operand."""
        zeros = {"allowzero": 1} if 0 in shape else {}
        return self.add("Reshape", tensor, self.constant(np.array(shape, np.int64)), **zeros)

    def sliced(
        self, tensor: str, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int]
    ) -> str:
        """Put a slice here, in the form with operands whatever the opset."""
        limits = [self.constant(np.array(values, np.int64)) for values in (starts, ends, axes)]
        return self.add("Slice", tensor, *limits)

    def reduced(self, operator: str, tensor: str, axes: Sequence[int], keepdims: int = 0) -> str:
        """Put a reduction over some axes here."""
        if self.opset >= (13 if operator == "ReduceSum" else 18):
            named = self.constant(np.array(axes, np.int64))
            return self.add(operator, tensor, named, keepdims=keepdims)
        return self.add(operator, tensor, axes=list(axes), keepdims=keepdims)
