"""Winograd convolution of integers: exact to the last bit, whatever sums leave 32 bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import tvm
from conv_harness import compiled, in_layout, nchw, primfunc
from conv_workloads import NATIVE, convolutions, one_config
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from test_integers import NOTHING, OTHERS, packed_at_run_time, run

from tvm_blislike.cost_models.conv2d_winograd.candidates import sizes
from tvm_blislike.cost_models.conv2d_winograd.config import CHANNELS, FLAT, TILES, WinogradConfig
from tvm_blislike.cost_models.conv2d_winograd.integers import (
    WORDS,
    offered,
    shift_of,
    transformed,
    why_not_integers,
)
from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import Core
from tvm_blislike.model.config import Config
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.operators import operator_of
from tvm_blislike.schedules.conv2d_winograd.definition import IMPLEMENTATION, pack_weights
from tvm_blislike.schedules.conv2d_winograd.integers import POINTS, check, integral
from tvm_blislike.schedules.conv2d_winograd.programs import Matrix

CORES = [core for core in (NATIVE, *OTHERS) if offered(core, quantized_types(core))]
SAME = (1, 1, 1, 1)
# Outputs and taps of an axis that are ever used.
PAIRS = [(m, r) for r in (1, 2, 3) for m in sizes(r, "int32", range(1, 7)) if m * r > 1]
CORNERS = {
    "3x3": Conv2dWorkload(1, 32, 13, 17, 64, 3, 3, padding=SAME),
    "1x3": Conv2dWorkload(1, 16, 7, 23, 32, 1, 3, padding=(0, 1, 0, 1)),
    "3x1": Conv2dWorkload(1, 16, 23, 7, 32, 3, 1, padding=(1, 0, 1, 0)),
    "2x2": Conv2dWorkload(1, 16, 11, 13, 32, 2, 2, padding=(1, 0, 0, 1)),
    "one pixel": Conv2dWorkload(1, 64, 1, 1, 32, 3, 3, padding=SAME),
    "smaller than a tile": Conv2dWorkload(2, 32, 3, 2, 32, 3, 3, padding=SAME),
    "outputs of padding alone": Conv2dWorkload(1, 16, 3, 4, 32, 3, 3, padding=(5, 4, 3, 6)),
    "24 to 57 channels": Conv2dWorkload(1, 24, 13, 11, 57, 3, 3, padding=SAME),
    "10 to 9 channels": Conv2dWorkload(2, 10, 9, 10, 9, 3, 3, padding=(1, 0, 2, 1)),
}


def widest(core: Core, tiles: int, columns: int, width: int) -> Config:
    """The highest kernel of at most so many tiles and two vectors, or one: no vector is empty."""
    types = quantized_types(core)
    kernels = [k for k in offered(core, types) if k.mr <= tiles]
    fitting = [k for k in kernels if k.vectors == min(width, -(-columns // k.lanes))]
    kernel = max(fitting, key=lambda k: k.mr)
    panels = -(-columns // kernel.nr)
    return WinogradConfig(
        mr=kernel.mr,
        nr=kernel.nr,
        ks=kernel.ks,
        nc=panels * kernel.nr,
        data_layout="NHWC",
        out_layout="NHWC",
        prefetch=1,
    )


def variants(workload: Conv2dWorkload, core: Core) -> Iterator[Config]:
    """Tiles of each size, blocks that divide the image or not, in both orders, chunks of all."""
    w = workload
    tiles = itertools.product(*(sizes(r, "int32", (2, 3, 4)) for r in (w.kh, w.kw)))
    tiles = [(y, x) for y, x in tiles if y == x or 1 in (y, x) or (y, x) == (2, 4)]
    for number, tile in enumerate(tiles):
        order = (TILES, CHANNELS)[(number + w.ci) // 2 % 2]
        th, tw = (-(-out // m) for out, m in zip((w.oh, w.ow), tile, strict=True))
        rows, columns = ((th, tw), (1, tw), (min(2, th), -(-tw // 2)))[number % 3]
        config = widest(core, rows * columns, w.co, 1 + number % 2).with_fields(
            tile_h=tile[0], tile_w=tile[1], mc=rows * columns, oh_block=rows, loop_order=order
        )
        if w.co % config.nr == 0 and number % 2:
            parts = 1 if order == CHANNELS else w.co // config.nr
            config = config.with_fields(nc=config.nr, oc_parts=parts)
        yield config.with_fields(transform=FLAT) if max(tile) == 3 else config


# Each corner on one of the cores, the first on all.
PLACES = [
    pytest.param(name, core, id=f"{name}-{core.name}")
    for number, name in enumerate(CORNERS)
    for core in (CORES[number % max(1, len(CORES)) :][:1] if number else CORES)
]


@pytest.mark.parametrize("name, core", PLACES)
def test_corners_are_exact(name: str, core: Core) -> None:
    workload = replace(CORNERS[name], types=quantized_types(core))
    assert IMPLEMENTATION.applies(workload, core) == ""
    for number, config in enumerate(variants(workload, core)):
        threads, requantize = 1 + number // 2 % 2, number % 3 == 0
        np.testing.assert_array_equal(*run(workload, config, threads, requantize, core))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Conv2dWorkload, Config, int, bool, Core]:
    core, threads = draw(st.sampled_from(CORES)), draw(st.sampled_from([1, 2]))
    channels = st.one_of(st.sampled_from([8, 16, 24, 64]), st.integers(8, 60))
    drawn = draw(convolutions(channels=channels, stride=1, dilation=1))
    workload = replace(drawn, types=quantized_types(core), kh=1 + drawn.kh % 3, kw=1 + drawn.kw % 3)
    assume(min(workload.oh, workload.ow) > 0)
    fields = ("loop_order", "tile_h", "nr", "mc", "oh_block", "nc")
    config = one_config(draw, IMPLEMENTATION, workload, core, threads, fields)
    return workload, config, threads, draw(st.booleans()), core


@pytest.mark.skipif(not CORES, reason="this machine runs no products of 16 bits")
@examples(16)
@given(cases())
def test_random_convolutions_are_exact(case) -> None:
    np.testing.assert_array_equal(*run(*case))


def most_channels(kh: int, kw: int) -> int:
    """The largest number of input channels that is accepted."""
    accepted = [
        ci
        for ci in range(2, 1 << 15, 2)
        if not why_not_integers(Conv2dWorkload(1, ci, 9, 9, 16, kh, kw, types=WORDS))
    ]
    assert accepted == [*range(2, accepted[-1] + 1, 2)]
    return accepted[-1]


@pytest.mark.parametrize("taps", [(1, 2), (3, 1), (2, 2), (3, 3)], ids=str)
def test_what_applies_is_proven(taps: tuple[int, int]) -> None:
    """Up to the most channels, with tiles of all sizes; with a few more the proof fails."""
    kh, kw = taps
    most = most_channels(kh, kw)
    both = list(itertools.product(*(sizes(r, "int32", range(2, 7)) for r in taps)))
    for ci, (tile_h, tile_w) in itertools.product((2, most), both):
        workload = Conv2dWorkload(1, ci, 9, 9, 16, kh, kw, types=WORDS)
        check(workload, integral(tile_h, kh), integral(tile_w, kw))
    tile_h, tile_w = both[-1]
    with pytest.raises(ValueError, match="smaller tiles or another algorithm"):
        workload = Conv2dWorkload(1, 4 * most, 9, 9, 16, kh, kw, types=WORDS)
        check(workload, integral(tile_h, kh), integral(tile_w, kw))


def test_what_does_not_fit_is_refused() -> None:
    five = Conv2dWorkload(1, 16, 9, 9, 16, 5, 5, types=WORDS)
    assert "5x5" in why_not_integers(five)
    with pytest.raises(ValueError, match="16 bits"):
        check(five, integral(2, 5), integral(2, 5))
    with pytest.raises(ValueError, match=r"no F\(6, 3\)"):
        integral(6, 3)
    assert "pairs" in why_not_integers(replace(five, ci=15, kh=3, kw=3))
    unsigned = replace(five, kh=3, kw=3, types=Types("uint8", "uint8", "int32", "int32"))
    assert IMPLEMENTATION.applies(unsigned, Core.named("zen4")) != ""
    with pytest.raises(ValueError, match="weights"):
        check(unsigned, integral(4, 3), integral(4, 3))


@pytest.mark.parametrize("m, r", PAIRS)
def test_matrices_are_integers_and_lose_one_bit_at_most(m: int, r: int) -> None:
    t = integral(m, r)
    assert all(
        value.denominator == 1 for matrix in (t.at, t.g, t.bt) for row in matrix for value in row
    )
    assert shift_of(t.scale) <= 1
    assert t.n in POINTS or 1 in (m, r)


def extremes(workload: Conv2dWorkload) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Data and weights of the ends of their ranges."""
    data, weights = operator_of(workload).random(workload)
    signs = np.where(np.arange(len(weights)) % 2, 127, -128)[:, None, None, None]
    full = np.full_like(data, 255)
    return {
        "positive": (full, np.full_like(weights, 127)),
        "negative": (full, np.full_like(weights, -128)),
        "by turns": (full, signs + 0 * weights),
        "random": (np.where(data > 127, 255, 0), np.where(weights > 0, 127, -128)),
    }


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
@pytest.mark.parametrize("tile", [2, 3, 4])
def test_extremes_of_the_most_channels(tile: int, core: Core) -> None:
    """Sums of products leave 32 bits, results nearly fill what is left of them."""
    types, most = quantized_types(core), most_channels(3, 3)
    workload = Conv2dWorkload(1, most, 5, 6, 16, 3, 3, padding=SAME, types=types)
    computed = kernel(workload, tile, core)
    for name, operands in extremes(workload).items():
        found, expected = computed(*operands)
        np.testing.assert_array_equal(found, expected, name)
        if name == "negative":
            assert expected.min() < -0.99 * (1 << 29)


