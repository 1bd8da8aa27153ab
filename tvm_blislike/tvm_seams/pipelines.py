"""TVM's pipelines: of Relax functions for CPUs, and of PrimFuncs."""

from __future__ import annotations

import sys

import tvm
from tvm import relax, tirx

# The pipeline of PrimFuncs that TVM takes unless another one is named.
_DEFAULT = "s_tir"
# What a worker process runs.
_WORKER = "tvm.exec.popen_worker"
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


def without_gpus() -> tvm.transform.PassContext:
    """Return the present context of passes, to be entered, without those about GPUs."""
    present = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        present.opt_level,
        list(present.required_pass),
        [*present.disabled_pass, *_FOR_GPUS],
        present.instruments,
        present.config,
    )


def dispatch_passes(target: tvm.target.Target) -> list[tvm.transform.Pass]:
    """Return what TVM's CPU pipeline begins with: operators that libraries have."""
    return relax.backend.cpu_generic.pipeline.library_dispatch_passes(target)


def lowering_passes(target: tvm.target.Target) -> list[tvm.transform.Pass]:
    """Return what TVM's CPU pipeline does behind fused kernels, without `VIEWS`."""
    passes = relax.backend.cpu_generic.pipeline.dataflow_lower_passes(target)
    return [p for p in passes if p.info.name != VIEWS.info.name]


def machine_passes(target: tvm.target.Target) -> list[tvm.transform.Pass]:
    """Return what TVM's CPU pipeline ends with: what its virtual machine needs."""
    return relax.backend.cpu_generic.pipeline.finalize_passes(target)


def register_around(name: str, first: tvm.transform.Pass, last: tvm.transform.Pass) -> None:
    """Register a pipeline of PrimFuncs: TVM's own, with a pass before it and one behind.

    `last` sees functions as they are before LLVM does: flat buffers, no blocks, TVM's calls.
    """
    pipeline, host, *others = tirx.get_tir_pipeline(_DEFAULT)
    whole = tvm.transform.Sequential([first, pipeline], name=f"{name}.TIR")

    def finalize() -> tvm.transform.Pass:
        return tvm.transform.Sequential([last, host()], name=f"{name}.Host")

    tirx.register_tir_pipeline(name, lambda: (whole, finalize, *others))


def is_worker() -> bool:
    """Whether this process is one that TVM started to call functions in, as its builders do."""
    return _WORKER in sys.orig_argv


def replace_default(name: str) -> None:
    """Have TVM take a registered pipeline wherever none is named, until the process ends."""
    tirx.register_tir_pipeline(_DEFAULT, lambda: tirx.get_tir_pipeline(name))
