"""What LLVM makes of the products of a Winograd convolution: accumulators stay in registers.

Tested apart from the micro-kernels themselves, because transforms surround the k loop here: LLVM
would keep their constants in registers across it, and spill accumulators (`FreshRegisters`).
"""

from __future__ import annotations

import pytest
import tvm
from conv_harness import lowered, primfunc

from tvm_blislike.cost_models.conv2d_winograd import candidates
from tvm_blislike.cost_models.conv2d_winograd import estimate as winograd
from tvm_blislike.hardware import Core
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.tvm_seams.machine_code import Instruction, innermost_loops

SAME = (1, 1, 1, 1)
LAYERS = [
    Conv2dWorkload(1, 64, 56, 56, 64, 3, 3, padding=SAME),
    Conv2dWorkload(1, 256, 14, 14, 256, 3, 3, padding=SAME),
    Conv2dWorkload(1, 48, 27, 27, 96, 5, 5, padding=(2, 2, 2, 2)),
    Conv2dWorkload(1, 192, 17, 17, 192, 1, 7, padding=(0, 3, 0, 3)),
]
# Smaller loops, of cut blocks, have registers to spare.
LEAST_FMAS = 20


def best_of_each_tile(workload: Conv2dWorkload, core: Core, threads: int) -> list[Config]:
    found: dict[int, tuple[float, Config]] = {}
    for config in candidates.configs(workload, core, threads):
        seconds = winograd.estimate(workload, config, core, threads).seconds
        if config.tile_w not in found or seconds < found[config.tile_w][0]:
            found[config.tile_w] = (seconds, config)
    return [config for _, config in found.values()]


def k_loops(
    workload: Conv2dWorkload, config: Config, core: Core, threads: int = 1
) -> list[list[Instruction]]:
    """Innermost loops of products: the transforms' have multiply-adds too, but no prefetch."""
    module = lowered(primfunc(workload, config, ["bias", "relu"]), core, threads)
    library = tvm.compile(module, tvm.target.Target(core.target_config(threads)))
    loops = innermost_loops(library.mod.inspect_source("asm"))
    products = [loop for loop in loops if any(i.is_prefetch for i in loop)]
    return [loop for loop in products if sum(i.is_fma for i in loop) >= LEAST_FMAS]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("core", ["sapphirerapids", "haswell"])
@pytest.mark.parametrize("workload", LAYERS, ids=str)
def test_k_loops_store_nothing(workload: Conv2dWorkload, core: str, threads: int) -> None:
    for config in best_of_each_tile(workload, Core.named(core), threads):
        loops = k_loops(workload, config, Core.named(core), threads)
        assert loops, config
        used = [str(i) for loop in loops for i in loop if i.uses_stack or i.is_store or i.is_call]
        assert used == [], config
        # Four steps of k: a multiply-add for each register of the block, or of a cut one.
        vectors = config.nr // Core.named(core).lanes()
        assert 4 * config.mr * vectors in [sum(i.is_fma for i in loop) for loop in loops]


# Layers and widths in tiles where accumulators of F(6, 3) were on the stack in every step of k.
SPILLED = {
    "sapphirerapids": [
        (Conv2dWorkload(1, 128, 28, 28, 128, 3, 3, padding=SAME), {"mr": 13, "nr": 32, "mc": 25}),
        (Conv2dWorkload(1, 32, 35, 35, 64, 3, 3, padding=SAME), {"mr": 12, "nr": 32, "mc": 12}),
        (Conv2dWorkload(1, 48, 13, 13, 48, 3, 3, padding=SAME), {"mr": 6, "nr": 48, "mc": 6}),
    ],
    "haswell": [
        (Conv2dWorkload(1, 256, 14, 14, 256, 3, 3, padding=SAME), {"mr": 5, "nr": 16, "mc": 9}),
        (Conv2dWorkload(1, 48, 13, 13, 48, 3, 3, padding=SAME), {"mr": 3, "nr": 24, "mc": 6}),
        (Conv2dWorkload(1, 64, 35, 35, 96, 3, 3, padding=SAME), {"mr": 6, "nr": 16, "mc": 12}),
    ],
    "cortex-a76": [
        (Conv2dWorkload(1, 48, 13, 13, 48, 3, 3, padding=SAME), {"nr": 12}),
    ],
}


@pytest.mark.parametrize(
    "core, workload, fields",
    [(core, *case) for core, cases in SPILLED.items() for case in cases],
    ids=str,
)
def test_constants_of_the_largest_transform_leave_the_registers(
    core: str, workload: Conv2dWorkload, fields: dict[str, int]
) -> None:
    matching = [
        c
        for c in candidates.configs(workload, Core.named(core), 1)
        if c.tile_w == 6 and all(getattr(c, name) == value for name, value in fields.items())
    ]
    # The narrowest and the widest chunk of channels.
    for config in {matching[0], matching[-1]}:
        loops = k_loops(workload, config, Core.named(core))
        assert loops, config
        assert [str(i) for loop in loops for i in loop if i.uses_stack or i.is_call] == []
