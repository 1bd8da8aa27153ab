"""Loops whose iterations start with empty vector registers, so that a k loop has all of them.

LLVM moves what never changes out of loops as far as it can: the constants of a Winograd transform
end up in registers in front of the whole nest, and stay there through the k loops of the products
in between. F(6, 3) has six; a block of 13x32 needs 29 of 32 registers, so accumulators went to the
stack in every step of k. An empty piece of assembly that claims to overwrite all vector registers
makes LLVM load the constants again behind it, where the transforms use them, and costs nothing
itself.

Without registers it keeps pieces of code apart (`apart`): LLVM moves no load of one into the other.
"""

from __future__ import annotations

from tvm import tirx

from tvm_blislike.hardware import ISAS
from tvm_blislike.model.directives import FreshRegisters
from tvm_blislike.schedules.lowering import imported
from tvm_blislike.schedules.lowering.rewrite import without

_APART = "apart"
_PREFIX = "blislike_fresh_registers_"


def source(isa: str) -> str:
    """Return the LLVM function that empties the registers of an instruction set.

    Raises
    ------
    KeyError
        When the instruction set is not known.
    """
    return _assembly(isa, ISAS[isa].clobbers)


def apart() -> tirx.Stmt:
    """Return a call in front of which loads stay that are in front of it, and the others behind."""
    return _call(_APART)


def _assembly(name: str, clobbers: str) -> str:
    """Return a function that is an empty piece of assembly."""
    return (
        f"define linkonce_odr void @{_PREFIX}{name}() alwaysinline nounwind {{\n"
        f'  call void asm sideeffect "", "{clobbers}"()\n'
        "  ret void\n}\n"
    )


def emptied(loop: tirx.For, fresh: FreshRegisters) -> tirx.For:
    """Start the iterations of a loop with a call that empties the registers."""
    return without(loop, FreshRegisters, body=tirx.SeqStmt([_call(fresh.isa), loop.body]))


def with_sources(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Attach the LLVM source of the calls that `emptied` and `apart` made."""
    ours = (name for name in imported.names_called(func) if name.startswith(_PREFIX))
    return imported.with_sources(func, (_source(name.removeprefix(_PREFIX)) for name in ours))


def _source(name: str) -> str:
    return _assembly(name, "~{memory}") if name == _APART else source(name)


def _call(name: str) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_extern("void", f"{_PREFIX}{name}"))
