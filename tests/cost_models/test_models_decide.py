"""The published models decide: another cache, and what `compile` chooses follows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.conv2d_direct.candidates import slab_rows
from tvm_blislike.cost_models.conv2d_im2col import candidates as im2col
from tvm_blislike.cost_models.conv2d_im2col.geometry import Im2colGeometry
from tvm_blislike.cost_models.conv2d_im2col.slicing import slicing, slicings
from tvm_blislike.cost_models.conv2d_winograd import candidates as winograd
from tvm_blislike.cost_models.conv2d_winograd.config import TILES
from tvm_blislike.cost_models.conv2d_winograd.geometry import WinogradGeometry
from tvm_blislike.cost_models.gemm import candidates as gemm
from tvm_blislike.hardware import Core, names
from tvm_blislike.microkernels import kernel_of
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.schedules import implementations

CORE = Core.named("zen4")
KIB = 1024
PRODUCT = GemmWorkload(1024, 1024, 4096)
LAYER = Conv2dWorkload(1, 256, 56, 56, 512, 3, 3, padding=(1, 1, 1, 1))
TALL = Conv2dWorkload(1, 256, 112, 112, 64, 3, 3, padding=(1, 1, 1, 1))


def resized(level: int, size: int) -> Core:
    """The core with a cache of another size."""
    caches = (replace(c, bytes=size) if c.level == level else c for c in CORE.caches)
    return replace(CORE, caches=tuple(caches))


def chosen(workload: Workload, core: Core, name: str) -> Config:
    """What the strategy chooses if only one algorithm is allowed."""
    return Strategy(core, 1, constraints=Constraints(only=(name,))).choose(workload).config


def model_of(config: Config, core: Core, kc: int | None = None) -> tuple[int, int, int]:
    """The model's mc, nc and kc for the micro-kernel and loop order of a choice."""
    kernel = kernel_of(core, config.mr, config.nr, PRODUCT.types)
    model = gemm.blocking(PRODUCT, kernel, config.loop_order, core, 1, kc)
    return model.mc, model.nc, model.kc


@pytest.mark.parametrize("size", [256 * KIB, 512 * KIB, 1024 * KIB])
def test_a_product_has_the_depth_of_the_model(size: int) -> None:
    core = resized(2, size)
    config = chosen(PRODUCT, core, "gemm")
    assert config.kc == pytest.approx(model_of(config, core)[2], rel=0.15)
    mc, nc, _ = model_of(config, core, config.kc)
    assert config.mc <= mc and config.nc <= nc


def test_a_larger_l2_makes_blocks_of_a_product_deeper() -> None:
    depths = [chosen(PRODUCT, resized(2, n * KIB), "gemm").kc for n in (256, 512, 1024, 2048)]
    assert depths == sorted(set(depths))


@pytest.mark.parametrize("name", names())
def test_the_blocking_of_the_model_is_offered(name: str) -> None:
    core = Core.named(name)
    offered = list(gemm.configs(PRODUCT, core, 1))
    for block in {(c.mr, c.nr, c.ks, c.loop_order) for c in offered}:
        kernel = kernel_of(core, block[0], block[1], PRODUCT.types, block[2])
        model = gemm.blocking(PRODUCT, kernel, block[3], core, 1)
        kc = math.ceil(PRODUCT.k / math.ceil(PRODUCT.k / model.kc))
        of_block = [c for c in offered if (c.mr, c.nr, c.ks, c.loop_order) == block]
        assert kc in {c.kc for c in of_block}


def test_a_larger_l2_makes_slabs_taller() -> None:
    heights = {}
    for size in (1024, 2048, 4096):
        config = chosen(TALL, core := resized(2, size * KIB), "conv2d_direct")
        heights[size] = config.oh_block * config.tile_h
        assert config.loop_order == "rows"
        # The model's, or the next larger divisor of the image's rows.
        assert config.oh_block <= 2 * slab_rows(TALL, config, core, 1)[0]
    assert heights[1024] < heights[2048] < heights[4096]


def test_slicing_offers_its_channels_and_filters() -> None:
    """N_c follows L1, K2 follows L2; both orders are offered, the cheaper of SConv among them."""
    found = {}
    for level, size in ((1, 16 * KIB), (1, 64 * KIB), (2, 256 * KIB), (2, 1024 * KIB)):
        core = resized(level, size)
        offered = list(im2col.configs(LAYER, core, 1))
        geo = Im2colGeometry(LAYER, offered[0])
        same = [c for c in offered if (c.mr, c.nr, c.columns) == block_of(offered[0])]
        sliced = slicings(LAYER, core, geo.filters, geo.windows)[0]
        n_c = max(c for c in range(1, sliced.n_c + 1) if LAYER.ci % c == 0)
        assert n_c * 9 in {c.kc for c in same}
        best = slicing(LAYER, core, geo.filters, geo.windows)
        assert best.schedule in {c.loop_order for c in same}
        found[level, size] = {(c.kc, c.mc) for c in same}
    assert found[1, 16 * KIB] != found[1, 64 * KIB]
    assert found[2, 256 * KIB] != found[2, 1024 * KIB]


def block_of(config: Config) -> tuple[int, int, str]:
    """Rows and columns of the block, and what its columns are."""
    return config.mr, config.nr, config.columns


def test_a_larger_l2_makes_im2col_deeper() -> None:
    small, large = (chosen(LAYER, resized(2, n * KIB), "conv2d_im2col") for n in (512, 4096))
    assert small.kc < large.kc


def test_winograd_blocks_fit_beside_two_panels() -> None:
    for size in (512, 1024, 2048):
        core = replace(resized(2, size * KIB), l2_crowding=0.6)  # L3 is not near
        for config in winograd.configs(LAYER, core, 1):
            geo = WinogradGeometry(LAYER, config)
            room = winograd.planned_bytes(geo, core, 1)
            assert room < size * KIB
            if geo.chunks > winograd.MOST_PASSES:
                assert min(geo.v_bytes + geo.p_bytes, 2 * geo.p_bytes) <= room
            elif config.loop_order == TILES:
                assert geo.v_bytes / geo.multiplications <= room


@pytest.mark.parametrize("core", [CORE, resized(2, 256 * KIB)], ids=["1M", "256K"])
def test_explain_says_what_bounds_the_blocks(core: Core) -> None:
    for workload in (PRODUCT, LAYER):
        for implementation in implementations(workload.kind):
            if implementation.applies(workload, core):
                continue
            config = next(iter(implementation.configs(workload, core, 1)))
            lines = implementation.derivation(workload, config, core, 1)
            if implementation.name in ("gemm", "conv2d_im2col"):
                assert lines[0].startswith(f"kc = {config.kc}, by the model")
                assert any("ways" in line or "all of" in line for line in lines)
                assert any("of a thread's share" in line for line in lines)
