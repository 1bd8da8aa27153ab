"""The files in the wheels of TVM's runtime."""

from __future__ import annotations

import importlib.util
from pathlib import Path

# What only some models call: sorting (TopK, ArgSort, NonMaxSuppression) and random numbers.
EXTRAS = "libtvm_runtime_extra.so"
# By distribution: the files in its wheel, without the compiler and GPUs.
LIBRARIES = {
    "apache-tvm": ("tvm/lib/libtvm_runtime.so", f"tvm/lib/{EXTRAS}"),
    "apache-tvm-ffi": ("tvm_ffi/lib/libtvm_ffi.so",),
}


def installed(file: str) -> Path | None:
    """Return where a file of `LIBRARIES` is installed; None where it is not."""
    spec = importlib.util.find_spec(file.partition("/")[0])
    path = Path(spec.origin).parents[1] / file if spec and spec.origin else None
    return path if path is not None and path.is_file() else None


def headers() -> dict[str, Path]:
    """Return the headers of TVM's C interface, by the name that programs include them with."""
    import tvm_ffi

    folders = (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path())
    names = ("tvm/ffi/c_api.h", "dlpack/dlpack.h")
    return {n: next(Path(f) / n for f in folders if (Path(f) / n).is_file()) for n in names}
