"""What LLVM makes of depthwise convolutions on ARM: tiles that hardly use the stack."""

from __future__ import annotations

import pytest
from conv_checks import best
from conv_harness import build

from tvm_blislike.hardware import Core
from tvm_blislike.inspect.assembly import count, functions, innermost_loops
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_depthwise.definition import IMPLEMENTATION

# Output columns that need several tiles, none like another: one piece of code for a row.
LAYERS = {
    "7x7": Conv2dWorkload(1, 64, 7, 7, 64, 3, 3, (1, 1), (1, 1, 1, 1), groups=64),
    "14x14, stride 2": Conv2dWorkload(1, 64, 14, 14, 64, 3, 3, (2, 2), (1, 1, 1, 1), groups=64),
    "28x28, stride 2": Conv2dWorkload(1, 64, 28, 28, 64, 3, 3, (2, 2), (1, 1, 1, 1), groups=64),
    "14x14": Conv2dWorkload(1, 64, 14, 14, 64, 3, 3, (1, 1), (1, 1, 1, 1), groups=64),
}


@pytest.mark.parametrize("core", ["cortex-a72", "neoverse-n1"])
@pytest.mark.parametrize("layer", LAYERS)
def test_tiles_of_a_row_are_not_mixed(layer: str, core: str) -> None:
    workload, described = LAYERS[layer], Core.named(core)
    config = best(IMPLEMENTATION, workload, described)
    bodies = functions(build(workload, config, described).mod.inspect_source("asm"))
    counts = [count(loop) for body in bodies.values() for loop in innermost_loops(body)]
    hot = [c for c in counts if c.fmas >= 40]
    assert hot
    # Loads of the next tile in front of this one would make it 0.2 to 0.3.
    assert all(c.spills <= 0.11 * c.fmas for c in hot), (config, hot)
