"""Arithmetic intensity of pointwise and depthwise convolutions against the loads of the code."""

from __future__ import annotations

import pytest
from conv_harness import build

from tvm_blislike.cost_models import pointwise
from tvm_blislike.cost_models.conv2d_depthwise import estimate as depthwise
from tvm_blislike.cost_models.conv2d_depthwise.config import DepthwiseConfig
from tvm_blislike.hardware import Core
from tvm_blislike.inspect.assembly import Instruction, functions, innermost_loops
from tvm_blislike.inspect.kernel_code import k_loops
from tvm_blislike.microkernels import get_kernel
from tvm_blislike.model.workload import Conv2dWorkload

BYTES = {"q": 16, "d": 8, "s": 4, "x": 8}
BLOCKS = ("4x16", "4x20", "6x12", "5x16", "9x8", "8x8", "8x12", "12x8", "4x28")


def bytes_of(instruction: Instruction) -> int:
    """Bytes that a load or store of AArch64 moves."""
    names = instruction.operands.split("[")[0].split(",")
    return sum(BYTES[name.strip()[0]] for name in names if name.strip())


def moved(code: list[Instruction], stores: bool) -> int:
    """Bytes between memory and the registers of vectors."""
    kind = [i for i in code if i.is_store == stores and i.reads_memory and not i.is_prefetch]
    return sum(bytes_of(i) for i in kind)


@pytest.mark.parametrize("core", ["cortex-a72", "cortex-a53"])
def test_pointwise_loads_each_operand_once_and_stores_nothing(core: str):
    kernels = [get_kernel(f"neon_f32_{block}") for block in BLOCKS]
    for kernel, loop in zip(
        kernels, k_loops(kernels, Core.named(core), "panel").values(), strict=True
    ):
        steps = sum(i.is_fma for i in loop) / (kernel.mr * kernel.vectors)
        one = pointwise.rtrd_bytes(kernel.mr, kernel.nr, 1)
        step = pointwise.rtrd_bytes(kernel.mr, kernel.nr, 2) - one
        assert moved(loop, stores=False) == steps * step
        assert moved(loop, stores=True) == 0


def test_pointwise_intensity_by_hand():
    # 8x8 over 256 channels: 2 * 64 * 256 FLOPs; 256 * 16 + 64 elements.
    assert pointwise.rtrd_intensity(8, 8, 256) == pytest.approx(32768 / (4 * 4160))
    # A (8x4) stays: 2 * 64 * 4 FLOPs; B 32, D 64 in and 64 out.
    assert pointwise.rtra_intensity(8, 8, 4) == pytest.approx(512 / (4 * 160))
    # D once instead of every few steps; more so the longer k.
    for k in (32, 256, 1024):
        assert pointwise.rtrd_intensity(8, 8, k) > 1.3 * pointwise.rtra_intensity(8, 8, 8)


@pytest.mark.parametrize("tile, stride", [((2, 4), 1), ((1, 6), 1), ((2, 3), 2)])
def test_depthwise_loads_each_pixel_once_and_the_filter_outside(tile: tuple[int, int], stride: int):
    # Many whole tiles and no padding: the loop over them is all there is.
    size = 12 * max(tile) * stride + 2
    workload = Conv2dWorkload(1, 8, size, size, 8, 3, 3, (stride, stride), groups=8)
    tall, wide = tile
    sizes = dict(mr=tall * wide, nr=4, tile_h=tall, tile_w=wide)
    layouts = dict(data_layout="NCHW4c", out_layout="NCHW4c", loop_order="channels")
    core = Core.named("cortex-a72")
    library = build(workload, DepthwiseConfig(**sizes, **layouts), core)
    body = functions(library.mod.inspect_source("asm"))["main_compute_"]
    outputs = tall * wide
    loops = [
        loop for loop in innermost_loops(body) if sum(i.is_fma for i in loop) >= 9 * outputs - 9
    ]
    assert loops
    for loop in loops:
        assert not [str(i) for i in loop if i.uses_stack]
        # The filter stays in registers, each pixel is loaded once, each output stored once.
        assert moved(loop, stores=False) == 16 * depthwise.window_loads(workload, tall, wide)
        assert moved(loop, stores=True) == 16 * outputs
        intensity = 2 * 4 * 9 * outputs / (moved(loop, False) + moved(loop, True))
        assert depthwise.arithmetic_intensity(workload, tall, wide, core) == pytest.approx(
            intensity
        )
