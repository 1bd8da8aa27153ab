"""A rewrite behind the directives is left out where what it is about does not occur."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi

from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import TYPES
from tvm_blislike.passes import spills
from tvm_blislike.passes.plan import Plan
from tvm_blislike.passes.schedule import schedule
from tvm_blislike.schedules.lowering import lower as lowering
from tvm_blislike.schedules.lowering.lower import OF_SCALARS, OF_VECTORS, occurring

CORE = Core.named("zen4")
KINDS = [types for types in TYPES if spills.nests_of(CORE, types)]


def lowered(types: object) -> tvm.IRModule:
    """Nests of all algorithms in a type, some of each."""
    nests = spills.nests_of(CORE, types)
    nests = nests[:: max(1, len(nests) // 6)]
    with tvm.target.Target(CORE.target_config(1)):
        funcs = {f"nest_{i}": spills._primfunc(nest, f"nest_{i}") for i, nest in enumerate(nests)}
        return schedule(tvm.IRModule(funcs), Plan(CORE, 1))


@pytest.mark.parametrize("types", KINDS, ids=str)
def test_left_out_is_what_changes_nothing(types: object, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = lowered(types)
    for name, rewrites in (("OF_SCALARS", OF_SCALARS), ("OF_VECTORS", OF_VECTORS)):
        monkeypatch.setattr(lowering, name, tuple(((), run) for _, run in rewrites))
    assert tvm_ffi.structural_equal(lowered(types), usual)


def test_what_occurs() -> None:
    found = {str(types): lowered(types) for types in KINDS}
    names = {
        name for mod in found.values() for f in mod.functions.values() for name in occurring(f)
    }
    assert {"float32", "int32", "bfloat16"} <= names


def test_a_wrong_trigger_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (brains,) = (types for types in KINDS if types.a == "bfloat16")
    usual = lowered(brains)
    monkeypatch.setattr(lowering, "OF_VECTORS", tuple((("nothing",), f) for _, f in OF_VECTORS))
    assert not tvm_ffi.structural_equal(lowered(brains), usual)
