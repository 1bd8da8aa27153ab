"""TVM's importer of ONNX graphs."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tvm

if TYPE_CHECKING:
    import onnx

# Handled by the importer itself, outside its table of converters.
_CONTROL_FLOW = {"If", "Constant"}


class _NotConverted(BaseException):
    """No Exception, of which TVM's importer would print the node's inputs to stdout."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def import_graph(
    graph: onnx.GraphProto, opset: int, shapes: Mapping[str, list[int]]
) -> tvm.IRModule:
    """Import an ONNX graph with its weights as constants, silently.

    TVM's `from_onnx` would have ONNX's checker copy the whole model, two seconds for one of 500 MB,
    and warn of what it finds.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph.
    opset : int
        Version of the standard operators.
    shapes : mapping of str to list of int
        Shapes of the inputs.

    Raises
    ------
    Exception
        Whatever a converter raises; `failing_node` tells for which node.
    """
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    class Importer(ONNXGraphImporter):
        def _convert_operator(self, *arguments: Any) -> Any:
            try:
                return super()._convert_operator(*arguments)
            except Exception as error:
                raise _NotConverted(error) from None

    try:
        return Importer(shapes, "float32", sanitize=False).from_onnx(graph, opset)
    except _NotConverted as failure:
        raise failure.error from failure


def operators() -> set[str]:
    """Return the operators that the importer takes, by their names alone."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    return set(_get_convert_map()) | _CONTROL_FLOW


def failing_node(error: Exception) -> onnx.NodeProto | None:
    """Return the node the importer was at: only the frames of its traceback still know.

    They are in that of the error's cause where a converter raised it.
    """
    import onnx

    tracebacks = [e.__traceback__ for e in (error, error.__cause__) if e is not None]
    frames = [frame for trace in tracebacks for frame, _ in traceback.walk_tb(trace)]
    nodes = [frame.f_locals.get("node") for frame in reversed(frames)]
    return next((node for node in nodes if isinstance(node, onnx.NodeProto)), None)
