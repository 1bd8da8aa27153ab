"""Attention beside its definition: sizes, masks, heads, large scores, blocks of all kinds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from attention_harness import assert_right, built, by_heads, computed, expected, seen
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from tvm_blislike.cost_models.attention.blocks import Blocks, blocks_of, workspace_bytes
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.model.attention import Attention, Mask
from tvm_blislike.model.views import View

NATIVE = native_core()
LOWEST = float(np.finfo("float32").min)


def attention(
    heads: int, rows: int, columns: int, depth: int, width: int, batch: int = 1, **more: object
) -> tuple[Attention, list[np.ndarray], tuple[int, ...]]:
    """Return an attention of tensors (batch, rows, heads * elements), its operands, and a shape."""
    sizes = ((rows, depth), (columns, depth), (columns, width), (rows, width))
    views = [by_heads(batch, length, heads, size) for length, size in sizes]
    rng = np.random.default_rng(rows)
    shapes = [(batch, length, heads * size) for length, size in sizes]
    arrays = [rng.standard_normal(shape).astype("float32") for shape in shapes[:3]]
    return Attention(*views, scale=depth**-0.5, **more), arrays, shapes[3]


sizes = st.integers(1, 70)


@given(st.integers(1, 3), sizes, sizes, st.integers(2, 48), st.integers(1, 48), st.booleans())
@examples(5)
def test_any_sizes(heads: int, rows: int, columns: int, depth: int, width: int, two: bool) -> None:
    assert_right(*attention(heads, rows, columns, depth, width, 1 + two), NATIVE, threads=1 + two)


@pytest.mark.parametrize("depth", [16, 80, 256])
def test_sizes_of_heads(depth: int) -> None:
    assert_right(*attention(2, 37, 131, depth, depth), NATIVE)


@given(st.data())
@examples(4)
def test_any_blocks(data: st.DataObject) -> None:
    kernel = data.draw(st.sampled_from(kernels_for(NATIVE)))
    tiles, strips, panels = (data.draw(st.integers(1, 3)) for _ in range(3))
    blocks = Blocks(kernel, strips * tiles * kernel.mr, tiles, panels * kernel.nr)
    assert_right(*attention(2, 23, 77, 18, 21), NATIVE, blocks=blocks)


def masked(mask: np.ndarray, replaces: bool, guarded: bool) -> None:
    case, arrays, result = attention(2, 13, 37, 16, 16)
    view = View.of(mask.shape).broadcast((2, 13, 37))
    case = replace(case, masks=(Mask(view, replaces),), guarded=guarded)
    assert_right(case, [*arrays, mask], result, NATIVE)


@pytest.mark.parametrize("shape", [(1, 37), (13, 37), (13, 1), (2, 13, 37), (2, 1, 37)])
@pytest.mark.parametrize("replaces", [False, True])
def test_masks_of_any_shape(shape: tuple[int, ...], replaces: bool) -> None:
    kept = np.random.default_rng(1).random(shape) < 0.6
    fill = -np.inf if replaces else -2.5
    masked(np.where(kept, 0, fill).astype("float32"), replaces, True)


@pytest.mark.parametrize("guarded", [False, True])
def test_rows_of_which_nothing_is_kept(guarded: bool) -> None:
    mask = np.zeros((13, 37), "float32")
    mask[[0, 5]] = -np.inf
    masked(mask, False, guarded)
    case, arrays, result = attention(1, 13, 37, 16, 16, guarded=guarded)
    case = replace(case, masks=(Mask(View.of((13, 37)).broadcast((1, 13, 37))),))
    found = seen(case.out, computed(case, [*arrays, mask], result, NATIVE))[0]
    assert np.isnan(found[[0, 5]]).all() if not guarded else (found[[0, 5]] == 0).all()


@pytest.mark.parametrize(("diagonal", "fill"), [(0, -math.inf), (9, LOWEST), (-3, LOWEST)])
def test_diagonals(diagonal: int, fill: float) -> None:
    case, arrays, result = attention(2, 90, 75, 16, 16)
    case = replace(case, masks=(Mask(diagonal=diagonal, fill=fill),))
    kernel = blocks_of(case, NATIVE, 1).kernel
    for blocks in (None, Blocks(kernel, 4 * kernel.mr, 2, kernel.nr)):
        assert_right(case, arrays, result, NATIVE, blocks=blocks)


def test_what_a_diagonal_leaves_out_is_not_read() -> None:
    case, arrays, result = attention(1, 64, 64, 16, 16)
    case = replace(case, masks=(Mask(),))
    kernel = blocks_of(case, NATIVE, 1).kernel
    blocks = Blocks(kernel, kernel.mr, 1, kernel.nr)
    arrays[2][:, 48:] = np.nan
    found = computed(case, arrays, result, NATIVE, blocks=blocks)
    first = 48 // kernel.mr * kernel.mr
    assert not np.isnan(found[:, : first - kernel.mr]).any()


def test_a_second_mask_keeps_what_a_finite_diagonal_masks() -> None:
    view = View.of((1, 30)).broadcast((1, 20, 30))
    masks = (Mask(fill=LOWEST), Mask(view))
    assert attention(1, 20, 30, 16, 16, masks=masks)[0].diagonal is None
    assert attention(1, 20, 30, 16, 16, masks=(Mask(), Mask(view)))[0].diagonal == 0


@pytest.mark.parametrize("size", [1e2, 1e4, 1e18])
def test_large_scores_do_not_overflow(size: float) -> None:
    case, arrays, result = attention(1, 33, 140, 16, 16)
    arrays[0] *= np.float32(size)
    found = seen(case.out, computed(case, arrays, result, NATIVE))
    wanted = expected(case, arrays)
    assert np.isfinite(found).all()
    # The last digits of scores this large decide between keys of nearly equal ones.
    scores = case.scale * seen(case.q, arrays[0]) @ seen(case.k, arrays[1]).swapaxes(1, 2)
    ranked = np.sort(scores, 2)
    clear = (ranked[..., -1] - ranked[..., -2] > 20)[0]
    assert clear.any()
    np.testing.assert_allclose(found[0, clear], wanted[0, clear], rtol=1e-5, atol=1e-5)


def test_no_number_stays_in_its_row() -> None:
    case, arrays, result = attention(1, 20, 20, 16, 16)
    arrays[0][0, 3, 5] = np.nan
    found = seen(case.out, computed(case, arrays, result, NATIVE))[0]
    assert np.isnan(found).all(1).nonzero()[0].tolist() == [3]


def test_groups_of_heads_share_keys() -> None:
    case, arrays, result = attention(6, 11, 19, 16, 16)
    shared = View.of((19, 2, 16)).permuted((1, 0, 2)).repeated(0, 3)
    case = replace(case, k=shared, v=shared)
    arrays[1:] = [array[:, :, :32].copy() for array in arrays[1:]]
    assert_right(case, arrays, result, NATIVE)


def test_operands_that_lie_across() -> None:
    case, arrays, result = attention(1, 11, 19, 16, 16)
    across = View.of((16, 19)).permuted((1, 0)).broadcast((1, 19, 16))
    case = replace(case, k=across, v=across)
    arrays[1:] = [array.reshape(16, 19) for array in arrays[1:]]
    assert_right(case, arrays, result, NATIVE)


@pytest.mark.parametrize("name", ["zen3", "zen4", "neoverse-n1", "cortex-a55"])
def test_registers_do_not_spill_to_the_heap(name: str) -> None:
    core = Core.named(name)
    case, arrays, result = attention(2, 128, 128, 64, 64)
    blocks = blocks_of(case, core, 1)
    library = built(case, [a.shape for a in arrays], result, core)
    text = library.inspect_source("asm")
    # Buffers of a task, and nothing for a block of sums.
    assert text.count("TVMBackendAllocWorkspace") <= 2 * 8
    assert "expf" not in text
    assert blocks.kernel.isa is core.isa


@pytest.mark.parametrize("name", ["zen3", "zen4", "neoverse-n1", "cortex-a55"])
@pytest.mark.parametrize("length", [49, 197, 512, 4096])
def test_blocks_stay_in_the_caches(name: str, length: int) -> None:
    core = Core.named(name)
    case, _, _ = attention(1, length, length, 64, 64)
    case = replace(case, q=case.q.repeated(0, 12))
    for threads in (1, 2):
        blocks = blocks_of(case, core, threads)
        assert workspace_bytes(case, blocks) <= core.cache(2).bytes
        assert blocks.queries % blocks.strip == blocks.keys % blocks.kernel.nr == 0
