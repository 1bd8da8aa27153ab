"""TVM's pipelines: what they are made of, and how one is put around another."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi
from small_kernels import TARGET, Seen, doubled
from tvm import relax, s_tir, te, tirx

from tvm_blislike.tvm_seams import pipelines


def names(passes: list[tvm.transform.Pass]) -> list[str]:
    return [str(found.info.name) for found in passes]


def printed(program: str) -> Any:
    """Return what a program prints as JSON in a process of its own, which knows these files."""
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_parts_of_the_cpu_pipeline_are_all_of_it() -> None:
    views = str(pipelines.VIEWS.info.name)
    lowering = names(pipelines.lowering_passes(TARGET))
    whole = names(relax.backend.cpu_generic.pipeline.dataflow_lower_passes(TARGET))
    assert sorted([views, *lowering]) == sorted(whole), "TVM's pass for views has another name"
    machine = names(pipelines.machine_passes(TARGET, lambda _: ""))
    last = names(relax.backend.cpu_generic.pipeline.finalize_passes(TARGET))
    assert last[0] == "StaticPlanBlockMemory"
    assert [name for name in machine if not name.startswith("blislike.")] == last
    assert all(isinstance(p, tvm.transform.Pass) for p in pipelines.dispatch_passes(TARGET))


# A pipeline that notes what its two passes see; prints the modules' texts.
AROUND = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pytest
import tvm
from small_kernels import TARGET, doubled
from tvm_blislike.tvm_seams import pipelines
seen = {"first": [], "last": []}
def noting(where):
    @tvm.transform.module_pass(opt_level=0, name=where)
    def note(mod, _ctx):
        seen[where].append(mod.script())
        return mod
    return note
pipelines.register_around("seams", noting("first"), noting("last"))
steps = []
for replace, chosen in ((False, "default"), (False, "seams"), (True, "default"), (True, "seams")):
    if replace:
        pipelines.replace_default("seams")
    tvm.compile(doubled(), TARGET, tir_pipeline=chosen)
    steps.append([len(texts) for texts in seen.values()])
print(json.dumps([steps, seen["first"][0], seen["last"][0]]))
"""


def test_a_pipeline_lies_around_tvms_own() -> None:
    steps, first, last = printed(AROUND)
    # TVM's own pipeline stays as it is until it is replaced; then each pass runs once.
    assert steps == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert "T.sblock" in first, "a pass in front sees blocks no more"
    assert "T.sblock" not in last, "a pass behind TVM's sees blocks"


# Prints the passes of TVM's own pipeline that `with_needed` leaves out of it, and what the context
# was in between. A process of its own: elsewhere another pipeline may have taken its place.
NEEDED = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pytest
import tvm
from small_kernels import TARGET, Seen, doubled
from tvm_blislike.tvm_seams import pipelines
every, kept = Seen(), Seen()
with tvm.transform.PassContext(instruments=[every]):
    tvm.compile(doubled(), TARGET)
options = {"tirx.disable_assert": True}
with (
    tvm.transform.PassContext(
        1, disabled_pass=["tirx.RemoveNoOp"], instruments=[kept], config=options
    ),
    pipelines.with_needed(),
):
    present = tvm.transform.PassContext.current()
    tvm.compile(doubled(), TARGET)
