"""Moving tensors out of the caches: every line, with either instruction, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

from tvm_blislike.hardware import Core, native_core
from tvm_blislike.hardware.cpus import PROC_CPUINFO
from tvm_blislike.hardware.machine import listed_info
from tvm_blislike.tuning import eviction


@pytest.mark.parametrize(
    ("address", "size", "found"),
    [
        (128, 64, (128, 1)),
        (128, 65, (128, 2)),
        (127, 2, (64, 2)),
        (130, 4, (128, 1)),
        (130, 126, (128, 2)),
        (130, 127, (128, 3)),
    ],
)
def test_all_lines_that_hold_a_part(address: int, size: int, found: tuple[int, int]) -> None:
    assert eviction.lines_of(address, size) == found


def test_the_lines_do_not_wait_for_one_another_but_the_end_does() -> None:
    core = Core.named("skylake-avx512")
    library = tvm.compile(eviction.flush(), eviction.target(core))
    lines = [line.split() for line in library.mod.inspect_source("asm").splitlines()]
    told = [line[0] for line in lines if line and ("flush" in line[0] or "fence" in line[0])]
    assert set(told) == {"clflushopt", "mfence"} and told[-1] == "mfence"


@pytest.mark.parametrize("known", [True, False])
def test_what_is_moved_out_keeps_its_values(tmp_path: Path, known: bool) -> None:
    if known and "clflushopt" not in listed_info().get("flags", ()):
        pytest.skip("this processor has no clflushopt")
    other = tmp_path / "cpuinfo"
    other.write_text("processor : 0\nflags : fpu clflush\n")
    values = np.random.default_rng(0).standard_normal((7, 33, 5)).astype("float32")
    tensor = tvm.runtime.tensor(values)
    eviction.evictor(native_core(), PROC_CPUINFO if known else other)(tensor)
    assert np.array_equal(tensor.numpy(), values)
