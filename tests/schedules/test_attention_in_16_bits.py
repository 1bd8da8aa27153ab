"""Attention whose products round their factors to bfloat16, beside its definition on such."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import tvm
from attention_harness import assert_right, built, compiled_kernel, computed, expected, seen
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from test_attention import attention
from tvm import tirx

from tvm_blislike.cost_models.attention.blocks import (
    Blocks,
    able_kernels,
    blocks_of,
    workspace_bytes,
)
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.attention import Attention, Mask
from tvm_blislike.model.views import View
from tvm_blislike.passes.lengths.samples import data_of

NATIVE, ZEN4 = native_core(), Core.named("zen4")
Case = tuple[Attention, list[np.ndarray], tuple[int, ...]]


def narrow(*sizes: int, **more: object) -> Case:
    case, arrays, result = attention(*sizes, **more)
    return replace(case, factors="bfloat16"), arrays, result


RUNS = pytest.mark.skipif(
    not able_kernels(narrow(1, 2, 2, 2, 2)[0], NATIVE), reason="runs products of bfloat16"
)
sizes = st.integers(1, 70)


@RUNS
@given(st.integers(1, 3), sizes, sizes, st.integers(1, 70), st.integers(1, 70), st.booleans())
@examples(6)
def test_any_sizes(heads: int, rows: int, columns: int, depth: int, width: int, two: bool) -> None:
    assert_right(*narrow(heads, rows, columns, depth, width, 1 + two), NATIVE, threads=1 + two)


@RUNS
@given(st.data())
@examples(6)
def test_any_blocks(data: st.DataObject) -> None:
    case, arrays, result = narrow(2, 23, data.draw(st.sampled_from((77, 78))), 33, 21)
    kernel = data.draw(st.sampled_from(able_kernels(case, NATIVE)))
    tiles, strips, panels = (data.draw(st.integers(1, 3)) for _ in range(3))
    blocks = Blocks(kernel, strips * tiles * kernel.mr, tiles, panels * kernel.nr)
    assert_right(case, arrays, result, NATIVE, blocks=blocks)


@RUNS
def test_operands_that_lie_across() -> None:
    case, arrays, result = narrow(1, 11, 19, 34, 34)
    across = View.of((34, 19)).permuted((1, 0)).broadcast((1, 19, 34))
    case = replace(case, k=across, v=across)
    arrays[1:] = [array.reshape(34, 19) for array in arrays[1:]]
    assert_right(case, arrays, result, NATIVE)


@RUNS
@pytest.mark.parametrize("replaces", [False, True])
def test_masks(replaces: bool) -> None:
    case, arrays, result = narrow(2, 13, 37, 16, 16)
    kept = np.random.default_rng(1).random((13, 37)) < 0.6
    mask = np.where(kept, 0, -np.inf if replaces else -2.5).astype("float32")
    view = View.of(mask.shape).broadcast((2, 13, 37))
    case = replace(case, masks=(Mask(view, replaces),))
    assert_right(case, [*arrays, mask], result, NATIVE)


@RUNS
def test_equal_values_stay_what_they_are() -> None:
    """Weights are divided by the sum of what they were rounded to."""
    case, arrays, result = narrow(1, 33, 41, 16, 16)
    arrays[2][:] = np.float32(1.5)
    found = seen(case.out, computed(case, arrays, result, NATIVE))
    np.testing.assert_allclose(found, 1.5, rtol=1e-6)


@RUNS
def test_infinite_values_of_a_last_row_that_is_half_a_pair() -> None:
    case, arrays, result = narrow(1, 5, 7, 16, 16)
    arrays[2][0, -1, 3] = np.inf
    found = seen(case.out, computed(case, arrays, result, NATIVE))[0]
    assert (found[:, 3] == np.inf).all()
    assert np.isfinite(np.delete(found, 3, 1)).all()


@RUNS
def test_no_number_stays_in_its_row() -> None:
    case, arrays, result = narrow(1, 20, 20, 16, 16)
    arrays[0][0, 3, 5] = np.nan
    found = seen(case.out, computed(case, arrays, result, NATIVE))[0]
    assert np.isnan(found).all(1).nonzero()[0].tolist() == [3]


@RUNS
def test_any_number_of_rows() -> None:
    """One kernel for lengths that are known when it runs."""
    lengths, rows = (5, 9, 12), tirx.Var("rows", "int32")
    data = [json.loads(narrow(2, n, n, 34, 21)[0].to_json()) for n in lengths]
    open_case = Attention.from_data(data_of(data, lengths, rows))
    shapes, result = [(1, rows, 2 * 34), (1, rows, 2 * 34), (1, rows, 2 * 21)], (1, rows, 2 * 21)
    blocks = blocks_of(narrow(2, 70, 70, 34, 21)[0], NATIVE, 1)
    library = compiled_kernel(open_case, shapes, result, NATIVE, blocks)
    for length in (1, 2, 3, 15, 16, 17, 33, 63, 64, 65, 70):
        case, arrays, shape = narrow(2, length, length, 34, 21)
        out = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
        library["main"](*map(tvm.runtime.tensor, arrays), out)
        found, wanted = seen(case.out, out.numpy()), expected(case, arrays)
        assert np.linalg.norm(found - wanted) < 3e-3 * np.linalg.norm(wanted)


def test_code_of_a_core_with_the_instructions() -> None:
    case, arrays, result = narrow(2, 128, 128, 64, 64)
    blocks = blocks_of(case, ZEN4, 1)
    text = built(case, [a.shape for a in arrays], result, ZEN4).inspect_source("asm")
    products = len(re.findall(r"\bvdpbf16ps\b", text))
    kernel = blocks.kernel
    # Two products, of an unrolled loop each, and nothing of fp32 in their place.
    assert products >= 2 * kernel.mr * kernel.vectors
    assert "vcvtneps2bf16" in text or "vcvtne2ps2bf16" in text
    assert text.count("TVMBackendAllocWorkspace") <= 2 * 9
    assert "expf" not in text
    assert workspace_bytes(case, blocks) < workspace_bytes(
        replace(case, factors="float32"), replace(blocks, kernel=able_kernel_of_floats(blocks))
    )


def able_kernel_of_floats(blocks: Blocks) -> object:
    """Return a kernel of float32 with as many columns and rows."""
    found = able_kernels(attention(1, 2, 2, 2, 2)[0], ZEN4)
    kernel = blocks.kernel
    return next(k for k in found if (k.mr, k.nr) == (kernel.mr, kernel.nr))


@pytest.mark.parametrize("name", ["zen3", "cortex-a72", "neoverse-v1"])
def test_cores_without_such_products_have_no_kernel(name: str) -> None:
    assert not able_kernels(narrow(1, 2, 2, 2, 2)[0], Core.named(name))