left_out = {*every.names} - {*kept.names}
same_options = dict(present.config) == options
print(json.dumps([present.opt_level, same_options, sorted(left_out), every.names]))
"""


def test_passes_that_kernels_do_not_need_are_left_out_and_no_others() -> None:
    level, same_options, left_out, every = printed(NEEDED)
    assert level == 1 and same_options
    wanted = {*pipelines._FOR_GPUS, *pipelines._BEHIND_BLOCKS}
    assert {*left_out} == wanted, "TVM's passes have other names"
    assert {*pipelines._ABOUT} <= {*every}, "TVM's passes have other names"


def lowered_kernel(
    value: Callable[[tirx.Var], Any],
    dtype: str = "float32",
    only: Callable[[tirx.Var], Any] | None = None,
) -> tirx.PrimFunc:
    """Return a function without blocks that writes a value of each of 8 rows, or of `only` some."""
    result, i = tirx.decl_buffer((8,), dtype, "result"), tirx.Var("i", "int32")
    store = tirx.BufferStore(result, value(i), [i])
    body = tirx.IfThenElse(only(i), store, None) if only else store
    loop = tirx.For(i, 0, tirx.IntImm("int32", 8), tirx.ForKind.SERIAL, body)
    return tirx.PrimFunc([result], loop).with_attr({"global_symbol": "kernel", "target": TARGET})


def one(dtype: str = "float32") -> Any:
    return tirx.const(1.0, dtype)


# Functions without blocks, and the passes that are about what occurs in them.
CASES: dict[str, tuple[tirx.PrimFunc, set[str]]] = {
    "plain": (lowered_kernel(lambda i: tirx.Cast("float32", i)), set()),
    "condition": (
        lowered_kernel(lambda i: tirx.Cast("float32", i), only=lambda i: i < 4),
        {"s_tir.HoistIfThenElse"},
    ),
    "select": (
        lowered_kernel(lambda i: tirx.Select(i < 4, one(), one() + one())),
        {"s_tir.RewriteUnsafeSelect"},
    ),
    "likely": (
        lowered_kernel(lambda i: tirx.if_then_else(tirx.likely(i < 4), one(), one() + one())),
        {"s_tir.LoopPartition"},
    ),
    "bfloat16 in between": (
        lowered_kernel(lambda i: tirx.Cast("float32", tirx.Cast("bfloat16", i))),
        {"tirx.BF16ComputeLegalize"},
    ),
    "bfloat16 in memory": (
        lowered_kernel(lambda i: one("bfloat16"), "bfloat16"),
        {"tirx.BF16ComputeLegalize"},
    ),
    "float8 by a call": (
        lowered_kernel(
            lambda i: tirx.Cast("float32", tirx.reinterpret("float8_e4m3fn", tirx.Cast("int8", i)))
        ),
        {"tirx.FP8ComputeLegalize"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pass_is_left_out_only_where_it_changes_nothing(case: str) -> None:
    func, about = CASES[case]
    mod = tvm.IRModule({"kernel": func})
    idle = pipelines._idle_passes(mod)
    assert {*idle} == {*pipelines._ABOUT} - about
    for name in idle:
        home, _, short = name.rpartition(".")
        change = getattr((tirx if home == "tirx" else s_tir).transform, short)()
        assert tvm_ffi.structural_equal(change(mod), mod, map_free_vars=True), name
    with pipelines.with_needed(mod):
        assert {*idle} <= {*map(str, tvm.transform.PassContext.current().disabled_pass)}


def test_modules_to_be_linked_have_no_entry() -> None:
    mod = tvm.IRModule({"kernel": CASES["plain"][0]})
    for context, entries in ((contextlib.nullcontext, 1), (pipelines.without_entries, 0)):
        with context():
            text = tirx.build(mod, TARGET).inspect_source("ll")
        message = "TVM makes entries by another pass"
        assert len(re.findall(r"^define .*@__tvm_ffi_main\(", text, re.M)) == entries, message


def test_no_pass_is_left_out_for_functions_with_blocks() -> None:
    assert pipelines._idle_passes(tvm.IRModule({"doubled": doubled()})) == []


def test_blocks_are_lowered_where_there_are_any_by_all_passes_about_them() -> None:
    blocks = tvm.IRModule({"doubled": doubled()})
    lowered = pipelines.lower_blocks(blocks)
    assert "T.sblock" in blocks.script() and "T.sblock" not in lowered.script()
    seen = {}
    for name, mod in (("blocks", blocks), ("lowered", lowered)):
        seen[name] = Seen()
        with tvm.transform.PassContext(instruments=[seen[name]]), pipelines.with_needed():
            after = pipelines.without_blocks(mod)
        assert "T.sblock" not in after.script()
    assert set(pipelines._BEHIND_BLOCKS[:2]) < {*seen["blocks"].names}
    assert seen["lowered"].names == [pipelines.without_blocks.info.name]


@pytest.mark.parametrize("context", [contextlib.nullcontext, pipelines.with_needed])
def test_rows_of_a_buffer_lie_as_far_apart_as_asked_for(context: Any) -> None:
    data = te.placeholder((64, 64), name="data")
    copy = te.compute(data.shape, lambda *at: data(*at), name="copy")
    result = te.compute(data.shape, lambda i, j: copy[j, i], name="result")
    sch = tvm.s_tir.Schedule(te.create_prim_func([data, result]))
    sch.storage_align("copy", 0, 0, 32, 16)
    with context():
        lowered = pipelines.lower_blocks(sch.mod)
    assert "strides=(80, 1)" in lowered.script()
