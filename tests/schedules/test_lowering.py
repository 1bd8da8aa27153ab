"""Hand-made loops through `lowering`: their structure afterwards, and what they compute."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
import tvm_ffi
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from tvm import s_tir, te, tirx

from tvm_blislike import notes
from tvm_blislike.microkernels import AXIS
from tvm_blislike.schedules.edges import BORDER, EDGE, LAST_EDGE
from tvm_blislike.schedules.lowering import BY_INPUT, REGISTER_BYTES, VECTOR, lower

# A register file of 32 vectors of 512 bits.
REGISTERS = 2048
RNG = np.random.default_rng(11)


def affine(size: int) -> s_tir.Schedule:
    """y = 2 x + 1 of `size` elements; one block, one loop."""
    x = te.placeholder((size,), name="x")
    y = te.compute((size,), lambda i: x[i] * 2.0 + 1.0, name="y")
    return s_tir.Schedule(te.create_prim_func([x, y]))


def only_loops(sch: s_tir.Schedule, block: str = "y") -> list:
    return list(sch.get_loops(sch.get_sblock(block)))


def lowered(sch: s_tir.Schedule, registers: int = REGISTERS) -> tvm.IRModule:
    func = sch.mod["main"].with_attr({REGISTER_BYTES: registers, "global_symbol": "main"})
    return lower(tvm.IRModule({"main": func}))


def found(mod: tvm.IRModule, kind: type) -> list:
    """All nodes of a kind in `main`, outer before inner, first before last."""
    nodes: list = []
    body = mod["main"].body
    tvm_ffi.structural_walk(body, [(kind, nodes.append)], order="pre")
    return nodes


def loops(mod: tvm.IRModule) -> list[tuple[str, int, int]]:
    """Name, first value and extent of each loop; a vector of one lane is no loop."""
    every = [(f.loop_var.name, int(f.min), int(f.extent)) for f in found(mod, tirx.For)]
    return [loop for loop in every if loop != ("lane", 0, 1)]


def result(mod: tvm.IRModule, shape: tuple[int, ...], *inputs: np.ndarray) -> np.ndarray:
    """Run `main` on the inputs; what it does not write is NaN."""
    library = tvm.compile(mod, tvm.target.Target({"kind": "llvm", "num-cores": 2}))
    out = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    library["main"](*map(tvm.runtime.tensor, inputs), out)
    return out.numpy()


def computes_affine(mod: tvm.IRModule, size: int) -> bool:
    x = RNG.standard_normal(size, dtype=np.float32)
    return np.array_equal(result(mod, (size,), x), 2 * x + 1)


# --- edges -------------------------------------------------------


def tiled(size: int, tile: int) -> s_tir.Schedule:
    sch = affine(size)
    tiles, inside = sch.split(only_loops(sch)[0], [None, tile])
    sch.annotate(inside, AXIS, "mw")
    if size % tile:
        sch.annotate(tiles, EDGE, notes.write({"mw": size % tile}))
    return sch


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


def test_annotation_of_another_axis_leaves_a_loop_alone() -> None:
    sch = affine(12)
    tiles, inside = sch.split(only_loops(sch)[0], [None, 4])
    sch.annotate(inside, AXIS, "mh")
    sch.annotate(tiles, EDGE, notes.write({"mw": 3}))
    mod = lowered(sch)
    assert loops(mod) == [("i_0", 0, 2), ("i_1", 0, 4), ("i_1", 0, 4)]
    assert computes_affine(mod, 12)


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
        sch.annotate(inside, AXIS, axis)
        sch.annotate(tiles, EDGE, notes.write({axis: cut}))
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
        sch.annotate(blocks, EDGE, notes.write({"ir": last}))
    sch.annotate(tiles, AXIS, "ir")
    if size % tile:
        sch.annotate(tiles, LAST_EDGE, notes.write({"mw": size % tile}))
    sch.annotate(inside, AXIS, "mw")
    return sch


def test_last_tile_of_the_last_block_only_is_cut() -> None:
    mod = lowered(blocked(43, 4, 4))
    whole = [("i_0", 0, 2), ("i_1", 0, 4), ("i_2", 0, 4)]
    assert loops(mod) == [*whole, ("i_1", 0, 2), ("i_2", 0, 4), ("i_2", 0, 3)]
    assert found(mod, tirx.IfThenElse) == []
    assert computes_affine(mod, 43)


@examples(30)
@given(st.integers(1, 90), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_any_size_is_covered_once(size: int, block: int, tile: int, parallel: bool) -> None:
    sch = blocked(size, block, tile)
    if parallel:
        sch.parallel(only_loops(sch)[0])
    mod = lowered(sch)
    conditions = {str(c.condition) for c in found(mod, tirx.IfThenElse)}
    assert conditions <= {f"i_0 < {-(-size // (block * tile)) - 1}"}
    assert computes_affine(mod, size)


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
    sch.annotate(only_loops(sch)[0], BORDER, [before, after])
    mod = lowered(sch)
    assert loops(mod) == [("i", before, 9)]
    assert conditions(mod) == 0
    x = RNG.standard_normal(9, dtype=np.float32)
    out = result(mod, (9 + before + after,), x)
    np.testing.assert_array_equal(out, np.pad(x, (before, after)))


def test_parallel_border_branches_inside() -> None:
    sch = padded_copy(9, 1, 2)
    sch.annotate(only_loops(sch)[0], BORDER, [1, 2])
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
    sch.annotate(only_loops(sch)[0], BORDER, [2, 5])
    if parallel:
        sch.parallel(only_loops(sch)[0])
    mod = lowered(sch)
    assert len(found(mod, tirx.For)) == int(parallel)
    np.testing.assert_array_equal(result(mod, (3,), np.ones(1, np.float32)), [0, 1, 0])


@pytest.mark.parametrize("parallel", [False, True])
def test_border_and_edge_of_one_loop(parallel: bool) -> None:
    """The last tile is both cut and at the border."""
    sch = padded_copy(16, 2, 1)  # 19 elements: tiles of 4 and one of 3
    tiles, inside = sch.split(only_loops(sch)[0], [None, 4])
    sch.annotate(inside, AXIS, "mw")
    sch.annotate(tiles, BORDER, [1, 1])
    sch.annotate(tiles, EDGE, notes.write({"mw": 3}))
    if parallel:
        sch.parallel(tiles)
    mod = lowered(sch)
    extents = [extent for name, _, extent in loops(mod) if name == "i_1"]
    assert extents == [4, 4, 3]
    x = RNG.standard_normal(16, dtype=np.float32)
    np.testing.assert_array_equal(result(mod, (19,), x), np.pad(x, (2, 1)))


# --- vectors -----------------------------------------------------


def widths(mod: tvm.IRModule) -> list[int]:
    """Lanes of each store, in the order of execution."""
    stores = found(mod, tirx.BufferStore)
    return [int(at.lanes) if isinstance(at := s.indices[-1], tirx.Ramp) else 1 for s in stores]


@pytest.mark.parametrize(
    "size, expected",
    [
        (1, [1]),
        (16, [16]),
        (31, [16, 8, 4, 2, 1]),
        (24, [16, 8]),
        (57, [16, 16, 16, 8, 1]),
        (6, [4, 2]),
    ],
)
def test_vectors_and_their_tail(size: int, expected: list[int]) -> None:
    sch = affine(size)
    sch.annotate(only_loops(sch)[0], VECTOR, 16)
    mod = lowered(sch)
    assert widths(mod) == expected
    assert loops(mod) == []
    assert computes_affine(mod, size)


def test_long_copies_stay_a_loop() -> None:
    sch = affine(33 * 16 + 5)
    sch.annotate(only_loops(sch)[0], VECTOR, 16)
    mod = lowered(sch)
    assert loops(mod) == [("jv", 0, 33)]
    assert widths(mod) == [16, 4, 1]
    assert computes_affine(mod, 33 * 16 + 5)


@pytest.mark.parametrize(
    "axis, width, cut, expected",
    [
        # The lanes of a tile, and vectors of one that repeat all they do for each width.
        ("lanes", 48, 21, [16, 16, 16, 16, 4, 1]),
        ("sweep", 16, 11, [16, 8, 2, 1]),
        ("sweep", 16, 1, [16, 1]),
    ],
)
def test_cut_vectors_become_narrower_ones(
    axis: str, width: int, cut: int, expected: list[int]
) -> None:
    sch = affine(width + cut)
    tiles, lane = sch.split(only_loops(sch)[0], [None, width])
    sch.annotate(tiles, EDGE, notes.write({axis: cut}))
    sch.annotate(lane, AXIS, axis)
    sch.annotate(lane, VECTOR, 16)
    mod = lowered(sch)
    assert widths(mod) == expected
    assert computes_affine(mod, width + cut)


# --- a convolution's nest in the order of its input --------------


def convolution(
    stride: tuple[int, int], dilation: tuple[int, int]
) -> tuple[s_tir.Schedule, tuple[int, int], tuple[int, int]]:
    """A 2x3 tile of a 3x2 kernel; returns also the sizes of input and output."""
    (sh, sw), (dh, dw) = stride, dilation
    height, width = sh + 2 * dh + 1, 2 * sw + dw + 1
    x = te.placeholder((height, width), name="x")
    weights = te.placeholder((3, 2), name="w")
    ry, rx = te.reduce_axis((0, 3), "ry"), te.reduce_axis((0, 2), "rx")
    y = te.compute(
        (2, 3),
        lambda i, j: te.sum(x[i * sh + ry * dh, j * sw + rx * dw] * weights[ry, rx], axis=[ry, rx]),
        name="y",
    )
    sch = s_tir.Schedule(te.create_prim_func([x, weights, y]))
    ih, iw, r, c = only_loops(sch)
    sch.reorder(r, c, ih, iw)
    for loop, axis in ((ih, "mh"), (iw, "mw"), (r, "ry"), (c, "rx")):
        sch.annotate(loop, AXIS, axis)
    sch.decompose_reduction(sch.get_sblock("y"), r)
    sch.annotate(r, BY_INPUT, [sh, sw, dh, dw])
    return sch, (height, width), (2, 3)


@pytest.mark.parametrize("dilation", [(1, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (1, 2)])
def test_nest_runs_in_the_order_of_the_input(
    stride: tuple[int, int], dilation: tuple[int, int]
) -> None:
    sch, in_size, out_size = convolution(stride, dilation)
    mod = lowered(sch)
    updates = [s for s in found(mod, tirx.BufferStore) if isinstance(s.value, tirx.Add)]
    assert len(updates) == 2 * 3 * 3 * 2
    products = [(s.value.b.a, s.value.b.b) for s in updates]
    pixels = [tuple(int(i) for i in pixel.indices) for pixel, _ in products]
    assert pixels == sorted(pixels)
    x = RNG.standard_normal(in_size, dtype=np.float32)
    w = RNG.standard_normal((3, 2), dtype=np.float32)
    expected = np.zeros(out_size)
    for (i, j), (r, c) in itertools.product(np.ndindex(2, 3), np.ndindex(3, 2)):
        at = i * stride[0] + r * dilation[0], j * stride[1] + c * dilation[1]
        expected[i, j] += float(x[at]) * float(w[r, c])
    np.testing.assert_allclose(result(mod, out_size, x, w), expected, rtol=1e-5, atol=1e-6)


def test_each_output_is_summed_in_the_order_of_the_kernel() -> None:
    """So results do not depend on the tile."""
    sch, *_ = convolution((1, 1), (1, 1))
    order: dict[tuple, list] = {}
    for store in found(lowered(sch), tirx.BufferStore):
        if isinstance(store.value, tirx.Add):
            output = tuple(int(i) for i in store.indices)
            order.setdefault(output, []).append([int(i) for i in store.value.b.b.indices])
    assert set(order) == set(np.ndindex(2, 3))
    assert all(taps == sorted(taps) and len(taps) == 6 for taps in order.values())


# --- buffers -----------------------------------------------------


def accumulating(rows: int, unroll: bool = True) -> s_tir.Schedule:
    """Column sums of 8 x rows * 16 elements in a buffer of `rows` vectors."""
    k = te.reduce_axis((0, 8), "k")
    x = te.placeholder((8, rows * 16), name="x")
    acc = te.compute((rows, 16), lambda i, j: te.sum(x[k, i * 16 + j], axis=[k]), name="acc")
    y = te.compute((rows * 16,), lambda i: acc[i // 16, i % 16], name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    sch.split(only_loops(sch)[0], [rows, 16])
    row, lane, depth = only_loops(sch, "acc")
    sch.reorder(depth, row, lane)
    sch.decompose_reduction(sch.get_sblock("acc"), depth)
    for block in ("acc_init", "acc_update", "y"):
        row, lane = only_loops(sch, block)[-2:]
        sch.annotate(lane, VECTOR, 16)
        if unroll:
            sch.unroll(row)
    return sch


HEAP = "TVMBackendAllocWorkspace"


def sums_columns(mod: tvm.IRModule, rows: int) -> bool:
    x = RNG.integers(-9, 9, (8, rows * 16)).astype("float32")
    return np.array_equal(result(mod, (rows * 16,), x), x.sum(0))


def code(mod: tvm.IRModule) -> str:
    return tvm.compile(mod, "llvm").mod.inspect_source("ll")


@pytest.mark.parametrize("rows", [1, 4, 15, 16, 28, 32])
def test_buffers_as_large_as_the_registers_stay_on_the_stack(rows: int) -> None:
    mod = lowered(accumulating(rows))
    # TVM itself leaves less than 1024 bytes on the stack: 16 rows and more become single rows.
    assert len(found(mod, tirx.AllocBuffer)) == (rows if rows >= 16 else 1)
    assert HEAP not in code(mod)
    assert sums_columns(mod, rows)


def test_larger_buffers_do_not() -> None:
    mod = lowered(accumulating(33))
    assert len(found(mod, tirx.AllocBuffer)) == 1
    assert HEAP in code(mod)
    assert sums_columns(mod, 33)
    assert len(found(lowered(accumulating(33), registers=33 * 64), tirx.AllocBuffer)) == 33


def test_rows_in_a_loop_keep_their_buffer_whole() -> None:
    mod = lowered(accumulating(20, unroll=False))
    assert len(found(mod, tirx.AllocBuffer)) == 1
    assert sums_columns(mod, 20)


# --- which functions ---------------------------------------------


def test_functions_without_the_attribute_are_left_as_they_are() -> None:
    ours = tiled(11, 4).mod["main"].with_attr({REGISTER_BYTES: REGISTERS, "global_symbol": "ours"})
    other = tiled(11, 4).mod["main"].with_attr("global_symbol", "other")
    mod = tvm.IRModule({"ours": ours, "other": other})
    after = lower(mod)
    assert tvm_ffi.structural_equal(after["other"], other)
    assert REGISTER_BYTES not in after["ours"].attrs
    # The module given is not changed.
    assert tvm_ffi.structural_equal(mod["ours"], ours)
    nothing = tvm.IRModule({"other": other})
    assert lower(nothing).same_as(nothing)


def test_two_functions_of_one_module_share_no_variable() -> None:
    """Edge copies are renamed: TVM refuses a variable that is defined twice."""
    funcs = {
        name: tiled(11, 4).mod["main"].with_attr({REGISTER_BYTES: 64, "global_symbol": name})
        for name in ("one", "two")
    }
    after = lower(tvm.IRModule(funcs))
    names = []
    for name in funcs:
        tvm_ffi.structural_walk(after[name].body, [(tirx.For, lambda f: names.append(f.loop_var))])
    assert len({id(v) for v in names}) == len(names) == 6
    library = tvm.compile(after, "llvm")
    x = np.arange(11, dtype="float32")
    for name in funcs:
        out = tvm.runtime.tensor(np.full(11, np.nan, "float32"))
        library[name](tvm.runtime.tensor(x), out)
        np.testing.assert_array_equal(out.numpy(), 2 * x + 1)
