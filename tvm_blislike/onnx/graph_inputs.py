"""What goes into an ONNX graph: names, shapes with every size known, and data types."""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tvm_blislike.errors import InputError, ModelError, suggest
from tvm_blislike.model.tensor_spec import TensorSpec
from tvm_blislike.onnx.sizes import MOST_ELEMENTS, rendered
from tvm_blislike.onnx.unsupported import is_computed, type_name

if TYPE_CHECKING:
    import onnx

# What a hint proposes for sizes that the model leaves open, by the rank of the input: images are
# N, C, H, W, volumes have a depth as well.
_USUAL = {4: (1, 3, 224, 224), 5: (1, 3, 16, 112, 112)}
# Names of first sizes that are no batch; exporters make up others, such as "s0" or "unk__12".
_OTHER_SIZE = re.compile("seq|len|time|token|frame|step|point|box|num|count|height|width")
# As far as a model declares it: sizes, symbols (empty when unnamed), or None for an unknown rank.
Declared = Sequence[int | str] | None


def resolve_inputs(
    proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]
) -> tuple[TensorSpec, ...]:
    """Return the model's inputs with every size known.

    A named symbolic size that `shapes` settles for one input holds for all others; it may also be
    given by its own name, as a shape of one size. Without `shapes` a model of which nothing but
    the batch is open gets a batch of 1, with a warning: one size, the first of its inputs, unless
    its name says that it is something else.

    Raises
    ------
    ModelError
        When two inputs share a name.
    InputError
        Naming every input whose shape is still missing, or the first that contradicts the model,
        is too large, or has a data type that cannot be passed in.
    """
    values = _values(proto)
    names = [value.name for value in values]
    _require_names(names)
    declared = {value.name: _declared_shape(value) for value in values}
    given = {name: shapes[name] for name in shapes if name in names}
    symbols = _named_sizes(declared, {n: shapes[n] for n in shapes if n not in names})
    symbols = _bind_symbols(declared, given, symbols)
    settled = {name: _settled(declared[name], given.get(name), symbols) for name in names}
    if not shapes:
        _settle_batch(settled)
    _require_complete(settled)
    return tuple(_spec(value, settled[value.name]) for value in values)


