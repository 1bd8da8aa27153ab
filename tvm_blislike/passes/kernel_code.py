"""The code of a model's kernels, made by several threads.

TVM's passes over PrimFuncs and LLVM leave Python's lock alone while they work, and share nothing
but what is made before: so kernels are parted into modules, and each CPU lowers and compiles one of
them at a time. More modules than CPUs, because some kernels take ten times as long as others.

Scheduling and lowering (`schedule.lowered`) are Python that calls TVM in many small steps, each of
which hands Python's lock on: two threads of it would wait for each other most of the time. So one
thread lowers while the others are with TVM's passes and LLVM.
"""

from __future__ import annotations

import threading

import tvm
from tvm import tirx

from tvm_blislike.passes import tir_pipeline
from tvm_blislike.passes.plan import Plan
from tvm_blislike.passes.schedule import lowered
from tvm_blislike.side_by_side import code_threads, side_by_side
from tvm_blislike.tvm_seams.pipelines import without_blocks, without_entries

# With one for each kernel threads end closer together, but a module takes longer than is won.
_MODULES_PER_THREAD = 8


def compiled_kernels(
    mod: tvm.IRModule, target: tvm.target.Target, plan: Plan
) -> list[tvm.runtime.Module]:
    """Return the modules of code of all PrimFuncs of a module, which do not call each other.

    Parameters
    ----------
    mod : IRModule
        Scheduled PrimFuncs (`schedule.scheduled`), and others, which are left out.
    target : Target
        What TVM generates code for.
    plan : Plan
        Says how those are made that are left to be.
    """
    kernels = [(g, f) for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    context = without_entries()
    # An instrument may watch one pass at a time only.
    threads = 1 if context.instruments else code_threads()
    count = min(len(kernels), _MODULES_PER_THREAD * threads) if threads > 1 else 1
    one_at_a_time = threading.Lock()

    def build(part: int) -> tvm.runtime.Module:
        with context, target:
            with one_at_a_time:
                loops = lowered(tvm.IRModule(dict(kernels[part::count])), plan)
            # The default rule leaves blocks, of which nothing is known before they are lowered.
            return tir_pipeline.build(without_blocks(loops), target)

    return side_by_side(build, range(count if kernels else 0), threads)
