"""Names and calls in the text that TVM generates."""

from __future__ import annotations

from pathlib import Path

import tvm
from small_kernels import TARGET, doubled
from tvm import relax, te, tirx

from tvm_blislike.tvm_seams import llvm_text
from tvm_blislike.tvm_seams.executables import code_of
from tvm_blislike.tvm_seams.machine_code import functions


def test_parts_of_a_kernel_are_found_by_its_name() -> None:
    kernels = {name: doubled(name, parallel=True) for name in ("one", "two")}
    whole = code_of(tvm.compile(tvm.IRModule(kernels), TARGET), "asm")
    bodies = functions(whole)
    for name in kernels:
        parts = llvm_text.parts_of(name, bodies)
        assert parts[0] == llvm_text.symbol_of(name), "TVM names an entry otherwise"
        assert f"{name}_compute_" in parts, "TVM names what an entry calls otherwise"
        text = "".join(bodies[part] for part in parts)
        assert 2 * text.count("addps") == whole.count("addps"), (
            "TVM names bodies of parallel loops otherwise"
        )


def test_workspaces_are_calls_of_tvms_allocator() -> None:
    data = te.placeholder((100, 100), name="data")
    one = te.compute(data.shape, lambda *at: data(*at) * 2.0, name="one")
    two = te.compute(data.shape, lambda *at: te.exp(one(*at[::-1])), name="two")
    text = code_of(tvm.compile(te.create_prim_func([data, two]), TARGET))
    found = llvm_text.allocations(text, of_tasks=False)
    assert [40000] in found, "TVM calls its allocator in another way"
    assert not llvm_text.allocations(text, of_tasks=True)


def test_workspaces_of_parallel_loops_are_told_apart() -> None:
    def kernel(parallel: bool) -> tvm.tirx.PrimFunc:
        data = te.placeholder((100, 100), name="data")
        one = te.compute(data.shape, lambda *at: data(*at) * 2.0, name="one")
        two = te.compute(data.shape, lambda *at: te.exp(one(*at)), name="two")
        sch = tvm.s_tir.Schedule(te.create_prim_func([data, two]))
        outer, _ = sch.get_loops(sch.get_sblock("two"))
        sch.compute_at(sch.get_sblock("one"), outer)
        sch.set_scope(sch.get_sblock("one"), 0, "local")
        if parallel:
            sch.parallel(outer)
        return sch.mod["main"]

    for parallel in (False, True):
        text = code_of(tvm.compile(kernel(parallel), TARGET))
        assert [400] in llvm_text.allocations(text, parallel), "TVM names tasks otherwise"
        assert [400] not in llvm_text.allocations(text, not parallel)


def test_variables_of_the_runtime_get_names_of_their_own(tmp_path: Path) -> None:
    compiled = tvm.compile(doubled(parallel=True), TARGET)
    compiled.mod.write_to_file(str(tmp_path / "kernel.o"))
    code = (tmp_path / "kernel.o").read_bytes()
    launch = llvm_text.RUNTIME_VARIABLES["LAUNCH"]
    assert f"{launch}\0".encode() in code, "TVM calls its threads otherwise"
    assert f"@{launch} " in code_of(compiled)
    own = llvm_text.with_own_variables(code, "net")
    assert len(own) == len(code) and launch.encode() not in own
    assert llvm_text.own_variable("net", launch).encode() in own
    assert llvm_text.with_own_variables(code, "other") != own


def test_foreign_functions_are_declared() -> None:
    data = te.placeholder((8,), name="data")
    call = lambda i: tirx.call_pure_extern("float32", "seams_foreign", data[i])  # noqa: E731
    text = code_of(tvm.compile(te.create_prim_func([data, te.compute((8,), call)]), TARGET))
    assert llvm_text.declared(text) == {"seams_foreign"}


def test_what_the_second_library_has_is_named() -> None:
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [data]):
        builder.emit_func_output(builder.emit(relax.op.sort(data)))
    found = tvm.compile(builder.get(), TARGET)
    assert llvm_text.calls_of_extras(code_of(found)) == ["sort.sort"], "TVM calls it otherwise"
    assert llvm_text.calls_of_extras(code_of(tvm.compile(doubled(), TARGET))) == []