def _require_names(names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ModelError(f"this is no valid ONNX model: {count} inputs are named {name!r}")


def declared_inputs(proto: onnx.ModelProto) -> dict[str, Declared]:
    """Return what a model says of the shape of each input, in order.

    Raises
    ------
    InputError
        When one is no tensor, or of a type that cannot be passed in.
    """
    return {value.name: _declared_shape(value) for value in _values(proto)}


def _values(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    weights = {tensor.name for tensor in proto.graph.initializer}
    return [value for value in proto.graph.input if value.name not in weights]


def _named_sizes(
    declared: Mapping[str, Declared], given: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """Return the sizes that are given by their own names."""
    names = {dim for shape in declared.values() for dim in shape or () if isinstance(dim, str)}
    symbols: dict[str, int] = {}
    for name, sizes in given.items():
        if not name or name not in names:
            known = [*declared, *filter(None, names)]
            kinds = "input or open size" if any(names) else "input"
            raise InputError(f"the model has no {kinds} named {name!r}", suggest(name, known))
        if len(sizes) != 1 or sizes[0] < 0:
            raise InputError(f"{name} is one size of the model, not {rendered(sizes)}")
        symbols[name] = sizes[0]
    return symbols


def _declared_shape(value: onnx.ValueInfoProto) -> Declared:
    if not value.type.HasField("tensor_type"):
        raise InputError(f"input {value.name} is no tensor; only tensors can be passed in")
    type_ = value.type.tensor_type
    if not is_computed(type_.elem_type):
        raise InputError(
            f"input {value.name} has the data type {type_name(type_.elem_type)}, which cannot be "
            "passed in",
            "convert the model to floating-point numbers of 16 bits or more, or to integers of 8",
        )
    if not type_.HasField("shape"):
        return None
    return [_declared_size(dim) for dim in type_.shape.dim]


def _declared_size(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    # Some exporters write -1 for what is open.
    known = dim.HasField("dim_value") and dim.dim_value >= 0
    return dim.dim_value if known else dim.dim_param


def _bind_symbols(
    declared: Mapping[str, Declared],
    shapes: Mapping[str, Sequence[int]],
    known: Mapping[str, int],
) -> dict[str, int]:
    """Return the value of each named symbol that is known or that the given shapes settle."""
    symbols = dict(known)
    for name, given in shapes.items():
        pattern = declared[name]
        if any(size < 0 for size in given):
            raise InputError(f"shape {rendered(given)} of {name}: no size may be negative")
        if pattern is None:
            continue
        expected = [symbols.get(dim, dim) if isinstance(dim, str) else dim for dim in pattern]
        fits = len(given) == len(expected) and all(
            isinstance(dim, str) or dim == size for dim, size in zip(expected, given, strict=True)
        )
        if not fits:
            raise InputError(
                f"shape {rendered(given)} does not fit input {name}, which is {rendered(expected)}"
            )
        symbols |= {d: s for d, s in zip(expected, given, strict=True) if isinstance(d, str) and d}
    return symbols


def _settled(
    declared: Declared, given: Sequence[int] | None, symbols: Mapping[str, int]
) -> list[int | str] | None:
    """Return what is known of a shape by now."""
    if given is not None:
        return list(given)
    if declared is None:
        return None
    return [symbols.get(dim, dim) if isinstance(dim, str) else dim for dim in declared]


def _settle_batch(shapes: Mapping[str, list[int | str] | None]) -> None:
    """Make the batch 1, in place, where nothing else is open."""
    open_ = {n: shape for n, shape in shapes.items() if shape is None or not _is_complete(shape)}
    if not open_ or not all(shape and _is_complete(shape[1:]) for shape in open_.values()):
        return
    symbols = {str(shape[0]) for shape in open_.values()}
    rank = max(map(len, open_.values()))
    if len(symbols) > 1 or rank < 2 or not _is_batch(symbol := symbols.pop(), rank):
        return
    for shape in open_.values():
        shape[0] = 1
    example = " ".join(f"--shape {name}={rendered(shape)}" for name, shape in open_.items())
    named = f" ({symbol})" if symbol else ""
    warnings.warn(f"the batch{named} is open: compiled for 1, as with {example}", stacklevel=2)


def _is_batch(symbol: str, rank: int) -> bool:
    """Whether the first size is a batch by its name, if it has one, or by the rank of images."""
    return rank > 3 or "batch" in symbol.lower() or not _OTHER_SIZE.search(symbol.lower())


def _is_complete(shape: Sequence[int | str]) -> bool:
    return not any(isinstance(size, str) for size in shape)


def _require_complete(shapes: Mapping[str, list[int | str] | None]) -> None:
    missing = {n: shape for n, shape in shapes.items() if shape is None or not _is_complete(shape)}
    if not missing:
        return
    listed = ", ".join(f"{name} ({rendered(shape)})" for name, shape in missing.items())
    symbols: dict[str, int] = {}
    example = " ".join(f"--shape {n}={_example(shape, symbols)}" for n, shape in missing.items())
    raise InputError(
        f"these inputs have symbolic shapes: {listed}",
        f"give each of them a shape, for example {example}",
    )


def _example(shape: list[int | str] | None, symbols: dict[str, int]) -> str:
    """Return a shape with usual sizes for those that are open, the same for the same symbol."""
    if shape is None:
        return rendered(_USUAL[4])
    usual = _USUAL.get(len(shape), (1, *[128] * (len(shape) - 1)))
    sizes = [
        size if isinstance(size, int) else symbols.setdefault(size, new) if size else new
        for size, new in zip(shape, usual, strict=True)
    ]
    return rendered(sizes)


def _spec(value: onnx.ValueInfoProto, shape: list[int | str]) -> TensorSpec:
    import onnx

    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    spec = TensorSpec(value.name, tuple(shape), dtype)
    count = math.prod(spec.shape)
    if count > MOST_ELEMENTS:
        raise InputError(
            f"input {spec.name} of {spec.sizes} has {count:,} elements; "
            f"a tensor has {MOST_ELEMENTS:,} at most"
        )
    return spec
