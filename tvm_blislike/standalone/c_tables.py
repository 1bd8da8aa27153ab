"""The C text that is generated for each standalone model: its tables, and its weights."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.runtime.runnable import extensions
from tvm_blislike.standalone.call_plan import CallPlan, Storage
from tvm_blislike.tvm_seams.llvm_text import RUNTIME_VARIABLES, own_variable, symbol_of

if TYPE_CHECKING:
    from tvm_blislike.model.tensor_spec import TensorSpec
    from tvm_blislike.standalone.model import StandaloneModel

# Codes of DLPack.
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
_KINDS = {"input": "kInput", "weight": "kWeight", "workspace": "kWorkspace"}


def tables(model: StandaloneModel) -> str:
    """Return tables.h of a model."""
    plan = model.plan
    functions = list(dict.fromkeys(name for name, _ in plan.calls))
    symbols = {name: symbol_of(f"{model.name}_{name}") for name in functions}
    arguments = [number for _, numbers in plan.calls for number in numbers]
    lines = [
        f"#define NAME(x) {model.name}_##x",
        *_variables(model),
        f"#define MODEL_NAME {_text(model.name)}",
        f"#define VERSION {_text(importlib.metadata.version('tvm-blislike'))}",
        f"#define CORE {_text(model.core.name)}",
        f"#define COMPILED_THREADS {model.threads}",
        f"#define INPUTS {len(model.inputs)}",
        f"#define OUTPUTS {len(plan.outputs)}",
        f"#define CALLS {len(plan.calls)}u",
        f"#define MOST_ARGUMENTS {max((len(n) for _, n in plan.calls), default=1)}",
        *model.layout.defined(),
        *(f"int32_t {s}(void*, const Any*, int32_t, Any*);" for s in symbols.values()),
        *_shapes("shape", [tensor.shape for tensor in plan.tensors]),
        *_shapes("input_shape", [spec.shape for spec in model.inputs], "const "),
        *_shapes("output_shape", [spec.shape for spec in model.outputs], "const "),
        _array("char* const", "features", [*_features(model), "NULL"]),
        _array("blislike_tensor", "input_specs", _specs("input", model.inputs)),
        _array("blislike_tensor", "output_specs", _specs("output", model.outputs)),
        _array("uint64_t", "input_places", (f"{p}u" for p in model.layout.input_places)),
        _array("TensorEntry", "tensor_entries", _tensors(plan)),
        _array("uint32_t", "call_tensors", map(str, arguments)),
        _array("CallEntry", "call_entries", _calls(plan, symbols)),
        _array("OutputEntry", "output_entries", _outputs(plan)),
    ]
    return "\n".join(lines) + "\n"


def weights_source(name: str, darwin: bool) -> str:
    """Return the assembly text of an object with the file weights.bin."""
    section = ".section __TEXT,__const" if darwin else ".section .rodata"
    symbol = f"_{name}_weights" if darwin else f"{name}_weights"
    note = "" if darwin else '.section .note.GNU-stack,"",%progbits\n'
    return (
        f'{section}\n.globl {symbol}\n.p2align 6\n{symbol}:\n.incbin "weights.bin"\n.byte 0\n{note}'
    )


def _variables(model: StandaloneModel) -> Iterator[str]:
    """Yield declarations of the variables that the kernels have, and their addresses or NULL."""
    for word, variable in RUNTIME_VARIABLES.items():
        own = own_variable(model.name, variable)
        is_there = f"@{variable} " in model.llvm_text
        if is_there:
            yield f"extern void* {own};"
        yield f"#define {word} {f'&{own}' if is_there else 'NULL'}"


def _features(model: StandaloneModel) -> Iterator[str]:
    """Yield what the kernels may use, by the names of Linux without underscores."""
    for name in extensions(model.core.target_config(model.threads)):
        yield _text("bmi1" if name == "bmi" else name)


def _text(text: str) -> str:
    """Return a C string of UTF-8."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode()
    )
    return f'"{plain}"'


def _shapes(
    name: str, shapes: Sequence[Sequence[int | None]], qualifier: str = ""
) -> Iterator[str]:
    for number, shape in enumerate(shapes):
        sizes = ", ".join(map(str, shape)) or "0"
        yield f"static {qualifier}int64_t {name}_{number}[] = {{{sizes}}};"


def _specs(side: str, specs: Sequence[TensorSpec]) -> Iterator[str]:
    for number, spec in enumerate(specs):
        _, bits = _type(spec.dtype)
        size = -(-bits // 8)
        for extent in spec.shape:
            size *= extent
        fields = (_text(spec.name), _type_name(spec.dtype), len(spec.shape))
        yield f"{{{', '.join(map(str, fields))}, {side}_shape_{number}, {size}u}}"


def _type_name(dtype: str) -> str:
    """Return the name that blislike.h has for the type of an input or output."""
    _, bits = _type(dtype)
    if bits not in (8, 16, 32, 64):
        raise UnsupportedOperatorError(f"C has no inputs or outputs of {dtype}")
    return f"BLISLIKE_{dtype.upper()}"


def _tensors(plan: CallPlan) -> Iterator[str]:
    for number, tensor in enumerate(plan.tensors):
        storage = plan.storages[tensor.storage]
        code, bits = _type(tensor.dtype)
        kind, which, start = _place(storage)
        fields = (kind, code, bits, len(tensor.shape), which)
        yield f"{{{', '.join(map(str, fields))}, {start + tensor.offset}u, shape_{number}}}"


def _place(storage: Storage) -> tuple[str, int, int]:
    """Return the kind of a storage in C, the number of its input or output, and where it begins."""
    if storage.output is not None:
        return "kOutput", storage.output, 0
    if storage.kind == "input":
        return _KINDS["input"], storage.offset, 0
    return _KINDS[storage.kind], 0, storage.offset


def _type(dtype: str) -> tuple[int, int]:
    found = re.fullmatch(r"([a-z]+)(\d*)", dtype)
    if found is None or found[1] not in _CODES:
        raise UnsupportedOperatorError(
            f"not possible without TVM's runtime: tensors of {dtype}",
            "write a library or a bundle instead",
        )
    return _CODES[found[1]], int(found[2] or 8)


def _calls(plan: CallPlan, symbols: dict[str, str]) -> Iterator[str]:
    first = 0
    for name, numbers in plan.calls:
        yield f"{{{symbols[name]}, {first}, {len(numbers)}}}"
        first += len(numbers)


def _outputs(plan: CallPlan) -> Iterator[str]:
    for number in plan.outputs:
        storage = plan.storages[plan.tensors[number].storage]
        written = storage.output is not None
        yield f"{{{number}, {int(written)}, {storage.offset if written else 0}u}}"


def _array(ctype: str, name: str, rows: Iterable[str]) -> str:
    body = ",\n  ".join(rows) or "0"
    return f"static const {ctype} {name}[] = {{\n  {body}}};"
