"""Winograd along the width: forced configurations and random workloads against the reference."""

from __future__ import annotations

import pytest
from conv_checks import allocations, assert_threads_do_not_change_a_bit
from conv_harness import STEPS, lowered, primfunc
from conv_workloads import NATIVE, RUNNABLE
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from winograd_checks import PARTS, assert_right, blocking

from tvm_blislike.cost_models.conv2d_winograd.config import TILES
from tvm_blislike.cost_models.conv2d_winograd_1d.geometry import Winograd1dGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_winograd_1d.definition import IMPLEMENTATION

SAME = (1, 1, 1, 1)
LANES = NATIVE.lanes()
MOST_MACS = 5_000_000

CORNERS = {
    "3x3": Conv2dWorkload(1, 32, 23, 31, 64, 3, 3, padding=SAME),
    "5x5": Conv2dWorkload(1, 32, 17, 13, 64, 5, 5, padding=(2, 2, 2, 2)),
    "5x3": Conv2dWorkload(1, 16, 11, 13, 32, 5, 3, padding=(2, 1, 2, 1)),
    "3x5": Conv2dWorkload(1, 16, 11, 13, 32, 3, 5, padding=(1, 2, 1, 2)),
    "2x2": Conv2dWorkload(1, 16, 11, 13, 32, 2, 2, padding=(1, 0, 0, 1)),
    "no padding": Conv2dWorkload(1, 16, 7, 7, 32, 3, 3),
    "asymmetric padding": Conv2dWorkload(1, 48, 13, 17, 48, 3, 3, padding=(0, 2, 3, 1)),
    "one pixel": Conv2dWorkload(1, 64, 1, 1, 32, 3, 3, padding=SAME),
    "one output": Conv2dWorkload(1, 16, 3, 3, 32, 3, 3),
    "one column": Conv2dWorkload(1, 16, 29, 1, 32, 3, 3, padding=SAME),
    "smaller than the kernel": Conv2dWorkload(1, 16, 2, 3, 32, 5, 5, padding=(2, 2, 2, 2)),
    "outputs of padding alone": Conv2dWorkload(1, 16, 3, 4, 32, 3, 3, padding=(5, 4, 3, 6)),
    "batch of three": Conv2dWorkload(3, 16, 9, 11, 32, 3, 3, padding=SAME),
}


def forced(
    workload: Conv2dWorkload, tile: int, block: tuple[int, int], order: str = TILES
) -> Config:
    """Describe a blocking: rows and tiles per row of a block."""
    return blocking(IMPLEMENTATION.name, workload, (1, tile), block, order)


def sizes(kw: int) -> tuple[int, ...]:
    return tuple(m for m in (2, 4, 6) if m + kw - 1 <= 8)


