"""Loads and stores in the code of pointwise and depthwise convolutions: each operand once."""

from __future__ import annotations

import pytest
from conv_harness import build

from tvm_blislike.cost_models.conv2d_depthwise import estimate as depthwise
from tvm_blislike.cost_models.conv2d_depthwise.config import DepthwiseConfig
from tvm_blislike.hardware import Core
from tvm_blislike.inspect.kernel_code import k_loops
from tvm_blislike.microkernels import get_kernel
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.tvm_seams.machine_code import Instruction, functions, innermost_loops

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
        assert moved(loop, stores=False) == steps * 4 * (kernel.mr + kernel.nr)
        assert moved(loop, stores=True) == 0


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
