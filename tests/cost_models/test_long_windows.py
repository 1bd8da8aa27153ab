"""Windows of hundreds of taps and large strides: no time and no code without bound."""

from __future__ import annotations

import math
import random
import time

import pytest

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.conv2d_direct import candidates as direct
from tvm_blislike.cost_models.conv2d_direct import nests
from tvm_blislike.cost_models.conv2d_im2col import candidates
from tvm_blislike.cost_models.conv2d_im2col.geometry import Im2colGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.model.workload import Conv2dWorkload


def kept_slowly(kw: int, tile_w: int, stride: int, dilation: int) -> int:
    """Most pixels that steps on both sides of some point read, by sets."""
    reads = [{i * stride + k * dilation for i in range(tile_w)} for k in range(kw)]
    cuts = range(1, kw)
    both = [set().union(*reads[:k]) & set().union(*reads[k:]) for k in cuts]
    return max(map(len, both), default=0)


def test_pixels_kept_in_registers() -> None:
    rng = random.Random(4)
    for _ in range(500):
        window = rng.randint(1, 12), rng.randint(1, 30), rng.randint(1, 5), rng.randint(1, 4)
        workload = Conv2dWorkload(
            1, 1, 1, 400, 8, 1, window[0], (1, window[2]), (0, 0, 0, 0), (1, window[3])
        )
        kept = nests._pixels_kept(workload, window[1], workload.kw)
        assert kept == kept_slowly(*window), window


def front_end(taps: int, stride: int, filters: int) -> Conv2dWorkload:
    """One channel of sound, as spectrograms that are computed by a convolution begin."""
    return Conv2dWorkload(1, 1, 1, 44000, filters, 1, taps, (1, stride), (0, 0, 0, 0))


@pytest.mark.parametrize("taps, stride, filters", [(400, 160, 402), (256, 1, 36), (512, 256, 36)])
@pytest.mark.parametrize("name", ["zen4", "haswell", "cortex-a76"])
def test_long_windows_are_chosen_for_at_once(
    name: str, taps: int, stride: int, filters: int
) -> None:
    workload, core = front_end(taps, stride, filters), Core.named(name)
    started = time.process_time()
    choice = Strategy(core, 2, None, Constraints()).choose(workload)
    assert time.process_time() - started < 5.0
    assert choice.config is not None
    for config in candidates.configs(workload, core, 2):
        geo = Im2colGeometry(workload, config)
        assert geo.written(core.lanes()) <= 2 * candidates.MOST_WRITTEN


@pytest.mark.parametrize("taps, stride", [(400, 160), (512, 160), (475, 441), (80, 64), (64, 32)])
@pytest.mark.parametrize("name", ["zen3", "zen4", "cortex-a76", "cortex-a55"])
def test_blocks_of_long_windows_are_those_of_pixels_apart(
    name: str, taps: int, stride: int
) -> None:
    """Pixels that are read again many steps later take no registers meanwhile.

    Of the smallest blocks more steps are unrolled.
    """
    core = Core.named(name)

    def blocks(workload: Conv2dWorkload) -> set[tuple[int, int]]:
        found = {(c.mr, c.nr) for c in direct.configs(workload, core, 1)}
        return {block for block in found if math.prod(block) >= 8 * core.lanes()}

    offered = blocks(front_end(taps, stride, 402))
    assert offered == blocks(front_end(taps, taps, 402))
    assert max(rows for rows, _ in offered) > 1


def test_blocks_of_short_windows_leave_room_for_pixels_read_again() -> None:
    core = Core.named("zen3")
    apart, overlapping = (
        {(c.mr, c.nr) for c in direct.configs(front_end(11, stride, 402), core, 1)}
        for stride in (11, 4)
    )
    assert overlapping < apart


def test_windows_as_networks_of_images_have_them_are_all_offered() -> None:
    core = Core.named("zen4")
    for size, stride, image in ((3, 1, 56), (7, 2, 224), (11, 4, 224)):
        pad = (size // 2,) * 4
        workload = Conv2dWorkload(1, 3, image, image, 64, size, size, (stride, stride), pad)
        heights = {c.oh_block for c in candidates.configs(workload, core, 1)}
        assert {1, 2} <= heights
