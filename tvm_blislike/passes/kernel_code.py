"""The code of a model's kernels, made by several threads.

TVM's passes over PrimFuncs and LLVM leave Python's lock alone while they work, and share nothing
but what is made before: so kernels are parted into modules, and each CPU lowers and compiles one of
them at a time. More modules than CPUs, because some kernels take ten times as long as others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tvm
from tvm import tirx

from tvm_blislike.hardware.cpus import usable_cpus
from tvm_blislike.passes import tir_pipeline

# Each thread needs the memory of a compiler.
_MOST_THREADS = 8
_MODULES_PER_THREAD = 8
_Item, _Result = TypeVar("_Item"), TypeVar("_Result")


def compiled_kernels(mod: tvm.IRModule, target: tvm.target.Target) -> list[tvm.runtime.Module]:
    """Return the modules of code of all PrimFuncs of a module, which do not call each other."""
    kernels = [(g, f) for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    context = tvm.transform.PassContext.current()
    # An instrument may watch one pass at a time only.
    threads = 1 if context.instruments else code_threads()
    count = min(len(kernels), _MODULES_PER_THREAD * threads) if threads > 1 else 1

    def build(part: int) -> tvm.runtime.Module:
        with context:
            return tir_pipeline.build(tvm.IRModule(dict(kernels[part::count])), target)

    return side_by_side(build, range(count if kernels else 0), threads)


def code_threads() -> int:
    """Return how many threads generate code at a time: one for each CPU that there is."""
    return min(_MOST_THREADS, len(usable_cpus()))


def side_by_side(
    work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int
) -> list[_Result]:
    """Return the results of some work on items, done by several threads, in the items' order.

    When it fails on one of them or the user interrupts, what has not begun never does.
    """
    if threads == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads, "tvm-blislike-code") as pool:
        try:
            return list(pool.map(work, items))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