def steepest(matrix: Matrix, low: int, high: int) -> list[np.ndarray]:
    """Return the patches for which one element of M d M^T each is largest, or smallest."""
    rows = np.array(matrix, float)
    factors = [np.outer(a, b) for a, b in itertools.product(rows, rows)]
    return [np.where(f > 0, *ends) for f in factors for ends in ((high, low), (low, high))]


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
@pytest.mark.parametrize("tile", [2, 3, 4])
def test_extremes_of_each_transformed_value(tile: int, core: Core) -> None:
    """Data for which one point of a tile after the other is largest, and weights alike."""
    t = integral(tile, 3)
    patches, kernels = steepest(t.bt, 0, 255), steepest(t.g, -128, 127)
    kernels += kernels[: -len(kernels) % 16]
    types, size = quantized_types(core), (16, t.n, t.n, len(kernels))
    workload = Conv2dWorkload(len(patches), *size, 3, 3, types=types)
    data, weights = (np.repeat(np.array(x)[:, None], 16, axis=1) for x in (patches, kernels))
    np.testing.assert_array_equal(*kernel(workload, tile, core)(data, weights))


def kernel(
    workload: Conv2dWorkload, tile: int, core: Core
) -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return what computes the compiled result of operands, and what is right, NCHW."""
    w = workload
    tiles_h, tiles_w = -(-w.oh // tile), -(-w.ow // tile)
    config = widest(core, tiles_h * tiles_w, w.co, 1).with_fields(
        tile_h=tile, tile_w=tile, mc=tiles_h * tiles_w, oh_block=tiles_h
    )
    library = compiled(primfunc(w, config), core)

    def computed(*operands: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        data, weights = operands[0].astype(w.types.a), operands[1].astype(w.types.b)
        out = np.full((w.n, w.oh, w.ow, w.co), NOTHING, "int32")
        arrays = [in_layout(data, "NHWC"), pack_weights(w, config, weights), out]
        tensors = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in arrays]
        library["main"](*tensors)
        found = nchw(tensors[-1].numpy(), "NHWC", w.co)
        return found, operator_of(w).reference(w, data, weights)

    return computed


@pytest.mark.parametrize("name", CORNERS)
def test_integer_weights_are_packed_alike_at_run_time(name: str) -> None:
    core = Core.named("zen4" if len(name) % 2 else "x86-64-v3")
    workload = replace(CORNERS[name], types=quantized_types(core))
    for config in variants(workload, core):
        _, weights = operator_of(workload).random(workload)
        packed = pack_weights(workload, config, weights)
        assert packed.dtype == transformed(workload.types).b
        np.testing.assert_array_equal(packed_at_run_time(workload, config, weights), packed)


def test_sums_of_integers_may_wrap() -> None:
    """TVM's additions of vectors do not claim that they stay within 32 bits."""
    core = Core.named("x86-64-v3")
    workload = replace(CORNERS["3x3"], types=WORDS)
    config = next(c for c in variants(workload, core) if c.tile_h == 4)
    module = compiled(primfunc(workload, config), core).mod
    text = module.inspect_source("ll") or "".join(m.inspect_source("ll") for m in module.imports)
    sums = [line for line in text.splitlines() if " add " in line and "x i32>" in line]
    assert sums
    assert not [line for line in sums if "nsw" in line or "nuw" in line]
