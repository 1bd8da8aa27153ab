"""What LLVM makes of the direct convolution: loops that leave the stack alone."""

from __future__ import annotations

import dataclasses

import pytest
from conv_checks import best
from conv_harness import build

from tvm_blislike.cost_models.conv2d_direct import candidates
from tvm_blislike.hardware import Core
from tvm_blislike.model.types import BFLOAT_DOT, BYTES, Types
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_direct.definition import IMPLEMENTATION
from tvm_blislike.tvm_seams.machine_code import count, functions, innermost_loops

LAYERS = {
    "first layer, 7x7": Conv2dWorkload(1, 3, 56, 224, 64, 7, 7, (2, 2), (3, 3, 3, 3)),
    "first layer, 3x3": Conv2dWorkload(1, 3, 56, 224, 32, 3, 3, (2, 2), (1, 1, 1, 1)),
    "1x1 after a wide layer": Conv2dWorkload(1, 192, 14, 14, 64, 1, 1),
    "1x1, many pixels": Conv2dWorkload(1, 96, 56, 56, 24, 1, 1),
    "3x3": Conv2dWorkload(1, 64, 14, 14, 128, 3, 3, (2, 2), (1, 1, 1, 1)),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("core", "dtype", "most_per_fma"),
    [
        # Nothing starts beside a load there.
        ("cortex-a55", "float32", 0.0),
        ("cortex-a53", "float32", 0.0),
        # Two accesses for 180 multiply-adds of the first layer of 3x3.
        ("cortex-a72", "float32", 0.02),
        # Some loops are a register or two short: elements come from the lower sixteen only.
        ("neoverse-n1", "float16", 0.06),
    ],
)
def test_k_loops_leave_the_stack_alone(
    core: str, dtype: str, most_per_fma: float, layer: str
) -> None:
    described = Core.named(core)
    workload = dataclasses.replace(LAYERS[layer], types=Types.of(dtype))
    config = best(IMPLEMENTATION, workload, described)
    bodies = functions(build(workload, config, described).mod.inspect_source("asm"))
    loops = [loop for body in bodies.values() for loop in innermost_loops(body)]
    counts = [count(loop) for loop in loops]
    hot = [c for c in counts if c.fmas >= 16]
    assert hot
    assert all(c.spills <= most_per_fma * c.fmas for c in hot), (config, hot)


# Rows of images that blocks of 14 pixels fill, channels by two: LLVM loads weights early in some.
TALL = [
    Conv2dWorkload(1, ci, rows, width, 64, 3, 3, padding=(1, 1, 1, 1))
    for ci in (64, 256)
    for rows, width in ((14, 14), (14, 28), (28, 28))
]


@pytest.mark.parametrize("workload", TALL, ids=str)
@pytest.mark.parametrize("types", [BFLOAT_DOT, BYTES], ids=str)
def test_full_register_files_of_groups_leave_the_stack_alone(
    workload: Conv2dWorkload, types: Types
) -> None:
    """All but a register are in use, so that nothing may be loaded for the next step of k.

    An accumulator that is on the stack in each of four steps takes as long as all 112 products.
    Where LLVM lets registers change places one still is in some of them, which nothing waits for.
    """
    described = Core.named("sapphirerapids")
    workload = dataclasses.replace(workload, types=types)
    configs = candidates.configs(workload, described, 1)
    config = next(c for c in configs if (c.mr, c.nr, c.tile_h) == (14, 32, 1))
    bodies = functions(build(workload, config, described).mod.inspect_source("asm"))
    loops = [loop for body in bodies.values() for loop in innermost_loops(body)]
    hot = [loop for loop in loops if count(loop).fmas == 4 * 28]
    assert hot
    for loop in hot:
        assert count(loop).spills < 2 * 4, config
        assert not [str(i) for i in loop if i.is_store and not i.uses_stack], config


@pytest.mark.parametrize("taps, stride", [(400, 160), (475, 441), (80, 32), (48, 40)])
@pytest.mark.parametrize("core", ["zen3", "zen4", "cortex-a76"])
def test_long_filters_leave_the_stack_alone(core: str, taps: int, stride: int) -> None:
    """Blocks of several windows, few steps of which are unrolled."""
    described, length = Core.named(core), taps + 199 * stride
    workload = Conv2dWorkload(1, 1, 1, length, 160, 1, taps, (1, stride))
    config = best(IMPLEMENTATION, workload, described)
    assert config.mr > 1
    bodies = functions(build(workload, config, described).mod.inspect_source("asm"))
    counts = [count(loop) for body in bodies.values() for loop in innermost_loops(body)]
    hot = [c for c in counts if c.fmas >= config.mr]
    assert hot
    assert all(c.spills == 0 and c.fmas < taps * config.mr for c in hot), (config, hot)
