"""The code of a model's kernels, made by several threads.

TVM's passes over PrimFuncs and LLVM leave Python's lock alone while they work, and share nothing
but what is made before: so kernels are parted into modules, and each CPU lowers and compiles one of
them at a time. More modules than CPUs, because some kernels take ten times as long as others.

Scheduling and lowering (`schedule.lowered`) are Python that calls TVM in many small steps, each of
which hands Python's lock on: two threads of it would wait for each other most of the time. So one
thread lowers while the others are with TVM's passes and LLVM.
"""

from __future__ import annotations

import tvm
from tvm import tirx

from tvm_blislike.model.marks import UNCHECKED
from tvm_blislike.passes import tir_pipeline
from tvm_blislike.passes.plan import Plan
from tvm_blislike.passes.schedule import lowered
from tvm_blislike.side_by_side import Ahead, code_threads, side_by_side
from tvm_blislike.tvm_seams.arguments import unchecked
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
        Scheduled PrimFuncs (`schedule.scheduled`), and the functions of Relax that call them, as
        the virtual machine runs these: they are left out.
    target : Target
        What TVM generates code for.
    plan : Plan
        Says how those are made that are left to be.
    """
    functions = unchecked(mod, UNCHECKED).functions_items()
    kernels = [(g, f) for g, f in functions if isinstance(f, tirx.PrimFunc)]
    context = without_entries()
    # An instrument may watch one pass at a time only.
    threads = 1 if context.instruments else code_threads()
    count = min(len(kernels), _MODULES_PER_THREAD * threads) if threads > 1 else 1

    def lower(part: int) -> tuple[int, tvm.IRModule]:
        return part, lowered(tvm.IRModule(dict(kernels[part::count])), plan)

    parts = range(count if kernels else 0)
    ahead = Ahead(lower, parts)

    def build(_: int) -> tuple[int, tvm.runtime.Module]:
        with context, target:
            part, loops = ahead.take()
            # The default rule leaves blocks, of which nothing is known before they are lowered.
            return part, tir_pipeline.build(without_blocks(loops), target)

    found = dict(side_by_side(build, parts, threads))
    return [found[part] for part in parts]
