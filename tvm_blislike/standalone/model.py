"""A model compiled for one thread and without TVM's runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_blislike.standalone.call_plan import ALIGNMENT, CallPlan

if TYPE_CHECKING:
    import tvm

    from tvm_blislike.hardware import Core
    from tvm_blislike.model.report import Report
    from tvm_blislike.model.tensor_spec import TensorSpec

# Calls of TVM's allocator in LLVM's text: device, number, bytes, type.
_ALLOCATION = re.compile(r"call ptr %\S+\(i32 \S+, i32 \S+, i64 (\S+), i32 \d+, i32 \d+\)")


@dataclass(frozen=True)
class StandaloneModel:
    """A model compiled for `write`.

    Parameters
    ----------
    plan : CallPlan
        Its kernel calls.
    kernels : tvm.runtime.Executable
        Its kernels, their names without a prefix.
    inputs, outputs : tuple of TensorSpec
        In the order of the C function's arguments.
    core : Core
        What it was compiled for.
    report : Report
        What was chosen for each layer.
    name : str
        Prefix of all its C names.
    """

    plan: CallPlan
    kernels: tvm.runtime.Executable
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    core: Core
    report: Report
    name: str

    @property
    def workspace_bytes(self) -> int:
        """Memory that the caller provides for a call: its tensors, then what kernels ask for."""
        return max(self.plan.workspace_bytes + self.scratch_bytes, ALIGNMENT)

    @property
    def scratch_bytes(self) -> int:
        """Most memory that one kernel asks for while it runs."""
        text = self.kernels.mod.inspect_source("ll")
        functions = re.split(r"^define ", text, flags=re.M)
        return max(sum(_allocations(function)) for function in functions)


def _allocations(function: str) -> Iterator[int]:
    """Yield the bytes of each allocation in a function, as the C program counts them."""
    for size in _ALLOCATION.findall(function):
        # A size that is no constant would be that of a dynamic shape; there are none.
        yield (int(size) + 63) // 64 * 64 + 64
