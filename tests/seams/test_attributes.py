"""What TVM's passes do on seeing an attribute."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import tvm
from small_kernels import TARGET, doubled, graph
from tvm import relax, s_tir, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.tvm_seams import attributes
from tvm_blislike.tvm_seams.executables import code_of


def kernels_after_fusion(noted: Mapping[str, Any]) -> int:
    passes = [
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    mod = tvm.transform.Sequential(passes)(graph(noted))
    return sum(isinstance(func, tirx.PrimFunc) for _, func in mod.functions_items())


@pytest.mark.parametrize(
    ("noted", "kernels"),
    [(attributes.NEVER_FUSED, 2), (attributes.FUSES_WHAT_FOLLOWS, 1)],
)
def test_pattern_kinds_decide_what_is_fused(noted: Mapping[str, Any], kernels: int) -> None:
    message = "the numbers of TVM's pattern kinds mean something else: see `op_attr_types.h`"
    assert kernels_after_fusion(noted) == kernels, message


def test_what_does_not_alias_is_told_to_llvm() -> None:
    (name,) = attributes.NO_ALIAS
    for noted in (False, True):
        text = code_of(tvm.compile(doubled().with_attr(name, noted), TARGET))
        heads = re.findall(r"^define .*@doubled_compute_.*", text, re.M)
        assert any("noalias" in head for head in heads) == noted, "TVM reads another attribute"


def test_parallel_loops_share_a_launch_and_threads_wait_for_each_other() -> None:
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main"})
            x = T.arg("x", T.buffer((64,), "float32"))
            with T.attr(T.int32(0), *attributes.ONE_LAUNCH), T.serial(0, 50) as step:
                with T.attr(T.int32(0), *attributes.BARRIER_BEHIND), T.parallel(0, 64) as i:
                    T.buffer_store(x, x[63 - i] + T.Cast("float32", step), [i])
    compiled = tvm.compile(tvm.IRModule({"main": builder.get()}), TARGET)
    text = code_of(compiled)
    assert "TVMBackendParallelLaunch" in text, "TVM launches no threads at such an attribute"
    assert "TVMBackendParallelBarrier" in text, "threads do not wait for each other"


def test_default_rules_leave_what_is_scheduled() -> None:
    class Rule(s_tir.dlight.base.ScheduleRule):
        def apply(self, func: tirx.PrimFunc, target: Any, tunable: bool) -> s_tir.Schedule:
            seen.append(func)
            return s_tir.Schedule(func)

    seen: list[tirx.PrimFunc] = []
    for func in (doubled(), doubled().with_attr(attributes.IS_SCHEDULED)):
        with TARGET:
            s_tir.dlight.ApplyDefaultSchedule(Rule())(tvm.IRModule({"main": func}))
    assert len(seen) == 1, "TVM reads another attribute of what is scheduled"


def test_functions_of_llvm_lie_beside_their_caller() -> None:
    source = "define float @seams_answer() {\n  ret float 42.0\n}\n"
    answer = te.compute((8,), lambda _: tirx.call_extern("float32", "seams_answer"), name="answer")
    library = tvm.compile(attributes.with_sources(te.create_prim_func([answer]), [source]), TARGET)
    found = tvm.runtime.empty((8,))
    library["main"](found)
    assert set(found.numpy()) == {42.0}, "TVM imports LLVM's text by another pragma"
