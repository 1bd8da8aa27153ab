"""Schedules without the comparison of arguments and annotations do what TVM's do."""

from __future__ import annotations

from typing import Any

import pytest
import tvm_ffi
from tvm import s_tir, te, tirx, topi

from tvm_blislike.tvm_seams.schedules import Schedule


def product() -> tirx.PrimFunc:
    a, b = (te.placeholder((64, 48), name=name) for name in "ab")
    k = te.reduce_axis((0, 48), name="k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[j, k], k), name="c")
    return te.create_prim_func([a, b, topi.nn.relu(c)])


def scheduled(sch: s_tir.Schedule) -> s_tir.Schedule:
    """Use primitives that take blocks, loops, lists, texts and numbers."""
    root = sch.get_sblock("root")
    (output,) = sch.get_output_blocks(root)
    block = sch.get_sblock("c")
    i, j = sch.get_loops(output)
    outer, inner = sch.split(j, [None, 16])
    sch.reorder(outer, i, inner)
    sch.compute_at(block, outer, preserve_unit_loops=True)
    sch.vectorize(inner)
    sch.annotate(block, "note", "text")
    sch.decompose_reduction(block, sch.get_loops(block)[-1])
    return sch


def test_primitives_do_the_same() -> None:
    ours, theirs = scheduled(Schedule(product())), scheduled(s_tir.Schedule(product()))
    assert tvm_ffi.structural_equal(ours.mod, theirs.mod)
    assert tvm_ffi.structural_equal(ours.trace.as_json(), theirs.trace.as_json())


def test_no_primitive_compares_annotations() -> None:
    checked = {name for name, method in vars(s_tir.Schedule).items() if is_checked(method)}
    message = "TVM compares arguments another way: see its `_type_checker.py`"
    assert len(checked) > 20, message
    assert not [name for name in checked if is_checked(getattr(Schedule, name))], message


def is_checked(method: Any) -> bool:
    return hasattr(method, "__wrapped__")


def test_what_cannot_be_is_refused_still() -> None:
    sch = Schedule(product())
    (output,) = sch.get_output_blocks(sch.get_sblock("root"))
    with pytest.raises(TypeError):
        sch.split(output, [None, 16])
    with pytest.raises(s_tir.ScheduleError):
        sch.compute_inline(output)
