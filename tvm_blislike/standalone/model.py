"""A model compiled for one thread and without TVM's runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_blislike.standalone.call_plan import ALIGNMENT, CallPlan, rounded
from tvm_blislike.tvm_seams import executables, llvm_text

if TYPE_CHECKING:
    import tvm

    from tvm_blislike.hardware import Core
    from tvm_blislike.model.report import Report
    from tvm_blislike.model.tensor_spec import TensorSpec


@dataclass(frozen=True)
class StandaloneModel:
    """A model compiled for `write`.

    Parameters
    ----------
    plan : CallPlan
        Its kernel calls.
    kernels : tvm.runtime.Executable
        Its kernels, their names without a prefix.
    report : Report
        What was chosen for each layer.
    inputs, outputs : tuple of TensorSpec
        In the order of the C function's arguments.
    core : Core
        What it was compiled for.
    name : str
        Prefix of all its C names.
    """

    plan: CallPlan
    kernels: tvm.runtime.Executable
    report: Report
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    core: Core
    name: str

    @property
    def workspace_bytes(self) -> int:
        """Memory that the caller provides for a call: its tensors, then what kernels ask for."""
        return max(self.plan.workspace_bytes + self.scratch_bytes, ALIGNMENT)

    @property
    def scratch_bytes(self) -> int:
        """Most memory that one kernel asks for while it runs."""
        # As the C program counts: each is aligned, and has a note in front.
        asked = llvm_text.allocations(executables.code_of(self.kernels))
        return max(sum(rounded(size) + ALIGNMENT for size in sizes) for sizes in asked)
