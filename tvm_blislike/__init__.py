"""BLIS-style CPU kernels for Apache TVM.

`tvm_blislike.compile(model)` compiles an ONNX model. Importing this package registers the Relax
pipeline "blislike" for ordinary `tvm.compile` calls, as soon as TVM is imported too; see the
documentation for these, for `meta_schedule` and for the command line.
"""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm

    from tvm_blislike import meta_schedule
    from tvm_blislike.api import compile, explain
    from tvm_blislike.choose.constraints import Constraints
    from tvm_blislike.errors import BlislikeError, BlislikeWarning
    from tvm_blislike.hardware import Core
    from tvm_blislike.model.config import Config
    from tvm_blislike.model.registry import Implementation
    from tvm_blislike.model.tensor_spec import TensorSpec
    from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
    from tvm_blislike.runtime.compiled import CompiledModel, LayerTime
    from tvm_blislike.schedules import register_implementation
    from tvm_blislike.tuning.tune import tune

__version__ = "0.3.0"

# Imported on first use: this package must add next to nothing to the import time of TVM.
_LAZY = {
    "BlislikeError": "tvm_blislike.errors",
    "BlislikeWarning": "tvm_blislike.errors",
    "CompiledModel": "tvm_blislike.runtime.compiled",
    "Constraints": "tvm_blislike.choose.constraints",
    "Config": "tvm_blislike.model.config",
    "Conv2dWorkload": "tvm_blislike.model.workload",
    "Core": "tvm_blislike.hardware",
    "GemmWorkload": "tvm_blislike.model.workload",
    "Implementation": "tvm_blislike.model.registry",
    "LayerTime": "tvm_blislike.runtime.compiled",
    "TensorSpec": "tvm_blislike.model.tensor_spec",
    "Workload": "tvm_blislike.model.workload",
    "compile": "tvm_blislike.api",
    "explain": "tvm_blislike.api",
    "meta_schedule": "tvm_blislike.meta_schedule",
    "native_core": "tvm_blislike.probe.native",
    "register_implementation": "tvm_blislike.schedules",
    "tune": "tvm_blislike.tuning.tune",
}

__all__ = [
    "BlislikeError",
    "BlislikeWarning",
    "CompiledModel",
    "Config",
    "Constraints",
    "Conv2dWorkload",
    "Core",
    "GemmWorkload",
    "Implementation",
    "LayerTime",
    "TensorSpec",
    "Workload",
    "compile",
    "explain",
    "meta_schedule",
    "native_core",
    "register_implementation",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module = import_module(_LAZY[name])
        return module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def _pipeline(**options: Any) -> tvm.transform.Pass:
    """Return `tvm_blislike.pipeline.blislike_pipeline(**options)`."""
    from tvm_blislike.pipeline import blislike_pipeline

    return blislike_pipeline(**options)


def _register() -> None:
    from tvm import relax

    with contextlib.suppress(ValueError):  # registered before: this module is being reloaded
        relax.register_pipeline("blislike")(_pipeline)


if "tvm.relax" in sys.modules:
    _register()
else:
    # TVM takes seconds to import, and who asks the command for its help needs nothing of it.
    from tvm_blislike.later import when_imported

    when_imported("tvm.relax", _register)
