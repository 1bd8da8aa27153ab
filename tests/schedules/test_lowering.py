"""Hand-made loops through `lowering`: their structure afterwards, and what they compute."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
import tvm_ffi
from made_loops import (
    REGISTERS,
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
from tvm import s_tir, te, tirx

from tvm_blislike.model.directives import ByInput, Edge, Vector
from tvm_blislike.model.loop_names import Named
from tvm_blislike.model.marks import REGISTER_BYTES
from tvm_blislike.schedules.lowering.lower import lower

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
    Vector(16).on(sch, only_loops(sch)[0])
    mod = lowered(sch)
    assert widths(mod) == expected
    assert loops(mod) == []
    assert computes_affine(mod, size)


def test_long_copies_stay_a_loop() -> None:
    sch = affine(33 * 16 + 5)
    Vector(16).on(sch, only_loops(sch)[0])
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
    Edge({axis: cut}).on(sch, tiles)
    Named(axis).on(sch, lane)
    Vector(16).on(sch, lane)
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
        Named(axis).on(sch, loop)
    sch.decompose_reduction(sch.get_sblock("y"), r)
    ByInput(sh, sw, dh, dw).on(sch, r)
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
        Vector(16).on(sch, lane)
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


def in_one_row(rows: int, unroll: bool = True) -> s_tir.Schedule:
    """The same sums in a buffer of one row, `rows` vectors side by side."""
    k = te.reduce_axis((0, 8), "k")
    x = te.placeholder((8, rows * 16), name="x")
    acc = te.compute((1, rows * 16), lambda _, j: te.sum(x[k, j], axis=[k]), name="acc")
    y = te.compute((rows * 16,), lambda j: acc[0, j], name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    _, columns, depth = only_loops(sch, "acc")
    sch.reorder(depth, columns)
    sch.decompose_reduction(sch.get_sblock("acc"), depth)
    for block in ("acc_init", "acc_update", "y"):
        row, lane = sch.split(only_loops(sch, block)[-1], [rows, 16])
        Vector(16).on(sch, lane)
        if unroll:
            sch.unroll(row)
    return sch


@pytest.mark.parametrize("rows", [16, 28])
def test_vectors_of_a_long_row_stay_on_the_stack(rows: int) -> None:
    mod = lowered(in_one_row(rows))
    buffers = [alloc.buffer for alloc in found(mod, tirx.AllocBuffer)]
    assert [int(buffer.shape[-1]) for buffer in buffers] == [16] * rows
    assert HEAP not in code(mod)
    assert sums_columns(mod, rows)


def test_unknown_vectors_of_a_long_row_keep_it_whole() -> None:
    mod = lowered(in_one_row(20, unroll=False))
    assert len(found(mod, tirx.AllocBuffer)) == 1
    assert sums_columns(mod, 20)


def test_rows_in_a_loop_keep_their_buffer_whole() -> None:
    mod = lowered(accumulating(20, unroll=False))
    assert len(found(mod, tirx.AllocBuffer)) == 1
    assert sums_columns(mod, 20)


def test_what_stays_on_the_stack_shares_no_memory_with_the_heap() -> None:
    """Accumulators in the memory of a patch that is over would be stored in every iteration."""
    x = te.placeholder((2, 36, 16), name="x")
    patch = te.compute((2, 36, 16), lambda t, i, j: x[t, i, j] + 1, name="patch")
    turned = te.compute((2, 36, 16), lambda t, i, j: patch[t, 35 - i, j], name="turned")
    k = te.reduce_axis((0, 36), "k")
    sums = te.compute(
        (2, 14, 16), lambda t, i, j: te.sum(turned[t, k, j] * (i + 1), axis=[k]), name="sums"
    )
    y = te.compute((2, 14, 16), lambda t, i, j: sums[t, i, j] * 2, name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    task = only_loops(sch, "y")[0]
    sch.parallel(task)
    for block in ("sums", "turned", "patch"):
        sch.compute_at(sch.get_sblock(block), task)
    depth = only_loops(sch, "sums")[-1]
    sch.reorder(depth, *only_loops(sch, "sums")[-3:-1])
    sch.decompose_reduction(sch.get_sblock("sums"), depth)
    for block in ("sums_init", "sums_update", "y"):
        row, lane = only_loops(sch, block)[-2:]
        Vector(16).on(sch, lane)
        sch.unroll(row)
    mod = lowered(sch)
    flat = tirx.transform.StorageRewrite()(tirx.transform.FlattenBuffer()(mod))
    sizes = sorted(int(alloc.buffer.shape[0]) for alloc in found(flat, tirx.AllocBuffer))
    assert sizes == [14 * 16, 36 * 16, 36 * 16]
    values = RNG.integers(-9, 9, (2, 36, 16)).astype("float32")
    expected = 2 * (values + 1).sum(1)[:, None] * np.arange(1, 15, dtype="float32")[:, None]
    np.testing.assert_array_equal(result(mod, (2, 14, 16), values), expected)


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


def first_element(load: tirx.BufferLoad) -> int:
    """Return which element of a flat buffer a load begins with."""
    (index,) = load.indices
    return int(index.base if isinstance(index, tirx.Ramp) else index)


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_nest_in_vectors_has_no_conditions_left(padding: int, lanes: int) -> None:
    height = width = 5 - 2 * padding + 2
    x = te.placeholder((height, width, lanes), name="x")
    weights = te.placeholder((3, 3, lanes), name="w")
    ry, rx = te.reduce_axis((0, 3), "ry"), te.reduce_axis((0, 3), "rx")

    def product(i: tirx.Var, j: tirx.Var, lane: tirx.Var) -> tirx.Expr:
        row, column = i + ry - padding, j + rx - padding
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        scaled = x[row, column, lane] * weights[ry, rx, lane]
        return te.sum(tirx.if_then_else(inside, scaled, tirx.const(0, "float32")), [ry, rx])

    y = te.compute((5, 5, lanes), product, name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, weights, y]))
    ih, iw, lane, r, c = only_loops(sch)
    sch.reorder(r, c, ih, iw, lane)
    for loop, axis in ((ih, "mh"), (iw, "mw"), (r, "ry"), (c, "rx")):
        Named(axis).on(sch, loop)
    sch.decompose_reduction(sch.get_sblock("y"), r)
    Vector(16).on(sch, lane)
    ByInput(1, 1, 1, 1).on(sch, r)
    mod = lowered(sch)
    updates = [s for s in found(mod, tirx.Bind) if isinstance(s.value, tirx.Add)]
    inside = sum(padding <= i + r < padding + height for i, r in np.ndindex(5, 3))
    assert len(updates) == inside**2
    # Elements behind the image's first that is read, row after row.
    pixels = [first_element(s.value.b.a) for s in updates]
    assert pixels == sorted(pixels)
    assert set(pixels) == {lanes * i for i in range(height * width)}
    image = RNG.standard_normal((height, width, lanes), dtype=np.float32)
    w = RNG.standard_normal((3, 3, lanes), dtype=np.float32)
    padded = np.pad(image.astype(float), ((padding,) * 2, (padding,) * 2, (0, 0)))
    expected = np.zeros((5, 5, lanes))
    for r_, c_ in np.ndindex(3, 3):
        expected += padded[r_ : r_ + 5, c_ : c_ + 5] * w[r_, c_]
    np.testing.assert_allclose(result(mod, (5, 5, lanes), image, w), expected, rtol=1e-4, atol=1e-5)
