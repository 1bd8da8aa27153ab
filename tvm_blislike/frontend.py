"""ONNX file -> Relax module with static shapes and its weights bound as constants."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.element_types import check_element_types
from tvm_blislike.errors import InputError, ModelError, UnsupportedOperatorError, suggest
from tvm_blislike.folding import replace_by_constants, settled
from tvm_blislike.infinities import keep_infinities
from tvm_blislike.onnx_rewrites.rewriting import rewritten
from tvm_blislike.operator_sets import check_versions, opset, without_functions
from tvm_blislike.operators import (
    check_operators,
    check_readings,
    describe,
    failing_node,
    why_unknown,
)

if TYPE_CHECKING:
    import onnx
    import tvm


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and data type of a model's input or output.

    Parameters
    ----------
    name : str
        The name in the ONNX graph.
    shape : tuple of int or None
        Sizes; None where a size is known at run time only (outputs such as NonZero).
    dtype : str
        NumPy name of the element type.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    @property
    def sizes(self) -> str:
        """The shape as written on the command line, `1x3x224x224`."""
        return "x".join("?" if size is None else str(size) for size in self.shape) or "scalar"

    def __str__(self) -> str:
        return f"{self.name} {self.sizes} {self.dtype}"


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
    return LoadedModel(name, module, inputs, _output_specs(proto, module))


def prepared(
    model: str | os.PathLike[str] | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[onnx.ModelProto, str, tuple[TensorSpec, ...]]:
    """Return the model as TVM's importer is to read it, its name, and its inputs.

    Parameters and errors are those of `load`.
    """
    proto, name = read_model(model)
    proto = without_functions(proto)
    inputs = resolve_inputs(proto, shapes or {})
    proto = _folded(proto, inputs, owned=proto is not model)
    check_operators(proto)
    _require_tensors(proto)
    check_element_types(proto)
    shapes_of_inputs = {spec.name: spec.shape for spec in inputs}
    proto = rewritten(proto, shapes_of_inputs, owned=proto is not model)
    check_readings(proto)
    return keep_infinities(proto), name, inputs


def _folded(proto: onnx.ModelProto, inputs: Sequence[TensorSpec], owned: bool) -> onnx.ModelProto:
    """Return the model without what the shapes of its inputs settle, a copy unless it is owned."""
    values = settled(proto, {spec.name: spec.shape for spec in inputs})
    if not values:
        return proto
    folded = proto if owned else copy.deepcopy(proto)
    replace_by_constants(folded, values)
    return folded


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
        return model, model.graph.name or "model"
    path = Path(model)
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    try:
        proto = onnx.load(path)
    except Exception as error:  # protobuf, onnx and the file system each raise their own kind
        raise ModelError(f"{path} is not a complete ONNX file: {first_line(error)}") from error
    _require_graph(proto, str(path))
    return proto, path.name


def resolve_inputs(
    proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]
) -> tuple[TensorSpec, ...]:
    """Return the model's inputs with every size known.

    A named symbolic size that `shapes` settles for one input holds for all others.

    Raises
    ------
    InputError
        Naming every input whose shape is still missing, or the first that contradicts the model.
    """
    import onnx

    weights = {tensor.name for tensor in proto.graph.initializer}
    values = [value for value in proto.graph.input if value.name not in weights]
    _require_known_names(shapes, [value.name for value in values])
    declared = {value.name: _declared_shape(value) for value in values}
    symbols = _bind_symbols(declared, shapes)
    specs, missing = [], []
    for value in values:
        shape = _known_shape(declared[value.name], shapes.get(value.name), symbols)
        if shape is None:
            missing.append(f"{value.name} ({_render(declared[value.name])})")
            continue
        elem_type = value.type.tensor_type.elem_type
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
        specs.append(TensorSpec(value.name, shape, dtype))
    if missing:
        example = missing[0].split(" (")[0]
        raise InputError(
            f"these inputs have symbolic shapes: {', '.join(missing)}",
            f"give each of them a shape, for example --shape {example}=1x3x224x224",
        )
    return tuple(specs)


def _require_graph(proto: onnx.ModelProto, name: str) -> None:
    # Protobuf accepts many a random file; a model without these fields is none.
    if not proto.ir_version or not proto.graph.node or not proto.graph.output:
        raise ModelError(f"{name} is not a complete ONNX model: it has no graph")
    check_versions(proto, name)


def _declared_shape(value: onnx.ValueInfoProto) -> list[int | str] | None:
    """Return sizes (int), symbols (str, empty when unnamed), or None for an unknown rank."""
    if not value.type.HasField("tensor_type"):
        raise InputError(f"input {value.name} is no tensor; only tensors can be passed in")
    if not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.dim_value > 0 else dim.dim_param for dim in dims]


def _require_known_names(shapes: Mapping[str, Sequence[int]], names: list[str]) -> None:
    for name in shapes:
        if name not in names:
            raise InputError(f"the model has no input named {name!r}", suggest(name, names))


def _bind_symbols(
    declared: Mapping[str, list[int | str] | None], shapes: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """Return the value of each named symbol that the given shapes settle."""
    symbols: dict[str, int] = {}
    for name, given in shapes.items():
        pattern = declared[name]
        if any(size < 1 for size in given):
            raise InputError(f"shape {_render(given)} of {name}: every size must be at least 1")
        if pattern is None:
            continue
        expected = [symbols.get(dim, dim) if isinstance(dim, str) else dim for dim in pattern]
        fits = len(given) == len(expected) and all(
            isinstance(dim, str) or dim == size for dim, size in zip(expected, given, strict=True)
        )
        if not fits:
            raise InputError(
                f"shape {_render(given)} does not fit input {name}, which is {_render(expected)}"
            )
        symbols |= {d: s for d, s in zip(expected, given, strict=True) if isinstance(d, str) and d}
    return symbols


def _known_shape(
    declared: list[int | str] | None, given: Sequence[int] | None, symbols: Mapping[str, int]
) -> tuple[int, ...] | None:
    if given is not None:
        return tuple(given)
    if declared is None:
        return None
    shape = [symbols.get(dim, dim) if isinstance(dim, str) else dim for dim in declared]
    return None if any(isinstance(dim, str) for dim in shape) else tuple(shape)


def _render(shape: Sequence[int | str] | None) -> str:
    if shape is None:
        return "unknown rank"
    return "x".join(str(dim) or "?" for dim in shape) or "scalar"


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

    from tvm_blislike.adapter import import_graph

    shapes = {spec.name: list(spec.shape) for spec in inputs}
    try:
        with compiler_lock():
            return import_graph(proto.graph, opset(proto), shapes)
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

    result = module["main"].ret_ty
    types = result.fields if isinstance(result, relax.TupleType) else [result]
    specs = []
    for value, type_ in zip(proto.graph.output, types, strict=True):
        if not isinstance(type_, relax.TensorType):
            raise UnsupportedOperatorError(f"output {value.name} is no tensor: {type_}")
        sizes = type_.shape.values if isinstance(type_.shape, relax.ShapeExpr) else []
        shape = tuple(int(s) if hasattr(s, "value") else None for s in sizes)
        specs.append(TensorSpec(value.name, shape, str(type_.dtype)))
    return tuple(specs)


def operators_of_run_time_shapes(module: tvm.IRModule) -> list[str]:
    """Return the operators whose results have shapes that only running them tells."""
    from tvm import relax

    from tvm_blislike.adapter import has_known_sizes, op_name

    found: dict[str, None] = {}

    def visit(expr: relax.Expr) -> None:
        if op_name(expr) and not has_known_sizes(expr):
            found[op_name(expr)] = None

    relax.analysis.post_order_visit(module["main"], visit)
    return list(found)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its kind where it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
