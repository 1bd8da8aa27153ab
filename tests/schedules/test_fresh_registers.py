"""Registers emptied in front of a loop: what survives it, on each instruction set."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.directives import FreshRegisters
from tvm_blislike.schedules.lowering import llvm_functions
from tvm_blislike.schedules.lowering.rewrite import at_directives
from tvm_blislike.tvm_seams.machine_code import innermost_loops

CORES = {"avx512": "sapphirerapids", "avx2": "haswell", "neon": "cortex-a76"}
ROWS, COLUMNS = 999, 64


def scaled(isa: str | None) -> tirx.PrimFunc:
    """y = 3.5 x, a row per iteration of a loop that may be annotated."""
    x = te.placeholder((ROWS, COLUMNS), name="x")
    y = te.compute((ROWS, COLUMNS), lambda i, j: x[i, j] * tirx.const(3.5, "float32"), name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]).with_attr("global_symbol", "main"))
    i, j = sch.get_loops(sch.get_sblock("y"))
    _, lane = sch.split(j, [None, 16])
    sch.vectorize(lane)
    if isa:
        FreshRegisters(isa).on(sch, i)
    passes = [s_tir.transform.ConvertBlocksToOpaque(), s_tir.transform.LowerOpaqueBlock()]
    func = tvm.transform.Sequential(passes)(sch.mod)["main"]
    body = at_directives(func.body, FreshRegisters, llvm_functions.emptied)
    return llvm_functions.with_sources(func.with_body(body))


def compiled(isa: str | None, core: Core) -> tvm.runtime.Executable:
    module = tvm.IRModule({"main": scaled(isa)})
    return tvm.compile(module, tvm.target.Target(core.target_config(1)))


def constants_in_loops(assembly: str) -> int:
    """Loads of a constant, from memory or as an immediate, in innermost loops."""
    loops = innermost_loops(assembly)
    constant = re.compile(r"\.LCPI|fmov v\d+\.4s, #3\.5")
    return sum(bool(constant.search(str(i))) for loop in loops for i in loop)


@pytest.mark.parametrize("isa", CORES)
def test_constants_are_loaded_again_in_each_iteration(isa: str) -> None:
    core = Core.named(CORES[isa])
    kept = compiled(None, core).mod.inspect_source("asm")
    fresh = compiled(isa, core).mod.inspect_source("asm")
    assert constants_in_loops(kept) == 0
    assert constants_in_loops(fresh) > 0
    assert llvm_functions.registers_source(isa).split("@")[1].split("(")[0] not in fresh


def test_results_stay_the_same() -> None:
    core = native_core()
    x = np.random.default_rng(1).standard_normal((ROWS, COLUMNS), dtype=np.float32)
    out = tvm.runtime.tensor(np.zeros_like(x))
    compiled(core.isa.name, core)["main"](tvm.runtime.tensor(x), out)
    np.testing.assert_array_equal(out.numpy(), x * np.float32(3.5))


def test_functions_without_the_annotation_stay_as_they_are() -> None:
    assert "pragma_import_llvm" not in scaled(None).script()
    assert "pragma_import_llvm" in scaled("avx2").script()
