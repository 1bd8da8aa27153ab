"""TVM's importer of ONNX graphs."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from tvm_blislike.tvm_seams.branches import called, with_dataflow
from tvm_blislike.tvm_seams.control_loops import loop, scan

if TYPE_CHECKING:
    import onnx

# Returns the results of a node, given where to emit, its operands and its attributes; None to leave
# it to TVM.
Convert = Callable[
    [relax.BlockBuilder, Sequence[relax.Expr | None], Mapping[str, Any]], relax.Expr | None
]
# Handled by the importer itself, outside its table of converters.
_CONTROL_FLOW = {"If", "Constant"}
_LOOPS = {"Loop": loop, "Scan": scan}


class _NotConverted(BaseException):
    """No Exception, of which TVM's importer would print the node's inputs to stdout."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def import_graph(
    graph: onnx.GraphProto,
    opset: int,
    shapes: Mapping[str, list[int]],
    own: Mapping[str, Convert],
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
    own : mapping of str to callable
        Operators that are converted otherwise than by TVM.

    Raises
    ------
    Exception
        Whatever a converter raises; `failing_node` tells for which node.
    """
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    class Importer(ONNXGraphImporter):
        def _convert_operator(self, name: str, inputs: Any, settings: Any, version: int) -> Any:
            try:
                if name in _LOOPS:
                    return _LOOPS[name](self, [*inputs], settings)
                found = own[name](self.bb, inputs, settings) if name in own else None
                if found is not None:
                    return found
                return super()._convert_operator(name, inputs, settings, version)
            except Exception as error:
                raise _NotConverted(error) from None

        def _convert_subgraph(self, bb: relax.BlockBuilder, graph: onnx.GraphProto) -> relax.Expr:
            return called(self, graph, "branch")

        def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
            """Leave that to `_convert_operator`: TVM does not know of `own`."""

    importer = Importer(shapes, "float32", sanitize=False)
    try:
        mod = importer.from_onnx(graph, opset)
    except _NotConverted as failure:
        # TVM's scope of a function leaves its block open when an exception passes, and the builder
        # would warn of it to stderr whenever the last frame that knows it goes.
        importer.bb._end_block()
        raise failure.error from failure
    return with_dataflow(mod) if len(mod.functions) > 1 else mod


def operators() -> set[str]:
    """Return the operators that the importer takes, by their names alone."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    return set(_get_convert_map()) | _CONTROL_FLOW | _LOOPS.keys()


def failing_node(error: Exception) -> onnx.NodeProto | None:
    """Return the node the importer was at: only the frames of its traceback still know.

    They are in that of the error's cause where a converter raised it.
    """
    import onnx

    tracebacks = [e.__traceback__ for e in (error, error.__cause__) if e is not None]
    frames = [frame for trace in tracebacks for frame, _ in traceback.walk_tb(trace)]
    nodes = [frame.f_locals.get("node") for frame in reversed(frames)]
    return next((node for node in nodes if isinstance(node, onnx.NodeProto)), None)
