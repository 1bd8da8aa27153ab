"""What a model says it is written in: versions of ONNX, operator sets, functions of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_blislike.errors import ModelError

if TYPE_CHECKING:
    import onnx

# Two names of ONNX's own operators.
STANDARD = ("", "ai.onnx")
MICROSOFT = "com.microsoft"
# This package's own, of one operator (`impossible`).
OWN, IMPOSSIBLE = "tvm_blislike", "Impossible"
# Operators that round to steps of 8 bits, beside all QLinear ones.
_OF_STEPS = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QGemm")
# TVM's importer takes none that is older.
_OLDEST_IR = 3


def check_versions(proto: onnx.ModelProto, name: str) -> None:
    """Raise ModelError when the versions are none that the installed `onnx` knows.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    name : str
        What to call it.
    """
    from onnx import IR_VERSION, defs

    _require(name, "IR version", proto.ir_version, _OLDEST_IR, IR_VERSION)
    versions = {item.version for item in proto.opset_import if item.domain in STANDARD}
    if not versions and (_has_standard_nodes(proto) or not proto.opset_import):
        raise ModelError(f"{name} does not say which version of ONNX's operators it is written in")
    for version in sorted(versions):
        _require(name, "operator set (opset)", version, 1, defs.onnx_opset_version())
    if len(versions) > 1:
        listed = " and ".join(map(str, sorted(versions)))
        raise ModelError(f"{name} names several versions of ONNX's operators: {listed}")


def _has_standard_nodes(proto: onnx.ModelProto) -> bool:
    return any(node.domain in STANDARD for node in proto.graph.node)


def opset(proto: onnx.ModelProto) -> int:
    """Return the version of ONNX's operators that a model is written in, the newest for none."""
    from onnx import defs

    named = (item.version for item in proto.opset_import if item.domain in STANDARD)
    return next(named, defs.onnx_opset_version())


def without_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its own functions written out, itself when it has none.

    Functions written in another version of ONNX than the model stay. Weights do not pass
    through ONNX, whose messages end at 2 GB.
    """
    import onnx
    from onnx import inliner

    if not proto.functions:
        return proto
    weights = proto.graph.initializer
    shell = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    shell.functions.extend(proto.functions)
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(shell.graph, field).extend(getattr(proto.graph, field))
    shell.graph.name = proto.graph.name
    shell.graph.initializer.extend(
        onnx.TensorProto(name=t.name, dims=t.dims, data_type=t.data_type) for t in weights
    )
    inlined = inliner.inline_local_functions(shell)
    del inlined.graph.initializer[:]
    inlined.graph.initializer.extend(weights)
    return inlined


def _require(name: str, what: str, version: int, oldest: int, newest: int) -> None:
    if not oldest <= version <= newest:
        raise ModelError(
            f"{name} has {what} {version}; the installed onnx package knows {oldest} to {newest}",
            "export the model again, or install a newer onnx package",
        )


def is_quantized(proto: onnx.ModelProto) -> bool:
    """Return whether a model rounds to steps: it quantizes tensors."""
    return any(
        node.op_type in _OF_STEPS or node.op_type.startswith("QLinear") for node in proto.graph.node
    )
