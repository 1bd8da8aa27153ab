"""TVM's pipelines: of Relax functions for CPUs, and of PrimFuncs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx

from tvm_blislike.tvm_seams.branch_memory import branch_memory
from tvm_blislike.tvm_seams.compaction import compact_buffers
from tvm_blislike.tvm_seams.kinds_of_memory import planned_by_kind

# The pipeline of PrimFuncs that TVM takes unless another one is named.
_DEFAULT = "s_tir"
# Reshapes become views instead of copies.
VIEWS = relax.transform.RewriteDataflowReshape()
# What the pipeline of PrimFuncs does about threads of GPUs, their shared memory and matrix units:
# each pass goes through all statements. With six more left out kernels of MobileNetV3 compiled in
# seven eighths of the time; these alone were not timed apart.
_FOR_GPUS = (
    "s_tir.LowerCrossThreadReduction",
    "s_tir.LiftThreadBinding",
    "s_tir.ManifestSharedMemoryLocalStage",
    "s_tir.LowerAutoCopy",
    "s_tir.UnifyThreadBinding",
    "s_tir.InjectPermutedLayout",
    "s_tir.TransformMmaBufferLayout",
    "s_tir.InjectVirtualThread",
    "s_tir.VerifyVTCMLimit",
    "s_tir.LowerVtcmAlloc",
    "s_tir.ThreadSync",
    "s_tir.InferFragment",
    "s_tir.LowerThreadAllreduce",
    "s_tir.MergeSharedMemoryAllocations",
)
# What it does to blocks, of which none is left here, and what LLVM does as well. With and without
# them the machine code of 150 of 151 kernels of ResNet-50, EfficientNet-B0 and MobileNetV3 is the
# same, and that of one has other registers and an addition less in front of a loop.
_BEHIND_BLOCKS = (
    "s_tir.CompactBufferAllocation",
    "s_tir.StmtSimplify",
    "s_tir.InjectSoftwarePipeline",
    "tirx.RemoveNoOp",
)
_ENTRIES = "tirx.AnnotateEntryFunc"
# What some of its passes are about: calls, keys of attributes, statements, expressions, data types.
# Where none of these occurs in functions without blocks they go through all statements for nothing.
_ABOUT: Mapping[str, frozenset[str]] = {
    "s_tir.LowerInitBlock": frozenset(),
    "s_tir.PlanAndUpdateBufferAllocationLocation": frozenset(),
    "s_tir.ConvertBlocksToOpaque": frozenset(),
    "s_tir.LowerMatchBuffer": frozenset(),
    "s_tir.LoopPartition": frozenset({"prim.likely", "pragma_loop_partition_hint"}),
    "s_tir.InjectDoubleBuffer": frozenset({"double_buffer_scope", "double_buffer_write"}),
    "s_tir.HoistIfThenElse": frozenset({"IfThenElse"}),
    "s_tir.RewriteUnsafeSelect": frozenset({"Select"}),
    "tirx.BF16ComputeLegalize": frozenset({"bfloat16"}),
    "tirx.FP8ComputeLegalize": frozenset({"float8"}),
}
# The pipeline's passes up to the one that leaves no blocks, without those about GPUs.
_LOWER_BLOCKS = tvm.transform.Sequential(
    [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        compact_buffers,
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
)


def with_needed(mod: tvm.IRModule | None = None) -> tvm.transform.PassContext:
    """Return the present context of passes, to be entered, with those that kernels need.

    What is compiled in it must have a pipeline of `register_around`, which lowers blocks itself.

    Parameters
    ----------
    mod : IRModule, optional
        The kernels, if nothing else is compiled: passes about what does not occur in them are left
        out as well.
    """
    present = tvm.transform.PassContext.current()
    idle = [] if mod is None else _idle_passes(mod)
    return _context([*present.disabled_pass, *_FOR_GPUS, *_BEHIND_BLOCKS, *idle])


def without_entries() -> tvm.transform.PassContext:
    """Return the present context of passes, to be entered, for modules that are linked together.

    Of a module with one function TVM makes it an entry, by a second function of the same name in
    each such module.
    """
    return _context([*tvm.transform.PassContext.current().disabled_pass, _ENTRIES])


def _idle_passes(mod: tvm.IRModule) -> list[str]:
    """Return the passes of `_ABOUT` that change nothing in a module; none if it has blocks."""
    found: set[str] = set()
    for _, func in mod.functions_items():
        found |= _occurring(func)
    if "SBlockRealize" in found:
        return []
    return [name for name, about in _ABOUT.items() if found.isdisjoint(about)]


def _occurring(func: tirx.PrimFunc) -> set[str]:
    """Return what `_ABOUT` names, of what occurs in a function.

    Data types are those of its parameters and buffers, of casts and of what calls return: all
    others follow from these.
    """
    found: set[str] = set()
    dtypes: set[str] = {str(getattr(param, "dtype", param.ty)) for param in func.params}

    def called(call: ir.Call) -> None:
        found.add(str(getattr(call.op, "name", "")))
        dtypes.add(str(call.ty))

    def is_there(node: Any) -> None:
        found.add(type(node).__name__)

    callbacks = [
        (ir.Call, called),
        (tirx.Cast, lambda cast: dtypes.add(str(cast.ty))),
        (tirx.AttrStmt, lambda attribute: found.add(str(attribute.attr_key))),
        ((tirx.AllocBuffer, tirx.DeclBuffer), lambda node: dtypes.add(str(node.buffer.dtype))),
        ((tirx.IfThenElse, tirx.Select, s_tir.SBlockRealize), is_there),
    ]
    tvm_ffi.structural_walk(func.body, callbacks, order="pre")
    wide = {name for name in ("bfloat16", "float8") if any(name in dtype for dtype in dtypes)}
    return found | wide


def lower_blocks(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module whose functions have loops and buffers in place of blocks.

    By all passes about blocks, also in the context of `with_needed`: buffers whose rows are
    aligned (`storage_align`) are laid out by one of those that are left out behind.
    """
    disabled = {*tvm.transform.PassContext.current().disabled_pass} - {*_BEHIND_BLOCKS}
    with _context(map(str, disabled)):
        return _LOWER_BLOCKS(mod)


