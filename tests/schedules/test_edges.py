"""Tiles at edges and borders: structure of hand-made loops, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from made_loops import (
    RNG,
    affine,
    computes_affine,
    found,
    loops,
    lowered,
    only_loops,
    result,
    tiled,
)
from tvm import s_tir, sym, te, tirx

from tvm_blislike.model.directive import Directive
from tvm_blislike.model.directives import Border, Edge, LastBlock, LastEdge, SharedBorder
from tvm_blislike.model.loop_names import Named
from tvm_blislike.schedules.lowering.rewrite import collect, substitute


def test_last_tile_is_split_off_and_cut() -> None:
    mod = lowered(tiled(11, 4))
    assert loops(mod) == [("i_0", 0, 2), ("i_1", 0, 4), ("i_1", 0, 3)]
    assert found(mod, tirx.IfThenElse) == []
    assert computes_affine(mod, 11)


def test_whole_tiles_stay_one_loop() -> None:
    mod = lowered(tiled(12, 4))
    assert loops(mod) == [("i_0", 0, 3), ("i_1", 0, 4)]
    assert computes_affine(mod, 12)


def test_single_tile_leaves_no_loop_over_tiles() -> None:
    mod = lowered(tiled(3, 4))
    assert loops(mod) == [("i_1", 0, 3)]
    assert computes_affine(mod, 3)


def test_an_edge_leaves_a_loop_of_another_name_alone() -> None:
    sch = affine(24)
    tiles, other, inside = sch.split(only_loops(sch)[0], [None, 2, 4])
    Named("mh").on(sch, other)
    Named("mw").on(sch, inside)
    Edge({"mw": 4}).on(sch, tiles)
    mod = lowered(sch)
    assert loops(mod) == [("i_0", 0, 2), *[("i_1", 0, 2), ("i_2", 0, 4)] * 2]
    assert computes_affine(mod, 24)


def test_parallel_loop_with_an_edge_branches_inside() -> None:
    """A peeled iteration would run on one thread while the others wait."""
    sch = tiled(11, 4)
    sch.parallel(only_loops(sch)[0])
    mod = lowered(sch)
    assert loops(mod) == [("i_0", 0, 3), ("i_1", 0, 4), ("i_1", 0, 3)]
    assert found(mod, tirx.For)[0].kind == tirx.ForKind.PARALLEL
    assert len(found(mod, tirx.IfThenElse)) == 1
    assert computes_affine(mod, 11)


def test_edges_of_two_axes_give_four_variants() -> None:
    x = te.placeholder((5, 7), name="x")
    y = te.compute((5, 7), lambda i, j: x[i, j] * 2.0 + 1.0, name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    i, j = only_loops(sch)
    it, ih = sch.split(i, [None, 3])
    jt, jw = sch.split(j, [None, 4])
    sch.reorder(it, jt, ih, jw)
    for tiles, inside, axis, cut in ((it, ih, "mh", 2), (jt, jw, "mw", 3)):
        Named(axis).on(sch, inside)
        Edge({axis: cut}).on(sch, tiles)
    mod = lowered(sch)
    blocks = [f for f in loops(mod) if f[0] in ("i_1", "j_1")]
    extents = [extent for _, _, extent in blocks]
    shapes = list(zip(extents[::2], extents[1::2], strict=True))
    assert shapes == [(3, 4), (3, 3), (2, 4), (2, 3)]
    data = RNG.standard_normal((5, 7), dtype=np.float32)
    np.testing.assert_array_equal(result(mod, (5, 7), data), 2 * data + 1)


def blocked(size: int, block: int, tile: int) -> s_tir.Schedule:
    """Loops over blocks of `block` tiles of `tile` elements, edges as a GEMM has them."""
    sch = affine(size)
    blocks, tiles, inside = sch.split(only_loops(sch)[0], [None, block, tile])
    count = -(-size // tile)
    last = count - (-(-count // block) - 1) * block
    if last < block or size % tile:
        LastBlock({"ir": last}).on(sch, blocks)
    Named("ir").on(sch, tiles)
    if size % tile:
        LastEdge({"mw": size % tile}).on(sch, tiles)
    Named("mw").on(sch, inside)
    return sch


def test_last_tile_of_the_last_block_only_is_cut() -> None:
    """Three blocks of four tiles, three of them in the last one: two copies, not three."""
    mod = lowered(blocked(43, 4, 4))
    blocks, tiles, *inside = found(mod, tirx.For)
    assert int(blocks.extent) == 3
    simplify = sym.Analyzer().simplify
    counts = [simplify(substitute(tiles.extent, {blocks.loop_var: at})) for at in range(3)]
    assert list(map(int, counts)) == [4, 4, 3]
    assert [int(each.extent) for each in inside] == [3, 4]
    assert len(found(mod, tirx.IfThenElse)) == 1
    assert computes_affine(mod, 43)


def test_a_single_block_has_its_last_tile_apart() -> None:
    mod = lowered(blocked(11, 4, 4))
    assert loops(mod) == [("i_0", 0, 1), ("i_1", 0, 2), ("i_2", 0, 4), ("i_2", 0, 3)]
    assert found(mod, tirx.IfThenElse) == []
    assert computes_affine(mod, 11)


@examples(30)
@given(st.integers(1, 90), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_any_size_is_covered_once(size: int, block: int, tile: int, parallel: bool) -> None:
    sch = blocked(size, block, tile)
    if parallel:
        sch.parallel(only_loops(sch)[0])
    mod = lowered(sch)
    asked = {v.name for c in found(mod, tirx.IfThenElse) for v in collect(c.condition, tirx.Var)}
    assert asked <= {"i_0", "i_1"}, "which block and tile it is, never which element"
    assert computes_affine(mod, size)


def test_conditions_of_two_axes_go_one_by_one() -> None:
    """Blocks of 2 x 2 tiles of 4 x 4 elements: one condition of both axes in front of each."""
    x = te.placeholder((31, 23), name="x")
    y = te.compute(x.shape, lambda *at: 2.0 * x[at], name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    split = [sch.split(loop, [None, 2, 4]) for loop in only_loops(sch)]
    sch.reorder(*(loops[level] for level in range(3) for loops in split))
    for (blocks, tiles, inside), tile, element, size in zip(
        split, ("ir", "jr"), ("mw", "lanes"), (31, 23), strict=True
    ):
        LastBlock({tile: 2}).on(sch, blocks)
        Named(tile).on(sch, tiles)
        LastEdge({element: size % 4}).on(sch, tiles)
        Named(element).on(sch, inside)
    mod = lowered(sch)
    asked = {v.name for c in found(mod, tirx.IfThenElse) for v in collect(c.condition, tirx.Var)}
    assert asked == {"i0_0", "i0_1", "i1_0", "i1_1"}
    data = RNG.standard_normal((31, 23), dtype=np.float32)
    np.testing.assert_array_equal(result(mod, (31, 23), data), 2 * data)


# --- borders -----------------------------------------------------


def padded_copy(size: int, before: int, after: int) -> s_tir.Schedule:
    x = te.placeholder((size,), name="x")
    y = te.compute(
        (before + size + after,),
        lambda i: tirx.if_then_else(
            tirx.all(i >= before, i < before + size), x[tirx.max(i - before, 0)], 0.0
        ),
        name="y",
    )
    return s_tir.Schedule(te.create_prim_func([x, y]))


def conditions(mod: tvm.IRModule) -> int:
    """Conditional statements and expressions left."""
    names = [str(call.op) for call in found(mod, tvm.ir.Call)]
    selects = sum("if_then_else" in name for name in names)
    return selects + len(found(mod, tirx.IfThenElse))


@pytest.mark.parametrize("before, after", [(1, 2), (0, 3), (2, 0), (3, 3)])
def test_border_leaves_no_condition(before: int, after: int) -> None:
    sch = padded_copy(9, before, after)
    Border(before, after).on(sch, only_loops(sch)[0])
    mod = lowered(sch)
    assert loops(mod) == [("i", before, 9)]
    assert conditions(mod) == 0
    x = RNG.standard_normal(9, dtype=np.float32)
    out = result(mod, (9 + before + after,), x)
    np.testing.assert_array_equal(out, np.pad(x, (before, after)))


def test_parallel_border_branches_inside() -> None:
    sch = padded_copy(9, 1, 2)
    Border(1, 2).on(sch, only_loops(sch)[0])
    sch.parallel(only_loops(sch)[0])
    mod = lowered(sch)
    assert loops(mod) == [("i", 0, 12)]
    # First, interior, last but one, last.
    assert [str(c.condition) for c in found(mod, tirx.IfThenElse)] == ["i < 1", "i < 10", "i < 11"]
    assert conditions(mod) == 3
    x = RNG.standard_normal(9, dtype=np.float32)
    np.testing.assert_array_equal(result(mod, (12,), x), np.pad(x, (1, 2)))


@pytest.mark.parametrize("parallel", [False, True])
def test_border_wider_than_the_loop(parallel: bool) -> None:
    sch = padded_copy(1, 1, 1)
    Border(2, 5).on(sch, only_loops(sch)[0])
    if parallel:
        sch.parallel(only_loops(sch)[0])
    mod = lowered(sch)
    assert len(found(mod, tirx.For)) == int(parallel)
    np.testing.assert_array_equal(result(mod, (3,), np.ones(1, np.float32)), [0, 1, 0])


@pytest.mark.parametrize("before, after", [(1, 2), (0, 3), (3, 0), (9, 3), (5, 9)])
@pytest.mark.parametrize("parallel", [False, True])
def test_shared_border_has_one_copy(before: int, after: int, parallel: bool) -> None:
    sch = padded_copy(9, before, after)
    count = 9 + before + after
    SharedBorder(before, after).on(sch, only_loops(sch)[0])
    if parallel:
        sch.parallel(only_loops(sch)[0])
    mod = lowered(sch)
    assert loops(mod) == [("i", 0, count)]
    # It asks which copy to take.
    assert len(found(mod, tirx.BufferStore)) == 2
    assert conditions(mod) == 1
    x = RNG.standard_normal(9, dtype=np.float32)
    np.testing.assert_array_equal(result(mod, (count,), x), np.pad(x, (before, after)))


def test_shared_border_wider_than_the_loop() -> None:
    sch = padded_copy(1, 1, 1)
    SharedBorder(2, 5).on(sch, only_loops(sch)[0])
    mod = lowered(sch)
    assert len(found(mod, tirx.BufferStore)) == 1
    np.testing.assert_array_equal(result(mod, (3,), np.ones(1, np.float32)), [0, 1, 0])


@pytest.mark.parametrize("border", [Border, SharedBorder])
@pytest.mark.parametrize("parallel", [False, True])
def test_border_and_edge_of_one_loop(parallel: bool, border: type[Directive]) -> None:
    """The last tile is both cut and at the border."""
    sch = padded_copy(16, 2, 1)  # 19 elements: tiles of 4 and one of 3
    tiles, inside = sch.split(only_loops(sch)[0], [None, 4])
    Named("mw").on(sch, inside)
    border(1, 1).on(sch, tiles)
    Edge({"mw": 3}).on(sch, tiles)
    if parallel:
        sch.parallel(tiles)
    mod = lowered(sch)
    extents = [extent for name, _, extent in loops(mod) if name == "i_1"]
    assert extents == [4, 4, 3]
    x = RNG.standard_normal(16, dtype=np.float32)
    np.testing.assert_array_equal(result(mod, (19,), x), np.pad(x, (2, 1)))
