"""Every use of a private or undocumented side of TVM 0.27, each behind one function.

| module | of TVM |
|---|---|
| `attributes` | attributes and annotations that its passes read |
| `branches` | the importer's state at a graph inside a node |
| `control_loops` | the importer's state at the body of a loop |
| `executables` | what an executable is made of |
| `importer` | its importer of ONNX graphs |
| `llvm_text` | names and calls in the LLVM text and machine code it generates |
| `loaded` | its runtime library without its compiler: what a model runs with |
| `measuring` | MetaSchedule's spaces, builders and runners, and its worker processes |
| `own_operators` | operators of Relax that it lets others declare |
| `pipelines` | its pipelines for Relax functions and PrimFuncs |
| `relax_ir` | how it spells its Relax IR |
| `runtime` | threads, workspaces and caches of its C runtime |
| `schedules` | its schedules of PrimFuncs, without checks in Python |
| `steps` | functions inside functions that are being built, and that call themselves |
| `tapes` | the calls that its virtual machine makes, and its C interface of functions |
| `weights` | constants of functions as arguments |
| `wheels` | the files in its wheels |
| `workers` | what its worker processes run |

`tests/seams` states what is relied upon, a file for each of these; `tests/structure/test_seams.py`
keeps the rest of the library away from it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import tvm_ffi

from tvm_blislike.errors import ChoiceError, all_errors

if TYPE_CHECKING:
    from tvm_blislike.tvm_seams.relax_ir import (
        bindings,
        constant,
        constant_array,
        copy_into,
        dtype_name,
        functions,
        has_known_sizes,
        is_constant,
        op_name,
        operators,
        permuted_axes,
        scaled_constant,
        static_shape,
        use_counts,
    )

__all__ = [
    "bindings",
    "constant",
    "constant_array",
    "copy_into",
    "dtype_name",
    "functions",
    "has_known_sizes",
    "is_constant",
    "op_name",
    "operators",
    "permuted_axes",
    "scaled_constant",
    "static_shape",
    "use_counts",
]

# What is raised in a pass goes through C++, which knows these by name; all else would come out as
# a RuntimeError, Ctrl-C and all.
for _error in (KeyboardInterrupt, ChoiceError, *all_errors()):
    tvm_ffi.register_error(f"tvm_blislike.{_error.__name__}", _error)


def __getattr__(name: str) -> Any:
    """Import how Relax is spelled on first use: what only runs needs nothing of its compiler."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.relax_ir"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
