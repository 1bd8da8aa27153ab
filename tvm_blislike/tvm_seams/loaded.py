"""TVM's runtime without its compiler: modules out of files, tensors, and a virtual machine.

`import tvm` takes 0.7 to 1 s, most of it for the compiler's library and the Python of its passes. A
compiled model needs neither. TVM may be imported later all the same: its libraries then are those
that were loaded here, and its classes of tensors and modules stand for new ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tvm_ffi

# Of the part that a virtual machine runs.
MACHINE = "relax.VMExecutable"
# Of generated code.
LLVM = "llvm"
# What a kernel that raises an error calls it.
REFUSAL = "InputError"
# The loop that makes recorded calls again.
LOOP = "tvm_blislike_replay"
_CPU, _POOLED = 1, 2
# With sorting and random numbers; another library may lack it.
_RUNTIME, _EXTRAS = "tvm_runtime", "tvm_runtime_extra"
_held: list[Any] = []

# Of each function that takes any: what stands behind its other arguments.
Weights = Mapping[str, Sequence[tvm_ffi.Tensor]]


def load_runtime() -> None:
    """Load TVM's runtime library into this process, unless it is there.

    Raises
    ------
    RuntimeError
        When there is none.
    """
    if _held or "tvm" in sys.modules:
        return
    from tvm_ffi.libinfo import load_lib_ctypes

    places = _libinfo().package_lib_paths()
    # Its C functions are found by name in the whole program, as after `import tvm`.
    _held.append(load_lib_ctypes("tvm", _RUNTIME, "RTLD_GLOBAL", extra_lib_paths=places))
    try:
        _held.append(load_lib_ctypes("tvm", _EXTRAS, "RTLD_LOCAL", extra_lib_paths=places))
    except (OSError, RuntimeError):
        pass


def _libinfo() -> ModuleType:
    """Return TVM's module that tells where its libraries lie, without the package around it."""
    package = importlib.util.find_spec("tvm")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError("TVM is not installed")
    file = Path(package.submodule_search_locations[0]) / "libinfo.py"
    spec = importlib.util.spec_from_file_location("tvm_libinfo", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def function(name: str) -> Callable[..., Any]:
    """Return a function that TVM's runtime registers; ValueError when there is none."""
    load_runtime()
    return tvm_ffi.get_global_func(name)


def raised_as(error: type[Exception]) -> None:
    """Have the errors of refusing kernels raised as exceptions of a class, in this process."""
    tvm_ffi.register_error(REFUSAL, error)


def open_library(path: Path) -> tvm_ffi.Module:
    """Load a library that goes, weights and all, when nothing refers to it any more.

    By TVM's default it would stay until the process ends, and `tvm.runtime.load_module` resolves
    symbolic links: the dynamic loader returns an old library again for a name it knows.
    """
    load_runtime()
    return tvm_ffi.load_module(str(path), keep_module_alive=False)


def read_machine(path: Path, kernels: tvm_ffi.Module) -> tvm_ffi.Module:
    """Return what `executables.write_machine` wrote, with the library of its kernels."""
    module = function(f"ffi.Module.load_from_file.{MACHINE}")(str(path))
    module.import_module(kernels)
    return module


def text_in(module: tvm_ffi.Module, name: str) -> bytes | None:
    """Return the text that `executables.add_text` put into a library; None where there is none."""
    for part in module.imports:
        if part.kind == module.kind and part["has_function"](name):
            text = VirtualMachine(part)[name]()
            return np.from_dlpack(text).tobytes()
    return None


def generated(executable: Any) -> list[tvm_ffi.Module]:
    """Return the modules of generated code that an executable calls; none of a library."""
    module = executable if isinstance(executable, tvm_ffi.Module) else executable.mod
    return [part for part in module.imports if part.kind == LLVM]


def make_code(part: tvm_ffi.Module) -> None:
    """Have LLVM make the machine code of a module of generated code, unless it has.

    It does when TVM first looks into it, for any function, to tell it where TVM's own are: those of
    threads and workspaces. Code that calls none of these is made when it is first called.
    """
    with contextlib.suppress(AttributeError):
        part.get_function("no function")


class VirtualMachine:
    """TVM's virtual machine on the CPU, as `relax.VirtualMachine` starts it.

    Parameters
    ----------
    executable : tvm.runtime.Executable or Module
        What `tvm.compile` returned, or a loaded module.
    """

    def __init__(self, executable: Any) -> None:
        is_module = isinstance(executable, tvm_ffi.Module)
        self._loop = _loop_of(executable) if is_module else None
        module = executable if is_module else executable.jit()
        self._machine = _started(module)
        self._set_instrument = self._machine["set_instrument"]

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self._machine[name]

    @property
    def loop(self) -> Callable[..., Any] | None:
        """What makes recorded calls again, where its library has it; see `tapes`."""
        return self._loop

    def set_instrument(self, instrument: Callable[..., int] | None) -> None:
        """Let a function watch all calls; None for no function."""
        self._set_instrument(instrument)


def _started(module: tvm_ffi.Module) -> Any:
    """Start a machine; one that calls what TVM has in Python only, such as `nonzero`, with TVM."""
    try:
        return _initialized(module)
    except Exception:  # of a function that is not registered, by TVM's kind for any failed check
        if "tvm" in sys.modules:
            raise
        importlib.import_module("tvm")
        return _initialized(module)


def _initialized(module: tvm_ffi.Module) -> Any:
    machine = module["vm_load_executable"]()
    machine["vm_initialization"](_CPU, 0, _POOLED)
    return machine


def _loop_of(module: tvm_ffi.Module) -> Callable[..., Any] | None:
    for part in module.imports:
        if part.implements_function(LOOP):
            return part.get_function(LOOP)
    return None


def empty(shape: Sequence[int], dtype: str) -> tvm_ffi.Tensor:
    """Return a tensor, aligned as kernels count on, not yet filled."""
    sizes = tvm_ffi.Shape([int(size) for size in shape])
    allocate = function("runtime.TVMTensorAllocWithScope")
    return allocate(sizes, tvm_ffi.dtype(dtype), tvm_ffi.device("cpu"), None)


def fill(tensor: Any, array: np.ndarray) -> None:
    """Copy an array of the same sizes and type into a tensor."""
    values = np.ascontiguousarray(array)
    copy = function("runtime.TVMTensorCopyFromBytes")
    copy(tensor, ctypes.c_void_p(values.ctypes.data), values.nbytes)


def bytes_of(tensor: Any) -> int:
    """Return the bytes of a tensor of TVM."""
    dtype = tensor.dtype
    return int(np.prod(tensor.shape, dtype=np.int64)) * -(-dtype.bits * dtype.lanes // 8)


def memory_of(tensor: Any) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU, byte by byte, which holds it."""
    memory = (ctypes.c_ubyte * bytes_of(tensor)).from_address(tensor.data_ptr())
    memory.owner = tensor  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def part_of(memory: Any, start: int, shape: Sequence[int], dtype: str) -> tvm_ffi.Tensor:
    """Return a tensor that lies in another one's memory, which it holds, from a byte on.

    It has to be aligned as kernels count on there.
    """
    sizes = tvm_ffi.Shape([int(size) for size in shape])
    view = function("runtime.TVMTensorCreateView")(memory, sizes, tvm_ffi.dtype(dtype), start)
    # Kernels take no tensor that begins behind its pointer. This moves the pointer.
    return function("vm.builtin.ensure_zero_offset")(view)


def numpy_of(tensor: Any) -> np.ndarray:
    """Return the values of a tensor of any type, by TVM's conversion of those that NumPy lacks."""
    import tvm

    return tvm.runtime.from_dlpack(tensor).numpy()
