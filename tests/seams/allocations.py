"""Modules in which TVM has yet to plan memory."""

from __future__ import annotations

import tvm
from tvm import relax

STORAGE = "relax.memory.alloc_storage"
PLAN = relax.transform.StaticPlanBlockMemory()


def with_allocations(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module whose calls of kernels write to tensors that it allocates."""
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
    ]
    with tvm.target.Target({"kind": "llvm"}):
        return tvm.transform.Sequential(passes)(mod)
