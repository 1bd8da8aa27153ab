"""The C header of a standalone model: the interface of all, and what is the model's own."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_blislike.standalone.layout import Layout

if TYPE_CHECKING:
    from tvm_blislike.model.tensor_spec import TensorSpec
    from tvm_blislike.standalone.model import StandaloneModel

SOURCES = Path(__file__).parent / "static"
# .h and .hpp.
INTERFACE = SOURCES / "blislike"
# Names an argument cannot have: those of the function that has them, and what C and C++ reserve.
_WORDS = (
    "runner error inputs_ outputs_ auto bool break case catch char class const continue default "
    "delete do double else enum extern float for goto if inline int long namespace new operator "
    "private public register return short signed sizeof static struct switch template this throw "
    "try typedef union unsigned using virtual void volatile while"
).split()
_C_TYPES = {"float32": "float", "float64": "double", "bool": "uint8_t"}
_C_TYPES |= {"float16": "uint16_t", "bfloat16": "uint16_t"}


def identifier(name: str) -> str:
    """Return a C identifier that resembles a name."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"


def header(model: StandaloneModel, needs: Sequence[str] = ()) -> str:
    """Return the C header of a model.

    Parameters
    ----------
    model : StandaloneModel
        The model.
    needs : sequence of str
        What an object without an operating system takes from elsewhere.
    """
    name, upper = model.name, model.name.upper()
    version = importlib.metadata.version("tvm-blislike")
    inputs, outputs = _names(model)
    return f"""{INTERFACE.with_suffix(".h").read_text()}
/* The model {name}, compiled by tvm-blislike {version} for {model.core.name}, threads: \
{model.threads}.
{_specs("inputs", inputs, model.inputs)}{_specs("outputs", outputs, model.outputs)}\
{_needs(needs)} */
#ifndef BLISLIKE_MODEL_{upper}
#define BLISLIKE_MODEL_{upper}

#ifdef __cplusplus
extern "C" {{
#endif

extern const blislike_model {name}_model;

/* blislike_bytes({name}_model, threads), as a constant. */
#define {upper}_BYTES(threads) {_bytes(model.layout)}

/* blislike_run with these arrays. */
static inline blislike_status {name}_run({_parameters(model)}) {{
  const blislike_input inputs_[] = {{
    {_rows(inputs, model.inputs)}}};
  const blislike_output outputs_[] = {{
    {_rows(outputs, model.outputs)}}};
  return blislike_run(runner, inputs_, {len(inputs)}, outputs_, {len(outputs)}, error);
}}

#ifdef __cplusplus
}}
#endif

#endif
"""


def _bytes(layout: Layout) -> str:
    return f"({layout.main_bytes}u + (threads) * (size_t){layout.each_bytes}u)"


def _needs(needs: Sequence[str]) -> str:
    if not needs:
        return ""
    return f""" *
 * It needs from elsewhere: {", ".join(needs)}.
 * No TVM, no heap, no thread, no file: runners are made in memory of the caller's, for one thread,
 * and one call is made at a time in a program.
"""


def _specs(side: str, names: Sequence[str], specs: Sequence[TensorSpec]) -> str:
    rows = zip(names, specs, strict=True)
    return "".join(f" *   {side} {name}: {s.sizes} {s.dtype}\n" for name, s in rows)


def _parameters(model: StandaloneModel) -> str:
    inputs, outputs = _names(model)
    read = [f"const {_c_type(s)}* {n}" for s, n in zip(model.inputs, inputs, strict=True)]
    written = [f"{_c_type(s)}* {n}" for s, n in zip(model.outputs, outputs, strict=True)]
    return ", ".join(["blislike_runner* runner", *read, *written, "blislike_error* error"])


def _rows(names: Sequence[str], specs: Sequence[TensorSpec]) -> str:
    """Return values of blislike_input or blislike_output; one without a meaning where none is."""
    rows = [
        f"{{{name}, {' * '.join((f'sizeof *{name}', *map(str, spec.shape)))}, 0, 0, NULL}}"
        for name, spec in zip(names, specs, strict=True)
    ]
    return ",\n    ".join(rows) or "{NULL, 0, 0, 0, NULL}"


def _names(model: StandaloneModel) -> tuple[list[str], list[str]]:
    """Return the C names of inputs and outputs: no two alike, none a word of C."""
    taken, names = set(_WORDS), []
    for spec in (*model.inputs, *model.outputs):
        name = identifier(spec.name)
        while name in taken:
            name += "_"
        taken.add(name)
        names.append(name)
    return names[: len(model.inputs)], names[len(model.inputs) :]


def _c_type(spec: TensorSpec) -> str:
    return _C_TYPES.get(spec.dtype, f"{spec.dtype}_t")
