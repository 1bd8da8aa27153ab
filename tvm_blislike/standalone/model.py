"""A model compiled without TVM's runtime."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tvm_blislike.standalone.call_plan import ALIGNMENT, CallPlan, rounded
from tvm_blislike.standalone.layout import Layout, laid_out
from tvm_blislike.tvm_seams import executables, llvm_text

if TYPE_CHECKING:
    import tvm

    from tvm_blislike.hardware import Core
    from tvm_blislike.model.report import Report
    from tvm_blislike.model.tensor_spec import TensorSpec


@dataclass(frozen=True)
class StandaloneModel:
    """A model compiled for `write` and `package`.

    Parameters
    ----------
    plan : CallPlan
        Its kernel calls.
    kernels : tvm.runtime.Executable
        Its kernels, their names without a prefix.
    report : Report
        What was chosen for each layer.
    inputs, outputs : tuple of TensorSpec
        In the order of the C functions' arguments.
    core : Core
        What it was compiled for.
    name : str
        Prefix of all its C names.
    threads : int
        What it was compiled for.
    """

    plan: CallPlan
    kernels: tvm.runtime.Executable
    report: Report
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    core: Core
    name: str
    threads: int

    @property
    def workspace_bytes(self) -> int:
        """Memory of a runner with the threads that the model was compiled for."""
        return self.layout.bytes(self.threads)

    @cached_property
    def llvm_text(self) -> str:
        """Its kernels as LLVM's text."""
        return executables.code_of(self.kernels) or ""

    @cached_property
    def layout(self) -> Layout:
        """Where everything lies in the memory of a runner."""
        inputs = [storage.bytes for storage in self.plan.storages if storage.kind == "input"]
        scratch = (self._most_scratch(of_tasks) for of_tasks in (False, True))
        return laid_out(inputs, len(self.outputs), self.plan.workspace_bytes, *scratch)

    def _most_scratch(self, of_tasks: bool) -> int:
        """Return the most memory that one kernel asks for while it runs."""
        # As the C program counts: each is aligned, and has a note in front.
        asked = llvm_text.allocations(self.llvm_text, of_tasks)
        return max((sum(rounded(size) + ALIGNMENT for size in sizes) for sizes in asked), default=0)
