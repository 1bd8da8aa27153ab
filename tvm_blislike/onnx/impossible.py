"""`Impossible`: stands for a tensor that cannot be computed, an operator of this package's own.

The model compiles, and raises an InputError where the tensor is to be computed after all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvm import relax

from tvm_blislike.model import marks
from tvm_blislike.onnx.operator_sets import IMPOSSIBLE, OWN
from tvm_blislike.onnx.recurrent import text
from tvm_blislike.tvm_seams.raising import refusal

if TYPE_CHECKING:
    import onnx

_ADVICE = "give inputs that lead elsewhere, or compile the model for other sizes"


def impossible(value: onnx.ValueInfoProto, operand: str, message: str) -> onnx.NodeProto:
    """Return the node of a tensor.

    Parameters
    ----------
    value : onnx.ValueInfoProto
        The tensor's name, element type and shape, all of them known.
    operand : str
        A tensor that is known at run time only, of known shape; its value does not matter.
    message : str
        Why it cannot be computed.
    """
    from onnx import helper

    type_ = value.type.tensor_type
    shape = [dim.dim_value for dim in type_.shape.dim]
    dtype = str(helper.tensor_dtype_to_np_dtype(type_.elem_type))
    sizes = {"shape": shape} if shape else {}  # an empty list has no type
    return helper.make_node(
        IMPOSSIBLE, [operand], [value.name], domain=OWN, dtype=dtype, message=message, **sizes
    )


def convert(
    builder: relax.BlockBuilder,
    operands: Sequence[relax.Expr | None],
    settings: Mapping[str, Any],
) -> relax.Expr:
    """Convert a node to a call of a kernel that raises the error."""
    dtype, message = text(settings["dtype"]), text(settings["message"])
    shape, notes = tuple(settings.get("shape", ())), {marks.IMPOSSIBLE: message}
    return refusal(builder, operands[0], shape, dtype, f"{message}; {_ADVICE}", notes)
