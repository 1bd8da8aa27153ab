"""What TVM's executables are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_blislike.tvm_seams.loaded import LLVM, MACHINE, Weights
from tvm_blislike.tvm_seams.relax_ir import functions
from tvm_blislike.tvm_seams.tapes import loop_module
from tvm_blislike.tvm_seams.weights import taken_out

# Of code that was loaded.
_LOADED = "library"
_ANY = {"kind": LLVM}


def module_of(executable: tvm.runtime.Executable | tvm.runtime.Module) -> tvm.runtime.Module:
    """Return the module of what `tvm.compile` returned, or of a loaded library: itself."""
    return getattr(executable, "mod", executable)


def calling(lowered: tvm.IRModule, kernels: Iterable[tvm.runtime.Module]) -> tvm.runtime.Executable:
    """Return an executable of a module's Relax functions that calls compiled kernels.

    Parameters
    ----------
    lowered : IRModule
        Relax functions as a virtual machine takes them; its PrimFuncs are left alone.
    kernels : iterable of Module
        The code of these, in any number of parts.
    """
    executable = _without_kernels(relax_part(lowered))
    for part in kernels:
        executable.mod.import_module(part)
    return executable


def taking_weights(
    lowered: tvm.IRModule, kernels: Iterable[tvm.runtime.Module]
) -> tuple[tvm.runtime.Executable, Weights]:
    """Return an executable as of `calling`, whose functions take their weights, and these."""
    without, weights = taken_out(relax_part(lowered))
    return calling(without, kernels), weights


def relax_part(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module's Relax functions alone, which is all that `calling` reads."""
    return tvm.IRModule(dict(functions(mod)), attrs=mod.attrs)


def _without_kernels(mod: tvm.IRModule) -> tvm.runtime.Executable:
    """Compile Relax functions alone, and drop the empty module of kernels."""
    executable = tvm.compile(mod, tvm.target.Target(_ANY), relax_pipeline=None)
    executable.mod.clear_imports()
    return executable


def is_exportable(module: tvm.runtime.Module) -> bool:
    """Whether a module is what `tvm.compile` returned, and no loaded library."""
    return module.kind == MACHINE and all(part.kind != _LOADED for part in module.imports)


def add_text(module: tvm.runtime.Module, name: str, text: bytes) -> None:
    """Put a text into an exportable module that `loaded.text_in` finds again, once."""
    if any(part.kind == module.kind for part in module.imports):
        return
    builder = relax.BlockBuilder()
    with builder.function(name, params=[]):
        builder.emit_func_output(relax.const(np.frombuffer(text, dtype="uint8")))
    module.import_module(_without_kernels(builder.get()).mod)


def write_machine(executable: tvm.runtime.Executable | tvm.runtime.Module, path: Path) -> None:
    """Write what a virtual machine runs, its constants included, without its kernels."""
    module_of(executable).write_to_file(str(path), MACHINE)


def code_parts(
    executable: tvm.runtime.Executable | tvm.runtime.Module,
) -> list[tvm.runtime.Module]:
    """Return the modules of generated code of a compiled model, to be written as objects.

    The last one is the loop that makes recorded calls again, see `tapes`: who runs the model out of
    a library then compiles nothing.

    Raises
    ------
    ValueError
        When it calls anything else.
    """
    parts = list(module_of(executable).imports)
    others = [part.kind for part in parts if part.kind != LLVM]
    if others:
        raise ValueError(f"a model that calls modules of {', '.join(others)}")
    return [*parts, loop_module()]


def with_kernels(
    executable: tvm.runtime.Executable, kernels: tvm.runtime.Module
) -> tvm.runtime.Executable:
    """Have an executable run loaded kernels in place of its own, and return it."""
    executable.mod.clear_imports()
    executable.mod.import_module(kernels)
    return executable


def code_of(
    executable: tvm.runtime.Executable | tvm.runtime.Module, form: str = "ll"
) -> str | None:
    """Return the code of all kernels as text; None for a loaded library, which has none.

    Parameters
    ----------
    form : str
        "ll" for LLVM's text, "asm" for machine code.
    """
    module = module_of(executable)
    parts = [part for part in (module, *module.imports) if part.kind == LLVM]
    return "".join(part.inspect_source(form) for part in parts) if parts else None


def functions_of_python(executable: tvm.runtime.Executable | tvm.runtime.Module) -> list[str]:
    """Return what a compiled model calls that TVM has in Python only, such as `nonzero`."""
    text: Any = module_of(executable)["as_text"]()
    return re.findall(r"^@relax\.run\.(\S+) packed_func;$", text, re.M)
