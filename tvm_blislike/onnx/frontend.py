"""ONNX file -> Relax module with static shapes and its weights bound as constants."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.errors import ModelError, UnsupportedOperatorError
from tvm_blislike.model.tensor_spec import TensorSpec
from tvm_blislike.onnx.alternatives import folded
from tvm_blislike.onnx.converted import check_operators
from tvm_blislike.onnx.converters import CONVERTERS
from tvm_blislike.onnx.four_bits import in_eight_bits
from tvm_blislike.onnx.graph_inputs import resolve_inputs
from tvm_blislike.onnx.node_order import in_order
from tvm_blislike.onnx.operator_sets import check_versions, opset, without_functions
from tvm_blislike.onnx.rewrites.rewriting import rewritten
from tvm_blislike.onnx.schema_functions import without_schema_functions
from tvm_blislike.onnx.sizes import check_sizes
from tvm_blislike.onnx.unsupported import (
    check_readings,
    check_types,
    describe,
    why_unknown,
)

if TYPE_CHECKING:
    import onnx
    import tvm


@dataclass(frozen=True)
class LoadedModel:
    """An imported model: its Relax module and what goes in and out."""

    name: str
    module: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def load(
    model: str | os.PathLike[str] | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> LoadedModel:
    """Import an ONNX model.

    Parameters
    ----------
    model : path or onnx.ModelProto
        The model.
    shapes : mapping of str to sequence of int, optional
        Shapes of the inputs that the model leaves symbolic.

    Returns
    -------
    LoadedModel
        Its module's `main` takes the inputs in the order of the graph.

    Raises
    ------
    ModelError
        No ONNX file, truncated, or inconsistent.
    UnsupportedOperatorError
        An operator that TVM's importer does not know; the message names the nodes.
    InputError
        Symbolic shapes without a value, or `shapes` that do not fit.
    """
    proto, name, inputs = prepared(model, shapes)
    module = _import(proto, name, inputs, lambda: read_model(model)[0])
    check_sizes(proto, name, {spec.name: spec.shape for spec in inputs}, module)
    return LoadedModel(name, module, inputs, _output_specs(proto, module))


def load_sizes(
    model: str | os.PathLike[str] | onnx.ModelProto,
    shapes: Sequence[Mapping[str, Sequence[int]]],
) -> LoadedModel:
    """Import an ONNX model for several sizes each, as one module; errors as of `load`.

    Parameters
    ----------
    model : path or onnx.ModelProto
        The model.
    shapes : sequence of mapping
        The largest last: its inputs and outputs are the result's, its function is `main`.
    """
    from tvm_blislike.onnx.merged import merged

    loaded = [load(model, each) for each in shapes]
    return replace(loaded[-1], module=merged([each.module for each in loaded]))


def prepared(
    model: str | os.PathLike[str] | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[onnx.ModelProto, str, tuple[TensorSpec, ...]]:
    """Return the model as TVM's importer is to read it, its name, and its inputs.

    Parameters and errors are those of `load`.
    """
    proto, name = _of_known_types(model)
    inputs = resolve_inputs(proto, shapes or {})
    shapes_of_inputs = {spec.name: spec.shape for spec in inputs}
    proto = without_schema_functions(proto, shapes_of_inputs, owned=proto is not model)
    proto, types = folded(proto, shapes_of_inputs, owned=proto is not model)
    check_operators(proto)
    _require_tensors(proto)
    check_types(proto)
    proto = rewritten(proto, shapes_of_inputs, owned=proto is not model, types=types)
    check_readings(proto)
    return proto, name, inputs


def inputs_of(
    model: str | os.PathLike[str] | onnx.ModelProto, shapes: Mapping[str, Sequence[int]]
) -> tuple[TensorSpec, ...]:
    """Return what a model takes once it is compiled for some shapes; errors as of `load`."""
    return resolve_inputs(_of_known_types(model)[0], shapes)


def _of_known_types(
    model: str | os.PathLike[str] | onnx.ModelProto,
) -> tuple[onnx.ModelProto, str]:
    """Return the model without functions and types that NumPy lacks, and its name."""
    proto, name = read_model(model)
    proto = without_functions(proto)
    return in_eight_bits(proto, owned=proto is not model), name


def read_model(model: str | os.PathLike[str] | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """Return the parsed model and the name to call it by.

    Raises
    ------
    ModelError
        When there is no such file or it is no complete ONNX model.
    """
    import onnx

    if isinstance(model, onnx.ModelProto):
        _require_graph(model, "the model")
        return in_order(model, owned=False), model.graph.name or "model"
    path = Path(model)
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    try:
        proto = onnx.load(path)
    except Exception as error:  # protobuf, onnx and the file system each raise their own kind
        raise ModelError(f"{path} is not a complete ONNX file: {first_line(error)}") from error
    _require_graph(proto, str(path))
    return in_order(proto, owned=True), path.name


def _require_graph(proto: onnx.ModelProto, name: str) -> None:
    # Protobuf accepts many a random file; a model without these fields is none.
    if not proto.ir_version or not proto.graph.node or not proto.graph.output:
        raise ModelError(f"{name} is not a complete ONNX model: it has no graph")
    check_versions(proto, name)


@compiler_lock()
def _import(
    proto: onnx.ModelProto,
    name: str,
    inputs: Sequence[TensorSpec],
    original: Callable[[], onnx.ModelProto],
) -> tvm.IRModule:
    """Run TVM's importer, turning what it raises into errors that name the model.

    Whether a model is valid says its original: what takes the place of a node may be of an opset
    that the importer alone takes for the model's.
    """
    import onnx

    from tvm_blislike.tvm_seams.importer import failing_node, import_graph

    shapes = {spec.name: list(spec.shape) for spec in inputs}
    try:
        return import_graph(proto.graph, opset(proto), shapes, CONVERTERS)
    except Exception as error:
        try:
            onnx.checker.check_model(original())
        except Exception as fault:
            raise ModelError(f"{name} is not a valid ONNX model: {first_line(fault)}") from error
        node = failing_node(error)
        subject = f"{describe(node)} of {name}" if node else name
        unknown = why_unknown(proto, node) if node else None
        reason = unknown or f"{type(error).__name__}: {first_line(error)}"
        raise UnsupportedOperatorError(f"{subject} cannot be imported by TVM: {reason}") from error


def _require_tensors(proto: onnx.ModelProto) -> None:
    """Raise UnsupportedOperatorError when an output is a sequence or an optional."""
    for value in proto.graph.output:
        kind = value.type.WhichOneof("value") or "tensor_type"
        if kind != "tensor_type":
            makers = [node for node in proto.graph.node if value.name in node.output]
            subject = describe(makers[0]) if makers else f"output {value.name!r}"
            raise UnsupportedOperatorError(
                f"unsupported {subject}: output {value.name!r} is no tensor but "
                f"{kind.removesuffix('_type')}"
            )


def _output_specs(proto: onnx.ModelProto, module: tvm.IRModule) -> tuple[TensorSpec, ...]:
    from tvm import relax

    from tvm_blislike.tvm_seams.relax_ir import type_shape

    result = module["main"].ret_ty
    types = result.fields if isinstance(result, relax.TupleType) else [result]
    specs = []
    # TVM has the most boxes that there may be for their number.
    suppressed = {n.output[0] for n in proto.graph.node if n.op_type == "NonMaxSuppression"}
    for value, type_ in zip(proto.graph.output, types, strict=True):
        if not isinstance(type_, relax.TensorType):
            raise UnsupportedOperatorError(f"output {value.name} is no tensor: {type_}")
        shape = type_shape(type_)
        if value.name in suppressed:
            shape = (None, *shape[1:])
        specs.append(TensorSpec(value.name, shape, str(type_.dtype)))
    return tuple(specs)


def operators_of_run_time_shapes(module: tvm.IRModule) -> list[str]:
    """Return the operators whose results have shapes that only running them tells."""
    from tvm import relax

    from tvm_blislike.tvm_seams import functions, has_known_sizes, op_name

    found: dict[str, None] = {}

    def visit(expr: relax.Expr) -> None:
        if op_name(expr) and not has_known_sizes(expr):
            found[op_name(expr)] = None

    for _, func in functions(module):
        relax.analysis.post_order_visit(func, visit)
    return list(found)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its kind where it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
