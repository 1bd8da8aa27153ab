"""Names and calls in the LLVM text and in the machine code that TVM generates."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

# Calls of TVM's allocator: device, number, bytes, type.
_ALLOCATION = re.compile(r"call ptr %\S+\(i32 \S+, i32 \S+, i64 (\S+), i32 \d+, i32 \d+\)")
_TASK = "__tvm_parallel_lambda"
# Variables in machine code that TVM's runtime fills with its functions when it loads a library, by
# what these do for kernels.
RUNTIME_VARIABLES = {
    "TAKE": "__TVMBackendAllocWorkspace",
    "GIVE_BACK": "__TVMBackendFreeWorkspace",
    "LAUNCH": "__TVMBackendParallelLaunch",
    "BARRIER": "__TVMBackendParallelBarrier",
}


def symbol_of(function: str) -> str:
    """Return the symbol of a PrimFunc's entry, a packed function of TVM's C interface."""
    return f"__tvm_ffi_{function}"


def parts_of(function: str, bodies: Mapping[str, str]) -> list[str]:
    """Return the names of what TVM made of a PrimFunc, among functions of machine code by name.

    They are its entry, which checks the arguments, what it computes where that is a function of its
    own, and the bodies of the parallel loops that these start.
    """
    own = [name for name in (symbol_of(function), f"{function}_compute_") if name in bodies]
    for name in own:
        for used in re.findall(r"__tvm_parallel_lambda[\w.]*", bodies[name]):
            if used in bodies and used not in own:
                own.append(used)
    return own


def allocations(text: str, of_tasks: bool) -> list[list[int]]:
    """Return the bytes of all workspaces that each function of LLVM's text asks TVM for.

    Parameters
    ----------
    text : str
        Of LLVM.
    of_tasks : bool
        Whether to return those of bodies of parallel loops, or those of all other functions.
    """
    # A size that is no constant would be that of a dynamic shape.
    functions = re.split(r"^define ", text, flags=re.M)[1:]
    wanted = [f for f in functions if (f"@{_TASK}" in f.partition("\n")[0]) == of_tasks]
    return [[int(size) for size in _ALLOCATION.findall(function)] for function in wanted]


def own_variable(prefix: str, variable: str) -> str:
    """Return a name for one of `RUNTIME_VARIABLES` in the model of a prefix, as long as it was."""
    digest = hashlib.sha256(f"{prefix} {variable}".encode()).hexdigest()
    return f"__{digest}"[: len(variable)]


def with_own_variables(code: bytes, prefix: str) -> bytes:
    """Return an object file whose `RUNTIME_VARIABLES` have names of a model's own.

    They are weak: models in one program would share them, and with them each other's threads.
    """
    for variable in RUNTIME_VARIABLES.values():
        old, new = (f"{name}\0".encode() for name in (variable, own_variable(prefix, variable)))
        code = code.replace(old, new)
    return code


def declared(text: str) -> set[str]:
    """Return the functions that LLVM's text calls and neither defines, nor LLVM or TVM has."""
    names = re.findall(r"^declare .*?@([\w.]+)\(", text, re.M)
    return {name for name in names if not name.startswith(("llvm.", "TVM"))}


def calls_of_extras(text: str) -> list[str]:
    """Return what LLVM's text calls in `libtvm_runtime_extra`, such as `sort.topk`.

    Machine code asks for a function by its name, which therefore stands in it as a string.
    """
    return sorted(set(re.findall(r'c"tvm\.contrib\.([\w.]+)\\00"', text)))