def _context(disabled: Iterable[str]) -> tvm.transform.PassContext:
    """Return the present context with other passes disabled."""
    present = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        present.opt_level,
        list(present.required_pass),
        list(disabled),
        present.instruments,
        present.config,
    )


@tvm.transform.module_pass(opt_level=0, name="blislike.LowerBlocks")
def without_blocks(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Lower functions that have blocks: some were lowered before."""
    left = {g: f for g, f in mod.functions_items() if _has_blocks(f)}
    if not left:
        return mod
    result = mod.clone()
    result.update(lower_blocks(tvm.IRModule(left)))
    return result


def _has_blocks(func: Any) -> bool:
    """Whether a function has a root block; a part of one is left to the pipeline."""
    return isinstance(func, tirx.PrimFunc) and isinstance(func.body, s_tir.SBlockRealize)


def dispatch_passes(target: tvm.target.Target) -> list[tvm.transform.Pass]:
    """Return what TVM's CPU pipeline begins with: operators that libraries have."""
    return relax.backend.cpu_generic.pipeline.library_dispatch_passes(target)


def lowering_passes(target: tvm.target.Target) -> list[tvm.transform.Pass]:
    """Return what TVM's CPU pipeline does behind fused kernels, without `VIEWS`."""
    passes = relax.backend.cpu_generic.pipeline.dataflow_lower_passes(target)
    return [p for p in passes if p.info.name != VIEWS.info.name]


def machine_passes(
    target: tvm.target.Target, kind_of: Callable[[tuple[int, ...]], str]
) -> list[tvm.transform.Pass]:
    """Return what TVM's CPU pipeline ends with: what its virtual machine needs.

    Parameters
    ----------
    kind_of : callable
        From the shape of a tensor to the kind of its memory (`planned_by_kind`).
    """
    plan, *others = relax.backend.cpu_generic.pipeline.finalize_passes(target)
    return [branch_memory, *planned_by_kind(kind_of, plan), *others]


def register_around(name: str, first: tvm.transform.Pass, last: tvm.transform.Pass) -> None:
    """Register a pipeline of PrimFuncs: TVM's own, with a pass before it and one behind.

    In between, functions that still have blocks lose them.

    `last` sees functions as they are before LLVM does: flat buffers, no blocks, TVM's calls.
    """
    pipeline, host, *others = tirx.get_tir_pipeline(_DEFAULT)
    whole = tvm.transform.Sequential([first, without_blocks, pipeline], name=f"{name}.TIR")

    def finalize() -> tvm.transform.Pass:
        return tvm.transform.Sequential([last, host()], name=f"{name}.Host")

    tirx.register_tir_pipeline(name, lambda: (whole, finalize, *others))


def replace_default(name: str) -> None:
    """Have TVM take a registered pipeline wherever none is named, until the process ends."""
    tirx.register_tir_pipeline(_DEFAULT, lambda: tirx.get_tir_pipeline(name))
