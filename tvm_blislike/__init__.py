"""BLIS-style CPU kernels for Apache TVM.

`tvm_blislike.compile(model)` compiles an ONNX model; see README.md for the command line and for the
use from an ordinary `tvm.compile`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_blislike.api import compile
    from tvm_blislike.compiled import CompiledModel, LayerTime
    from tvm_blislike.errors import BlislikeError
    from tvm_blislike.frontend import TensorSpec

__version__ = "0.1.0"

# Imported on first use: the ONNX importer and the terminal libraries are not needed by everyone.
_LAZY = {
    "BlislikeError": "tvm_blislike.errors",
    "CompiledModel": "tvm_blislike.compiled",
    "LayerTime": "tvm_blislike.compiled",
    "TensorSpec": "tvm_blislike.frontend",
    "compile": "tvm_blislike.api",
}

__all__ = ["BlislikeError", "CompiledModel", "LayerTime", "TensorSpec", "compile"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
