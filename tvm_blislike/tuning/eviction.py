"""Move memory out of all caches of this machine.

x86 has two instructions for it. `clflush`, which TVM's own function uses, waits for the line
before: 40 ns a line, a quarter of a second for the weights of a large fully connected layer, before
each repeat. `clflushopt` takes 3 ns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_blislike.hardware import LINE_BYTES, Core
from tvm_blislike.hardware.cpus import PROC_CPUINFO
from tvm_blislike.hardware.machine import listed_info
from tvm_blislike.runtime.huge_pages import bytes_of

if TYPE_CHECKING:
    import tvm

# What a timer calls before each repeat; its name in TVM's registry.
EVICT = "tvm_blislike.evict_weights"
_FEATURE = "clflushopt"


def register(core: Core) -> None:
    """Register what moves the second operand, the packed weights, out of all caches, as `EVICT`."""
    import tvm

    move_out = evictor(core)

    def evict(_data: Any, packed: Any, *_result: Any) -> None:
        move_out(packed)

    tvm.register_global_func(EVICT, evict, override=True)


@functools.cache
def evictor(core: Core, proc_cpuinfo: Path = PROC_CPUINFO) -> Callable[[Any], None]:
    """Return a function that moves a tensor of TVM out of all caches.

    Parameters
    ----------
    core : Core
        This machine.
    proc_cpuinfo : Path
        Where Linux lists what its processors can do.
    """
    import tvm

    from tvm_blislike.tvm_seams import runtime

    if _FEATURE not in listed_info(proc_cpuinfo).get("flags", ()):
        return runtime.evictor()
    compiled = tvm.compile(flush(), target(core))["main"]

    def evict(tensor: Any) -> None:
        compiled(*lines_of(tensor.data_ptr(), bytes_of(tensor)))

    return evict


def lines_of(address: int, size: int) -> tuple[int, int]:
    """Return the address of the first cache line of some bytes, and the number of lines."""
    first, end = address // LINE_BYTES, -(-(address + size) // LINE_BYTES)
    return first * LINE_BYTES, end - first


def target(core: Core) -> tvm.target.Target:
    """Return the target of a core that has the instruction."""
    import tvm

    config = core.target_config(1)
    return tvm.target.Target({**config, "mattr": [*config.get("mattr", []), f"+{_FEATURE}"]})


def flush() -> tvm.tirx.PrimFunc:
    """Return a function of the address of the first line and the number of lines."""
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"global_symbol": "main"})
        address, lines = T.arg("address", T.int64()), T.arg("lines", T.int64())
        with T.serial(0, lines) as line:
            place = T.reinterpret("handle", address + line * LINE_BYTES)
            T.evaluate(T.call_llvm_intrin("void", f"llvm.x86.{_FEATURE}", place))
        # The instructions wait for nothing; what is timed next must not run beside them.
        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.sse2.mfence"))
    return builder.get()
