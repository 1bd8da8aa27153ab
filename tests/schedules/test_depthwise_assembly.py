"""What LLVM makes of depthwise convolutions: tiles that hardly use the stack, products of bytes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from conv_checks import best
from conv_harness import build

from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import Core
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_depthwise.definition import IMPLEMENTATION
from tvm_blislike.tvm_seams.machine_code import count, functions, innermost_loops

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


@pytest.mark.parametrize("core", ["zen4", "icelake-server"])
@pytest.mark.parametrize("layer", LAYERS)
def test_rows_of_bytes_are_multiplied_by_one_instruction(layer: str, core: str) -> None:
    """A column is mixed once for all results of its row, and nothing goes to the stack."""
    described = Core.named(core)
    workload = replace(LAYERS[layer], types=quantized_types(described))
    config = best(IMPLEMENTATION, workload, described)
    assert config.ks == 4
    assembly = build(workload, config, described).mod.inspect_source("asm")
    products = re.findall(r"vpdpbusd\s.*", assembly)
    mixed = re.findall(r"vperm[it2]*b\s.*", assembly)
    assert products
    assert not re.findall(r"vpmadd|vpmull", assembly)
    # Of stride 1 three products read a column, of stride 2 three read two of them; edges more.
    assert len(mixed) <= (0.75 if workload.stride == (1, 1) else 0.9) * len(products)
    assert len(re.findall(r"%zmm\d+, -?\d*\(%r[sb]p\)", assembly)) <= 0.02 * len(products)
