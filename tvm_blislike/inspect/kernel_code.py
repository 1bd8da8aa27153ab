"""Micro-kernels on their own, compiled for a core: the machine code of their k loops."""

from __future__ import annotations

from collections.abc import Iterable

from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, UpdateShape, standalone
from tvm_blislike.tvm_seams import llvm_text
from tvm_blislike.tvm_seams.machine_code import Instruction, functions, innermost_loops

# Steps of k in one call: LLVM must not unroll the loop completely.
STEPS = 256
UNROLL = 4


@compiler_lock()
def k_loops(
    kernels: Iterable[Microkernel], core: Core, view: str = "rows"
) -> dict[str, list[Instruction]]:
    """Compile micro-kernels for `core` and return the k loop of each, by name.

    Parameters
    ----------
    view : str
        How A lies in memory, see `microkernels.UpdateShape`.

    Raises
    ------
    ValueError
        When a function has no single loop with multiply-adds, or a micro-kernel is for panels only.
    """
    import tvm

    from tvm_blislike.schedules.lowering import lower as lowering
    from tvm_blislike.tvm_seams import attributes
    from tvm_blislike.tvm_seams.executables import code_of

    found = {}
    register_bytes = core.vector_registers * core.vector_bits // 8
    for kernel in kernels:
        how = {"view": view, "ks": kernel.ks, "in_order": core.in_order}
        shape = UpdateShape(1, kernel.mr, STEPS, UNROLL, **how)
        func = standalone(kernel, shape).with_attr("global_symbol", kernel.name)
        found[kernel.name] = func.with_attr(
            {lowering.REGISTER_BYTES: register_bytes, **attributes.NO_ALIAS}
        )
    module = lowering.lower(tvm.IRModule(found))
    library = tvm.compile(module, tvm.target.Target(core.target_config(1)))
    bodies = functions(code_of(library, "asm"))
    return {name: _k_loop(name, bodies) for name in found}


def _k_loop(name: str, bodies: dict[str, str]) -> list[Instruction]:
    """The one innermost loop with multiply-adds in what TVM made of a PrimFunc."""
    texts = [bodies[part] for part in llvm_text.parts_of(name, bodies)]
    loops = [
        loop for text in texts for loop in innermost_loops(text) if any(i.is_fma for i in loop)
    ]
    if len(loops) != 1:
        raise ValueError(f"{name}: {len(loops)} innermost loops with multiply-adds, expected one")
    return loops[0]
