"""Buffers become as small as TVM makes them, whatever hides behind names meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
import tvm_ffi
from small_kernels import Seen
from tvm import s_tir, te, tirx

from tvm_blislike.tvm_seams import compaction

SIZE = 64
BEFORE = tvm.transform.Sequential(
    [
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
    ]
)


def padded(data: te.Tensor) -> Callable[..., Any]:
    """Return what is read of parameters alone, under a condition."""
    return lambda i, j: tirx.if_then_else(i + j < SIZE, data[i, j], tirx.const(0, "float32"))


def kernel(padding: Callable[..., Any]) -> tvm.IRModule:
    """Return rows of a copy that are made where they are read, of which one row is left."""
    data = te.placeholder((SIZE, SIZE), name="data")
    copy = te.compute(data.shape, lambda *at: data[at] + 1.0, name="copy")
    rows = te.compute(data.shape, padding(data), name="rows")
    result = te.compute(
        data.shape,
        lambda i, j: tirx.if_then_else(j < 8, rows[i, j], copy[i, j]) + copy[i, 0],
        name="result",
    )
    sch = s_tir.Schedule(te.create_prim_func([data, result]))
    for stage in ("copy", "rows"):
        sch.compute_at(sch.get_sblock(stage), sch.get_loops("result")[0])
    return BEFORE(sch.mod)


@pytest.mark.parametrize(
    "padding", [padded, lambda data: lambda *at: data[at] * 2.0], ids=["conditions", "none"]
)
def test_buffers_are_as_small_as_tvm_makes_them(padding: Callable[..., Any]) -> None:
    mod = kernel(padding)
    compacted = compaction.compact_buffers(mod)
    tvm.ir.assert_structural_equal(
        compacted, s_tir.transform.CompactBufferAllocation()(mod), map_free_vars=False
    )
    assert not tvm_ffi.structural_equal(compacted, mod), "nothing to compact here"


def test_conditions_on_parameters_alone_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def noted(mod: tvm.IRModule) -> tvm.IRModule:
        shown.append(mod.script())
        return mod

    monkeypatch.setattr(compaction, "_COMPACT", noted)
    mod = kernel(padded)
    compacted = compaction.compact_buffers(mod)
    (text,) = shown
    assert mod.script().count("T.if_then_else") == 2
    assert text.count("T.if_then_else") == 1, "of an allocated buffer"
    tvm.ir.assert_structural_equal(compacted, mod)


def test_tvm_s_pass_runs() -> None:
    seen = Seen()
    with tvm.transform.PassContext(instruments=[seen]):
        compaction.compact_buffers(kernel(padded))
    assert "s_tir.CompactBufferAllocation" in seen.names
