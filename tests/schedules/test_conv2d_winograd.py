"""Winograd convolution against the slow reference: forced configurations, and random ones."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import tvm_ffi
from conv_checks import (
    EPILOGUES,
    allocations,
    assert_result_may_be_broadcast,
    assert_threads_do_not_change_a_bit,
    epilogues,
    packed_at_run_time,
)
from conv_harness import arrays, lowered, primfunc
from conv_workloads import NATIVE, RUNNABLE, convolutions, one_config
from effort import every_second, examples
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx
from winograd_checks import PARTS, assert_right, blocking, kernel_for

from tvm_blislike.cost_models.conv2d_winograd import candidates
from tvm_blislike.cost_models.conv2d_winograd.config import CHANNELS, FLAT, TILES
from tvm_blislike.cost_models.conv2d_winograd.geometry import WinogradGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_winograd.definition import IMPLEMENTATION, pack_weights
from tvm_blislike.schedules.conv2d_winograd.programs import MOST_FLAT_INPUTS

LANES = NATIVE.lanes()
SAME = (1, 1, 1, 1)
ORDERS = (TILES, CHANNELS)
DIVISIONS = (*ORDERS, PARTS)
# Outputs of a tile along an axis, by the taps of a phase of the image.
TILE_SIZES = {1: (1,), 2: (2, 4, 6), 3: (2, 4, 6), 4: (2, 4), 5: (2, 4), 6: (2,), 7: (2,)}
forced = partial(blocking, IMPLEMENTATION.name)


def tiles_of(workload: Conv2dWorkload) -> list[tuple[int, int]]:
    """All tile sizes that the kernel allows."""
    taps = candidates.taps_of_phases(workload)
    sizes = itertools.product(*(TILE_SIZES[each] for each in taps))
    return [(h, w) for h, w in sizes if h == w or 1 in taps]


CORNERS = {
    "F(2,3), F(4,3), F(6,3)": Conv2dWorkload(1, 32, 23, 31, 64, 3, 3, padding=SAME),
    "F(2,5), F(4,5)": Conv2dWorkload(1, 32, 17, 13, 64, 5, 5, padding=(2, 2, 2, 2)),
    "1x3": Conv2dWorkload(1, 16, 7, 23, 32, 1, 3, padding=(0, 1, 0, 1)),
    "3x1": Conv2dWorkload(1, 16, 23, 7, 32, 3, 1, padding=(1, 0, 1, 0)),
    "1x7": Conv2dWorkload(1, 16, 17, 17, 32, 1, 7, padding=(0, 3, 0, 3)),
    "7x1": Conv2dWorkload(1, 16, 17, 17, 32, 7, 1, padding=(3, 0, 3, 0)),
    "1x5": Conv2dWorkload(1, 16, 13, 13, 32, 1, 5, padding=(0, 2, 0, 2)),
    "5x1": Conv2dWorkload(1, 16, 13, 13, 32, 5, 1, padding=(2, 0, 2, 0)),
    "2x2": Conv2dWorkload(1, 16, 11, 13, 32, 2, 2, padding=(1, 0, 0, 1)),
    "3x5": Conv2dWorkload(1, 16, 11, 13, 32, 3, 5, padding=(1, 2, 1, 2)),
    "7 x 7, no padding": Conv2dWorkload(1, 16, 7, 7, 32, 3, 3),
    "13 x 17": Conv2dWorkload(1, 48, 13, 17, 48, 3, 3, padding=SAME),
    "23 x 31": Conv2dWorkload(1, 16, 23, 31, 16, 3, 3, padding=SAME),
    "one pixel": Conv2dWorkload(1, 64, 1, 1, 32, 3, 3, padding=SAME),
    "one output": Conv2dWorkload(1, 16, 3, 3, 32, 3, 3),
    "one output of 1x3": Conv2dWorkload(1, 16, 1, 3, 32, 1, 3),
    "one row": Conv2dWorkload(1, 16, 1, 29, 32, 1, 3, padding=(0, 1, 0, 1)),
    "one column": Conv2dWorkload(1, 16, 29, 1, 32, 3, 3, padding=SAME),
    "smaller than a tile": Conv2dWorkload(1, 32, 3, 2, 32, 3, 3, padding=SAME),
    "smaller than the kernel": Conv2dWorkload(1, 16, 2, 3, 32, 5, 5, padding=(2, 2, 2, 2)),
    "outputs of padding alone": Conv2dWorkload(1, 16, 3, 4, 32, 3, 3, padding=(5, 4, 3, 6)),
    "batch of three": Conv2dWorkload(3, 16, 9, 11, 32, 3, 3, padding=SAME),
    "batch of three pixels": Conv2dWorkload(3, 16, 1, 1, 32, 3, 3, padding=SAME),
    "24 to 57 channels": Conv2dWorkload(1, 24, 13, 11, 57, 3, 3, padding=SAME),
    "24 to 64 channels": Conv2dWorkload(1, 24, 14, 14, 64, 5, 5, padding=(2, 2, 2, 2)),
    "64 to 9 channels": Conv2dWorkload(2, 64, 9, 10, 9, 3, 3, padding=(1, 0, 2, 1)),
    "9 to 8 channels": Conv2dWorkload(1, 9, 7, 12, 8, 1, 3, padding=(0, 1, 0, 1)),
    "whole tiles": Conv2dWorkload(2, 16, 24, 12, 32, 3, 3, padding=SAME),
    "4 groups": Conv2dWorkload(1, 128, 14, 13, 256, 3, 3, padding=SAME, groups=4),
    "3 groups of 24": Conv2dWorkload(2, 72, 9, 11, 96, 3, 3, padding=SAME, groups=3),
    "5 groups of 17 to 16": Conv2dWorkload(1, 85, 7, 12, 80, 5, 5, padding=(2, 2, 2, 2), groups=5),
    "6 groups of 24 to 24": Conv2dWorkload(1, 144, 9, 11, 144, 3, 3, padding=SAME, groups=6),
    "4 groups of 20 to 56": Conv2dWorkload(1, 80, 9, 9, 224, 3, 3, groups=4),
    "2 groups of 33 to 24, stride 2": Conv2dWorkload(1, 66, 9, 9, 48, 3, 3, (2, 2), groups=2),
    "2 groups, 1x3": Conv2dWorkload(1, 32, 9, 23, 64, 1, 3, padding=(0, 1, 0, 1), groups=2),
    "2 groups, stride 2": Conv2dWorkload(1, 64, 13, 17, 64, 3, 3, (2, 2), SAME, groups=2),
    "stride 2": Conv2dWorkload(1, 32, 23, 31, 64, 3, 3, (2, 2), SAME),
    "stride 2, even, padded behind": Conv2dWorkload(2, 16, 16, 24, 32, 3, 3, (2, 2), (0, 0, 1, 1)),
    "stride 2 down": Conv2dWorkload(1, 16, 13, 17, 32, 3, 3, (2, 1), SAME),
    "stride 2 across": Conv2dWorkload(1, 16, 13, 17, 32, 3, 5, (1, 2), (1, 2, 1, 2)),
    "stride 2, 3x1": Conv2dWorkload(1, 16, 23, 9, 32, 3, 1, (2, 1), (1, 0, 1, 0)),
    "stride 2, 1x3": Conv2dWorkload(1, 16, 9, 23, 32, 1, 3, (2, 2), (0, 1, 0, 1)),
    "stride 2, 2x3": Conv2dWorkload(1, 16, 9, 23, 32, 2, 3, (2, 2), (0, 1, 0, 1)),
    "stride 2, 4x4": Conv2dWorkload(1, 16, 14, 18, 32, 4, 4, (2, 2), SAME),
    "stride 2, 5x5": Conv2dWorkload(1, 16, 17, 13, 32, 5, 5, (2, 2), (2, 2, 2, 2)),
    "stride 2, 7x7": Conv2dWorkload(1, 16, 17, 15, 32, 7, 7, (2, 2), (3, 3, 3, 3)),
    "stride 2, 24 to 57 channels": Conv2dWorkload(1, 24, 13, 11, 57, 3, 3, (2, 2), SAME),
    "stride 2, one pixel": Conv2dWorkload(3, 64, 1, 1, 32, 3, 3, (2, 2), SAME),
    "stride 2, one output": Conv2dWorkload(1, 16, 3, 3, 32, 3, 3, (2, 2)),
    "stride 2, padding alone": Conv2dWorkload(1, 16, 3, 4, 32, 3, 3, (2, 2), (5, 4, 3, 6)),
}


def variants(workload: Conv2dWorkload) -> Iterator[tuple[Config, int]]:
    """A config and a number of threads for each tile size and order; block and chunk vary."""
    for number, (tile, order) in enumerate(itertools.product(tiles_of(workload), ORDERS)):
        h, w = -(-workload.oh // tile[0]), -(-workload.ow // tile[1])
        blocks = [(h, w), (1, w), (min(2, h), w), (1, -(-w // 2)), (min(3, h), min(2, w))]
        block = blocks[(number + w) % len(blocks)]
        panels = -(-workload.co // kernel_for(workload, block).nr)
        # Threads change with every second variant, so that both orders meet both numbers.
        chunk = panels if number % 3 == 0 else 1
        order = PARTS if order == TILES and (number + w) % 4 else order
        yield forced(workload, tile, block, order, chunk), 1 + (number + number // 2) % 2


@pytest.mark.parametrize("name", CORNERS)
def test_corners(name: str) -> None:
    workload, place = CORNERS[name], list(CORNERS).index(name)
    found = list(variants(workload))
    # An order for each tile size, which the next tile size and the next corner have not.
    pairs = [found[i : i + len(ORDERS)] for i in range(0, len(found), len(ORDERS))]
    for number, pair in every_second(list(enumerate(pairs)), place % len(pairs)):
        for config, threads in every_second(pair, (place + number) // 2):
            assert_right(workload, config, threads, ("bias", "relu"))


@pytest.mark.parametrize("name", every_second(list(CORNERS), 0))
def test_corners_transformed_in_one_pass(name: str) -> None:
    workload = CORNERS[name]
    # Programs of 64 points take seconds to compile: once is enough (`test_every_flat_tile_size`).
    small = [
        (config, threads)
        for config, threads in variants(workload)
        if max(config.tile_h, config.tile_w) <= 4
        and WinogradGeometry(workload, config).multiplications <= MOST_FLAT_INPUTS
    ]
    if not small:
        pytest.skip("no tile of so few inputs")
    config, threads = small[len(name) % len(small)]
    assert_right(workload, config.with_fields(transform=FLAT), threads, ("bias", "relu"))


@pytest.mark.parametrize("core", RUNNABLE, ids=lambda core: core.isa.name)
@pytest.mark.parametrize("tile", [(2, 2), (4, 4), (6, 6)], ids=str)
def test_every_flat_tile_size(tile: tuple[int, int], core: Core) -> None:
    lanes = core.lanes()
    workload = Conv2dWorkload(1, lanes, 10, 11, 3 * lanes, 3, 3, padding=(1, 0, 2, 1))
    config = forced(workload, tile, (1, 2), ORDERS[tile[0] // 2 % 2], core=core)
    assert_right(workload, config.with_fields(transform=FLAT), 2, ("residual", "clip"), core)


BEFORE_AND_BEHIND = list(itertools.product((0, 1, 3), repeat=2))


@pytest.mark.parametrize("vertical", BEFORE_AND_BEHIND)
def test_every_padding(vertical: tuple[int, int]) -> None:
    """None, less and more than what the kernel needs, different on all four sides."""
    for number, horizontal in enumerate(BEFORE_AND_BEHIND):
        padding = (vertical[0], horizontal[0], vertical[1], horizontal[1])
        stride = (1 + number % 3 // 2, 1 + number % 2)
        workload = Conv2dWorkload(1, LANES, 7, 6, LANES, 3, 3, stride, padding)
        tile = (2, 2) if number % 4 else (4, 4)
        h, w = -(-workload.oh // tile[0]), -(-workload.ow // tile[1])
        assert_right(workload, forced(workload, tile, (min(2, h), w), ORDERS[number % 2]))


# 9 x 13 outputs: 5 x 7 tiles of 2 x 2, the last row and the last column cut.
BLOCKED = Conv2dWorkload(1, 2 * LANES, 9, 13, 4 * LANES, 3, 3, padding=SAME)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("order", DIVISIONS)
@pytest.mark.parametrize(
    "block", [(1, 7), (2, 7), (3, 7), (5, 7), (2, 3), (1, 4), (1, 1), (4, 5), (6, 8)], ids=str
)
def test_blocks_that_divide_the_image_or_not(
    block: tuple[int, int], order: str, threads: int
) -> None:
    """Tiles beyond the image below, at the right, and in a block larger than the image."""
    chunk = 1 + (block[1] > 4)
    assert_right(BLOCKED, forced(BLOCKED, (2, 2), block, order, chunk), threads, ("residual",))


@pytest.mark.parametrize("order", DIVISIONS)
@pytest.mark.parametrize("columns", sorted({k.nr for k in kernels_for(NATIVE)}))
def test_kernels_of_every_width(columns: int, order: str) -> None:
    """The lowest, a middle and the highest; whole blocks of mr tiles, and cut ones."""
    heights = sorted({k.mr for k in kernels_for(NATIVE) if k.nr == columns})
    kernels = {k.mr: k for k in kernels_for(NATIVE) if k.nr == columns}
    for mr in dict.fromkeys((heights[0], heights[len(heights) // 2], heights[-1])):
        for tiles, chunk in ((mr, 1), (mr + 1, 2), (2 * mr + mr // 2, 1), (max(1, mr - 1), 2)):
            workload = Conv2dWorkload(1, LANES, 1, 2 * tiles - 1, 2 * columns, 1, 3, padding=SAME)
            config = forced(workload, (1, 2), (1, tiles), order, chunk, kernels[mr])
            assert_right(workload, config, 1 + tiles % 2)


@pytest.mark.parametrize("core", RUNNABLE, ids=lambda core: core.isa.name)
@pytest.mark.parametrize("order", DIVISIONS)
def test_vectors_of_every_width(order: str, core: Core) -> None:
    lanes = core.lanes()
    workload = Conv2dWorkload(1, lanes, 10, 11, 3 * lanes, 3, 3, padding=(1, 0, 2, 1))
    for tile in tiles_of(workload):
        config = forced(workload, tile, (1, 2), order, core=core)
        assert_right(workload, config, 2, ("bias", "clip"), core)


@pytest.mark.parametrize("order", DIVISIONS)
@pytest.mark.parametrize("steps", EPILOGUES, ids="+".join)
def test_epilogues_in_any_order(steps: list[str], order: str) -> None:
    workload = Conv2dWorkload(2, LANES, 9, 11, 2 * LANES, 3, 3, padding=SAME)
    assert_right(workload, forced(workload, (4, 4), (2, 3), order), 2, steps)


@pytest.mark.parametrize("order", DIVISIONS)
def test_result_broadcast_by_its_reader(order: str) -> None:
    workload = Conv2dWorkload(2, 32, 1, 1, 3 * LANES, 3, 3, padding=SAME)
    assert_result_may_be_broadcast(workload, forced(workload, (2, 2), (1, 1), order))


@pytest.mark.parametrize("order", DIVISIONS)
def test_one_thread_and_two_give_the_same_bits(order: str) -> None:
    workload = Conv2dWorkload(1, 32, 13, 17, 4 * LANES, 3, 3, padding=SAME)
    assert_threads_do_not_change_a_bit(workload, forced(workload, (4, 4), (1, 5), order))


ODD_CHANNELS = [(24, 57), (24, 4 * LANES), (2 * LANES, 9), (57, 24), (8, 8), (17, 33)]


@pytest.mark.parametrize("core", RUNNABLE, ids=lambda core: core.isa.name)
@pytest.mark.parametrize("ci, co", ODD_CHANNELS)
def test_channels_that_fill_no_vectors(ci: int, co: int, core: Core) -> None:
    """Of all widths of kernels: panels with empty lanes, and vectors with."""
    workload = Conv2dWorkload(1, ci, 9, 13, co, 3, 3, padding=(1, 0, 2, 1))
    for number, columns in enumerate(sorted({k.nr for k in kernels_for(core)})):
        kernel = next(k for k in kernels_for(core) if k.nr == columns and k.mr <= 3)
        if -co % columns < (core.lanes() if co % core.lanes() else 1):
            config = forced(workload, (2, 2), (2, 3), kernel=kernel, core=core)
            steps = EPILOGUES[number % len(EPILOGUES)]
            assert_right(workload, config, 1 + number % 2, steps, core)


def test_workspace_of_channels_that_fill_no_vectors() -> None:
    workload = Conv2dWorkload(1, 24, 9, 13, 57, 3, 3, padding=SAME)
    config = forced(workload, (2, 2), (2, 3))
    found = dict(allocations(lowered(primfunc(workload, config, ["bias"]), NATIVE)["main"].body))
    size = found["transformed"] + found["products"]
    assert size == IMPLEMENTATION.workspace_bytes(workload, config, 1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("order", DIVISIONS)
@pytest.mark.parametrize(
    "tile, block, transform, stride",
    [
        *(((2, 2), (3, 7), "", 1), ((2, 2), (3, 7), FLAT, 1), ((4, 4), (1, 2), "", 1)),
        *(((6, 6), (2, 2), "", 1), ((2, 2), (1, 4), "", 2), ((4, 4), (1, 1), "", 2)),
    ],
)
def test_workspace_is_what_the_function_allocates(
    tile: tuple[int, int],
    block: tuple[int, int],
    transform: str,
    stride: int,
    order: str,
    threads: int,
) -> None:
    # As many chunks and blocks as threads, at least.
    workload = dataclasses.replace(BLOCKED, stride=(stride, stride))
    config = forced(workload, tile, block, order).with_fields(transform=transform)
    geo = WinogradGeometry(workload, config)
    body = lowered(primfunc(workload, config, ["bias", "relu"]), NATIVE, threads)["main"].body
    parallel: list[tirx.For] = []
    tvm_ffi.structural_walk(body, [(tirx.For, parallel.append)])
    parallel = [loop for loop in parallel if loop.kind == tirx.ForKind.PARALLEL]
    # Every thread has its own copy of what is allocated inside a parallel loop.
    own = [each for loop in parallel for each in allocations(loop)]
    total = allocations(body) + (threads - 1) * own
    matrices = [size for name, size in total if name in ("transformed", "products")]
    assert sum(matrices) == IMPLEMENTATION.workspace_bytes(workload, config, threads)
    # The rest is one patch, half transformed, and registers.
    scratch = {name: size for name, size in total if name in ("patch_rows", "tile_columns")}
    assert max(scratch.values()) <= 4 * geo.multiplications * geo.lanes
    others = {name for name, _ in total} - {"transformed", "products", *scratch}
    assert max(size for name, size in total if name in others) <= 4 * config.mr * config.nr


FIELDS = ("loop_order", "oc_parts", "tile_h", "tile_w", "nr", "mc", "oh_block", "mr", "nc")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Core, Conv2dWorkload, Config, int, list[str]]:
    core, threads = draw(st.sampled_from(RUNNABLE)), draw(st.sampled_from([1, 2]))
    whole = st.sampled_from([core.lanes() * count for count in range(1, 5)])
    channels = st.one_of(whole, st.integers(8, 60))
    workload = draw(convolutions(channels=channels, groups=(1, 1, 2, 4), stride=2, dilation=1))
    config = one_config(draw, IMPLEMENTATION, workload, core, threads, FIELDS)
    return core, workload, config, threads, draw(epilogues(3))


@examples(60)
@given(cases())
def test_random_workloads_and_configs(case) -> None:
    core, workload, config, threads, steps = case
    assert_right(workload, config, threads, steps, core)


@pytest.mark.parametrize(
    "name",
    [
        *("F(2,3), F(4,3), F(6,3)", "F(2,5), F(4,5)", "1x7", "3x1", "3x5", "24 to 57 channels"),
        *("stride 2", "stride 2 across", "stride 2, 7x7"),
        *("4 groups", "6 groups of 24 to 24", "2 groups of 33 to 24, stride 2"),
    ],
)
def test_weights_packed_at_run_time_are_those_packed_before(name: str) -> None:
    """But for rounding: at compile time the transform is computed in double precision."""
    workload = CORNERS[name]
    for tile in tiles_of(workload):
        config = forced(workload, tile, (1, 1))
        weights = arrays(workload)[1]
        found = packed_at_run_time(IMPLEMENTATION, workload, config, weights)
        wanted = pack_weights(workload, config, weights)
        np.testing.assert_allclose(found, wanted, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_panels_hold_the_transformed_kernel_of_their_channels(chunk: int) -> None:
    workload = Conv2dWorkload(1, LANES, 9, 9, 4 * LANES, 3, 3, padding=SAME)
    kernel = next(k for k in kernels_for(NATIVE) if k.nr == LANES)
    config = forced(workload, (2, 2), (1, 1), chunk=chunk, kernel=kernel)
    packed = pack_weights(workload, config, weights := arrays(workload)[1])
    assert packed.shape == WinogradGeometry(workload, config).packed_shape
    # G of F(2, 3) for the points 0, 1, -1 and infinity.
    g = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    for co, ci in ((0, 0), (LANES - 1, 3), (LANES, 1), (4 * LANES - 1, LANES - 1)):
        panel, column = divmod(co, LANES)
        found = packed[panel // chunk, :, :, panel % chunk, ci, column]
        wanted = g @ weights[co, ci].astype("float64") @ g.T
        # Rows and columns of U may change their sign together with those of V.
        np.testing.assert_allclose(np.abs(found), np.abs(wanted), atol=1e-6)