@pytest.mark.parametrize("name", CORNERS)
def test_corners(name: str) -> None:
    workload = CORNERS[name]
    for i, tile in enumerate(sizes(workload.kw)):
        in_row = -(-workload.ow // tile)
        # By turns blocks that do not divide the rows, and such as do not divide a row.
        block = (min(3, workload.oh), in_row) if i % 2 else (1, max(1, in_row - 1))
        order = TILES if workload.ow % 2 else PARTS
        assert_right(workload, forced(workload, tile, block, order), threads=1 + i % 2)


def ring(workload: Conv2dWorkload, tile: int, rows: int, strip: int, mr: int = 0) -> Config:
    """Describe a ring: blocks of `rows` whole rows of tiles, `strip` of them to a strip."""
    in_row = -(-workload.ow // tile)
    config = forced(workload, tile, (rows, in_row))
    kernels = {k.mr: k for k in kernels_for(NATIVE) if k.nr == config.nr}
    mr = mr or max(m for m in kernels if m <= in_row)
    return config.with_fields(ring=strip, mr=mr)


def in_parts(workload: Conv2dWorkload, config: Config) -> Config:
    """Divide the output channels, too, as many parts as there are chunks."""
    return config.with_fields(oc_parts=Winograd1dGeometry(workload, config).chunks)


@pytest.mark.parametrize("name", CORNERS)
def test_corners_in_a_ring(name: str) -> None:
    """Fewer rows in a block than the kernel has, and more; strips that fit, and that reach on."""
    workload = CORNERS[name]
    for i, tile in enumerate(sizes(workload.kw)):
        rows = (1, 2, 3)[(i + len(name)) % 3]
        blocks = -(-workload.oh // rows)
        strip = blocks if i % 2 else max(1, blocks // 2 + 1)
        assert_right(workload, ring(workload, tile, rows, strip), 1 + i % 2, ("bias", "relu"))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "rows, strip, mr", [(1, 13, 3), (2, 3, 4), (5, 2, 2), (3, 5, 1), (2, 1, 5)]
)
def test_rings_of_any_size(rows: int, strip: int, mr: int, threads: int) -> None:
    """Rows of 5 tiles cut by mr; the ring longer and shorter than a block; strips of one block."""
    workload = Conv2dWorkload(2, 2 * LANES, 13, 17, 4 * LANES, 4, 3, padding=(2, 1, 1, 1))
    config = ring(workload, 4, rows, strip, mr)
    assert Winograd1dGeometry(workload, config).chunks > 1
    assert_right(workload, config, threads, ("residual",))
    assert_right(workload, in_parts(workload, config), threads, ("residual",))


def test_one_thread_and_two_give_the_same_bits() -> None:
    workload = Conv2dWorkload(1, 2 * LANES, 12, 17, 4 * LANES, 3, 3, padding=SAME)
    assert_threads_do_not_change_a_bit(workload, ring(workload, 4, 2, 3))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows, strip", [(1, 6), (2, 3), (2, 0)])
def test_workspace_is_what_the_function_allocates(rows: int, strip: int, threads: int) -> None:
    workload = Conv2dWorkload(1, LANES, 12, 17, 2 * LANES, 3, 3, padding=SAME)
    config = ring(workload, 4, rows, strip)
    body = lowered(primfunc(workload, config, ["bias"]), NATIVE, threads)["main"].body
    sizes_found = dict(allocations(body))
    assert sizes_found["transformed"] + sizes_found["products"] == (
        IMPLEMENTATION.workspace_bytes(workload, config, 1)
    )
    geo = Winograd1dGeometry(workload, config)
    # One ring for all blocks of a strip: the rows of a single block.
    assert geo.v_rows == (rows + 2) * 5


def test_rings_make_do_with_less_workspace() -> None:
    """A layer whose rows are long: what `--max-workspace` leaves."""
    workload = Conv2dWorkload(1, 64, 112, 112, 64, 3, 3, padding=SAME)
    core = Core.named("skylake-avx512")
    found = list(IMPLEMENTATION.configs(workload, core, 1))

    def fastest(most: int, in_ring: bool) -> float:
        return min(
            IMPLEMENTATION.estimate(workload, c, core, 1).seconds
            for c in found
            if IMPLEMENTATION.workspace_bytes(workload, c, 1) <= most and bool(c.ring) == in_ring
        )

    assert fastest(180_000, True) < fastest(180_000, False)


@pytest.mark.parametrize("steps", [(), tuple(STEPS)])
def test_epilogues(steps: tuple[str, ...]) -> None:
    workload = CORNERS["asymmetric padding"]
    assert_right(workload, forced(workload, 4, (2, 5)), 1, steps)


@given(st.data())
@examples(6)
def test_random_workloads_and_configurations(data: st.DataObject) -> None:
    draw = data.draw
    core = draw(st.sampled_from(RUNNABLE))
    channels = st.sampled_from([core.lanes(), 2 * core.lanes(), 3 * core.lanes()])
    kh, kw = draw(st.integers(2, 5)), draw(st.sampled_from([3, 5]))
    padding = tuple(draw(st.integers(0, 3)) for _ in range(4))
    h, w = draw(st.integers(1, 17)), draw(st.integers(1, 17))
    assume(h + padding[0] + padding[2] >= kh and w + padding[1] + padding[3] >= kw)
    n = draw(st.sampled_from([1, 1, 3]))
    workload = Conv2dWorkload(n, draw(channels), h, w, draw(channels), kh, kw, padding=padding)
    assume(workload.macs <= MOST_MACS)
    threads = draw(st.sampled_from([1, 2]))
    found = list(IMPLEMENTATION.configs(workload, core, threads))
    assume(found)
    assert_right(workload, draw(st.sampled_from(found)), threads, core=core)


def test_products_are_half_of_those_of_direct_convolution() -> None:
    workload = Conv2dWorkload(1, 64, 56, 56, 64, 3, 3, padding=SAME)
    geo = Winograd1dGeometry(workload, forced(workload, 4, (2, 14)))
    products = geo.blocks * geo.tiles * geo.points * geo.steps * workload.co
    assert 2 * products == workload.macs


def test_workspace_is_within_the_second_level_cache() -> None:
    for ci, size in ((64, 224), (256, 56), (512, 28), (512, 7)):
        workload = Conv2dWorkload(1, ci, size, size, ci, 3, 3, padding=SAME)
        core = Core.named("skylake-avx512")
        configs = list(IMPLEMENTATION.configs(workload, core, 1))
        assert configs
        assert all(
            IMPLEMENTATION.workspace_bytes(workload, c, 1) <= core.cache(2).bytes for c in configs
        )


def test_single_rows_and_columns_are_left_to_the_other_form() -> None:
    row = Conv2dWorkload(1, 16, 7, 23, 32, 1, 3, padding=(0, 1, 0, 1))
    assert "one row" in IMPLEMENTATION.applies(row, NATIVE)
