"""The im2col convolution against the slow reference: random workloads, and the corners by name."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

import numpy as np
import pytest
from conv_checks import (
    EPILOGUES,
    assert_non_finite_pixels_stay_where_they_are,
    assert_packed_once_and_alike,
    assert_threads_do_not_change_a_bit,
    best,
    epilogues,
    result,
)
from conv_harness import arrays, build, error, expected, lowered, primfunc
from conv_workloads import NATIVE, RUNNABLE, convolutions, one_config
from effort import every_second, examples
from hypothesis import given
from hypothesis import strategies as st

from tvm_blislike.cost_models.conv2d_im2col.config import Im2colConfig
from tvm_blislike.cost_models.conv2d_im2col.geometry import Im2colGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.model.config import Config
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_im2col.definition import IMPLEMENTATION

TOLERANCE = 1e-5
SAME = (1, 1, 1, 1)
FIELDS = ("columns", "loop_order", "nr", "mr", "kc", "oh_block", "mc", "packing")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Core, Conv2dWorkload, Config, int, list[str]]:
    core, threads = draw(st.sampled_from(RUNNABLE)), draw(st.sampled_from([1, 2]))
    workload = draw(convolutions(most_macs=4e6, groups=(1, 1, 2, 5)))
    config = one_config(draw, IMPLEMENTATION, workload, core, threads, FIELDS)
    return core, workload, config, threads, draw(epilogues(4))


@examples(12)
@given(cases())
def test_random_workloads_and_configs(case) -> None:
    core, workload, config, threads, steps = case
    assert error(workload, config, core, threads, steps) < TOLERANCE


CORNERS = {
    "one pixel": Conv2dWorkload(1, 64, 1, 1, 96, 1, 1),
    "one channel, one pixel, one tap": Conv2dWorkload(1, 1, 1, 1, 1, 1, 1),
    "one input channel, column kernel": Conv2dWorkload(2, 1, 12, 9, 16, 5, 1, padding=SAME),
    "three input channels, row kernel": Conv2dWorkload(1, 3, 9, 11, 32, 1, 3),
    "one output channel": Conv2dWorkload(1, 32, 9, 11, 1, 3, 3, padding=SAME),
    "one column": Conv2dWorkload(1, 32, 21, 1, 32, 3, 1, padding=(1, 0, 1, 0)),
    "one row": Conv2dWorkload(1, 32, 1, 21, 32, 1, 3, padding=(0, 1, 0, 1)),
    "two columns": Conv2dWorkload(1, 16, 14, 2, 32, 3, 3, padding=SAME),
    "kernel larger than the image": Conv2dWorkload(1, 16, 3, 2, 32, 7, 7, padding=(3, 3, 3, 3)),
    "kernel as large as the image": Conv2dWorkload(2, 24, 5, 7, 48, 5, 7),
    "more padding than kernel": Conv2dWorkload(1, 16, 4, 4, 16, 3, 3, padding=(5, 4, 3, 6)),
    "padding that no output reads": Conv2dWorkload(1, 16, 8, 8, 16, 3, 3, (3, 3), (0, 0, 1, 1)),
    "stride 2 without a kernel": Conv2dWorkload(1, 16, 13, 15, 16, 1, 1, (2, 2)),
    "stride beyond the kernel": Conv2dWorkload(1, 16, 13, 13, 16, 1, 1, (3, 2)),
    "stride along the height only": Conv2dWorkload(1, 16, 13, 17, 16, 3, 3, (2, 1)),
    "first layer, 7x7": Conv2dWorkload(1, 3, 62, 62, 64, 7, 7, (2, 2), (3, 3, 3, 3)),
    "dilated": Conv2dWorkload(1, 3, 20, 20, 24, 3, 3, (1, 1), (2, 2, 2, 2), (2, 2)),
    "dilated, stride 2": Conv2dWorkload(1, 8, 23, 23, 24, 3, 3, (2, 2), (3, 3, 3, 3), (3, 3)),
    "prime sizes": Conv2dWorkload(1, 37, 17, 19, 53, 3, 3, padding=SAME),
    "whole panels": Conv2dWorkload(1, 16, 16, 12, 48, 3, 3, padding=SAME),
    "batch of three on two threads": Conv2dWorkload(3, 16, 9, 9, 48, 3, 3, padding=SAME),
    "two groups": Conv2dWorkload(1, 32, 9, 11, 96, 3, 3, padding=SAME, groups=2),
    "groups of prime sizes": Conv2dWorkload(2, 21, 9, 10, 39, 1, 1, groups=3),
    "groups of one channel": Conv2dWorkload(1, 24, 11, 9, 24, 3, 3, (2, 2), SAME, groups=24),
}


def tallest(vectors: int, most: int, divides: int = 0) -> Microkernel:
    """Return this machine's kernel of so many vectors a row and of the most rows up to `most`."""
    offered = (k for k in kernels_for(NATIVE, panels=True) if k.vectors == vectors)
    return max((k for k in offered if k.mr <= most and divides % k.mr == 0), key=lambda k: k.mr)


def spread(configs: Iterable[Config], most: int) -> list[Config]:
    """Up to `most` of each orientation, no two alike in order, width, number of sets and blocks."""
    found = {(c.columns, c.loop_order, c.nr, c.kc, c.oh_block, c.mc): c for c in configs}
    by_columns = [[c for c in found.values() if c.columns == of] for of in ("", "filters")]
    return [c for some in by_columns for c in some[:: max(1, len(some) // most)][:most]]


@pytest.mark.parametrize(
    ("name", "threads"),
    [
        (name, threads)
        for number, name in enumerate(CORNERS)
        for threads in every_second((1, 2), number)
    ],
)
def test_corners(name: str, threads: int) -> None:
    workload = CORNERS[name]
    assert IMPLEMENTATION.applies(workload, NATIVE) == ""
    chosen = spread(IMPLEMENTATION.configs(workload, NATIVE, threads), 2)
    errors = {c: error(workload, c, NATIVE, threads, ["bias", "relu"]) for c in chosen}
    assert {c: e for c, e in errors.items() if not e < TOLERANCE} == {}


@pytest.mark.parametrize("sets", ["one set", "sets"])
@pytest.mark.parametrize("steps", EPILOGUES, ids="+".join)
def test_epilogues_in_any_order(steps: list[str], sets: str) -> None:
    workload = Conv2dWorkload(2, 16, 10, 11, 57, 3, 3, padding=SAME)
    config = best(IMPLEMENTATION, workload, threads=2)
    config = config.with_fields(oh_block=5, kc=144 if sets == "one set" else 36)
    assert error(workload, config, NATIVE, 2, steps) < TOLERANCE


def test_activations_of_activations_compile_quickly() -> None:
    """One cut tile of pixels: the epilogue's index holds a condition until it is simplified."""
    workload = Conv2dWorkload(1, 17, 5, 7, 24, 3, 3)
    block = {"columns": "", "mr": 3, "nr": 3 * NATIVE.lanes(), "oh_block": 1}
    config = best(IMPLEMENTATION, workload).with_fields(mc=24, kc=9, **block)
    assert Im2colGeometry(workload, config).pixels < config.nr
    started = time.perf_counter()
    assert error(workload, config, NATIVE, 1, ["silu"] * 4) < TOLERANCE
    assert time.perf_counter() - started < 20


def test_infinities_and_nan_stay_where_they_are() -> None:
    assert_non_finite_pixels_stay_where_they_are(IMPLEMENTATION)


@pytest.mark.parametrize("mc, rows", [(24, 14), (48, 7)])
def test_one_thread_and_two_give_the_same_bits(mc: int, rows: int) -> None:
    workload = Conv2dWorkload(1, 32, 14, 17, 48, 3, 3, padding=SAME)
    kernel = tallest(3, 8, divides=24)
    block = {"columns": "", "mr": kernel.mr, "nr": kernel.nr, "oh_block": rows}
    config = best(IMPLEMENTATION, workload).with_fields(mc=mc, **block)
    assert_threads_do_not_change_a_bit(workload, config)


@pytest.mark.parametrize("name", ["prime sizes", "first layer, 7x7", "groups of prime sizes"])
def test_weights_are_packed_once_and_alike_at_run_time(name: str) -> None:
    workload = CORNERS[name]
    config = best(IMPLEMENTATION, workload)
    packed = assert_packed_once_and_alike(IMPLEMENTATION, workload, config)
    assert packed.shape == Im2colGeometry(workload, config).packed_shape


@pytest.mark.parametrize(
    "workload, reason",
    [
        (Conv2dWorkload(1, 32, 9, 9, 32, 3, 3, types=Types.of("int8")), "no int8 micro-kernels"),
    ],
)
def test_refuses_with_a_reason(workload: Conv2dWorkload, reason: str) -> None:
    assert IMPLEMENTATION.applies(workload, NATIVE) == reason


SHIFTED = {
    "rows of two vectors and a rest": Conv2dWorkload(1, 8, 9, 37, 16, 3, 3, padding=SAME),
    "no padding": Conv2dWorkload(1, 5, 9, 21, 16, 3, 3),
    "5x5, two images": Conv2dWorkload(2, 8, 9, 33, 16, 5, 5, padding=(2, 2, 2, 2)),
    "row of one vector": Conv2dWorkload(1, 8, 5, 16, 16, 1, 7, padding=(0, 3, 0, 3)),
    "taps 3 apart": Conv2dWorkload(1, 8, 20, 29, 16, 3, 3, (1, 1), (3, 3, 3, 3), (3, 3)),
    "stride along the height": Conv2dWorkload(1, 8, 20, 29, 16, 3, 3, (2, 1), SAME),
    "nothing to shift": Conv2dWorkload(1, 8, 20, 29, 16, 1, 1, (2, 2)),
}


@pytest.mark.parametrize("name", SHIFTED)
@pytest.mark.parametrize("core", RUNNABLE, ids=lambda core: core.name)
def test_shifted_windows_are_those_loaded_one_by_one(core: Core, name: str) -> None:
    workload = SHIFTED[name]
    config = best(IMPLEMENTATION, workload, core)
    values = arrays(workload)
    plain, shifted = (
        result(workload, config.with_fields(packing=packing), values, core=core)
        for packing in ("", "shift")
    )
    np.testing.assert_array_equal(plain, shifted)


# Two registers become one: `valignd` for integers, a permutation for floats, halves of AVX first.
SHIFT_INSTRUCTIONS = {
    "skylake-avx512": r"valignd|vpermt2ps|vpermt2pd|valignq",
    "haswell": r"vpalignr|vshufps|vshufpd",
    "cortex-a53": r"ext\s+v",
}


@pytest.mark.parametrize("name", SHIFT_INSTRUCTIONS)
def test_packing_shifts_in_registers(name: str) -> None:
    """Two of three windows come from a shift, and need no load."""
    core = Core.named(name)
    config = best(IMPLEMENTATION, PACKING["3x3"], core)
    found = {}
    for packing in ("", "shift"):
        library = build(PACKING["3x3"], config.with_fields(packing=packing), core)
        text = library.mod.inspect_source("asm")
        found[packing] = len(re.findall(rf"^\s+(?:{SHIFT_INSTRUCTIONS[name]})", text, re.M))
    lanes = core.lanes("float32")
    vectors = config.oh_block * (28 // lanes)
    assert found["shift"] - found[""] >= 2 * (vectors - config.oh_block)


# The kernel's vectors and most rows; rows and columns of an image for tiles of so many rows; n, ci,
# filters as sixteenths of a vector, and the kernel's size.
ACROSS = {
    "tiles and half a tile": (2, 14, lambda mr: (7, mr // 2), (2, 24, 64, 1)),
    "every height of a tile": (2, 5, lambda _: (3, 9), (1, 5, 40, 3)),
    "fewer filters than lanes": (1, 6, lambda _: (6, 5), (1, 16, 9, 1)),
    "one pixel": (3, 1, lambda _: (1, 1), (1, 40, 37, 1)),
    "the tallest tiles and a cut one": (1, 27, lambda _: (7, 7), (1, 12, 20, 3)),
}


def across(name: str) -> tuple[Conv2dWorkload, Microkernel]:
    """Return a workload of `ACROSS` and its kernel, as large as this machine's vectors say."""
    vectors, most, image, (n, ci, sixteenths, size) = ACROSS[name]
    kernel = tallest(vectors, most)
    filters, margin = sixteenths * kernel.lanes // 16, (size // 2,) * 4
    return Conv2dWorkload(n, ci, *image(kernel.mr), filters, size, size, padding=margin), kernel


@pytest.mark.parametrize("order", ["IS", "WS"])
@pytest.mark.parametrize("name", ACROSS)
def test_filters_in_the_lanes(name: str, order: str) -> None:
    """Blocks of pixels by filters, transposed before the epilogue; sums in registers or memory."""
    workload, kernel = across(name)
    block = {"mr": kernel.mr, "nr": kernel.nr, "oh_block": workload.oh}
    config = Im2colConfig(loop_order=order, columns="filters", **block)
    for kc in (0, workload.kh * workload.kw):
        found = error(workload, config.with_fields(kc=kc), NATIVE, 1, ["bias", "residual", "relu"])
        assert found < TOLERANCE


@pytest.mark.parametrize("columns", ["", "filters"])
@pytest.mark.parametrize("packing", ["in place", "tile"])
def test_windows_of_one_pixel_are_those_of_panels(packing: str, columns: str) -> None:
    workload = Conv2dWorkload(2, 20, 8, 6, 37, 1, 1)
    offered = IMPLEMENTATION.configs(workload, NATIVE, 1)
    config = next(c for c in offered if c.columns == columns and c.packing == packing)
    values = arrays(workload)
    first, second = (
        result(workload, config.with_fields(packing=packing), values) for packing in ("", packing)
    )
    np.testing.assert_array_equal(first, second)
    panels = re.findall(r"panels = .*", lowered(primfunc(workload, config), NATIVE).script())
    size = config.mr if columns else config.nr
    shape = f"panels = T.alloc_buffer((20, {size}))"
    assert panels == [] if packing == "in place" else [shape]


def test_a_cut_tile_is_packed_on_demand() -> None:
    """77 pixels: the last tile of either orientation is cut within a vector."""
    workload = Conv2dWorkload(2, 24, 7, 11, 40, 1, 1)
    offered = [c for c in IMPLEMENTATION.configs(workload, NATIVE, 1) if c.packing == "tile"]
    assert {c.columns for c in offered} == {"", "filters"}
    for config in spread(offered, 3):
        assert error(workload, config, NATIVE, 1, ["bias", "relu"]) < TOLERANCE


def test_no_panels_for_neon_is_refused() -> None:
    config = Im2colConfig(mr=8, nr=8, oh_block=8, columns="filters", packing="in place")
    config = config.with_fields(loop_order="IS")
    workload = Conv2dWorkload(1, 8, 8, 8, 8, 1, 1)
    with pytest.raises(ValueError, match="needs panels of windows; use packing=''"):
        lowered(primfunc(workload, config), Core.named("cortex-a72"))


PACKING = {
    "3x3": Conv2dWorkload(1, 64, 28, 28, 64, 3, 3, padding=SAME),
    "3x3, stride 2": Conv2dWorkload(1, 64, 56, 56, 64, 3, 3, (2, 2), SAME),
    "1x1": Conv2dWorkload(1, 64, 28, 28, 64, 1, 1),
    "1x1, stride 2": Conv2dWorkload(1, 64, 56, 56, 64, 1, 1, (2, 2)),
}


@pytest.mark.parametrize("name", PACKING)
def test_packing_is_vector_code(name: str) -> None:
    """No gather, no element by element copy: what is scalar belongs to the borders."""
    config = best(IMPLEMENTATION, PACKING[name]).with_fields(packing="")
    module = lowered(primfunc(PACKING[name], config), NATIVE)
    text = module.script()
    stores = re.findall(r"^\s*panels\[(.*?)\] = ", text, re.M)
    assert stores and all(re.search(r":|Ramp", index) for index in stores)
    assert not re.search(r"(?:slab|panels)\[.*if_then_else", text)


@pytest.mark.skipif(NATIVE.isa.name == "neon", reason="reads x86 assembly")
@pytest.mark.parametrize("columns", ["", "filters"])
@pytest.mark.parametrize("name", PACKING)
def test_k_loop_stays_in_registers(name: str, columns: str) -> None:
    """The loop with the most FMAs touches no stack."""
    workload = PACKING[name]
    offered = [c for c in IMPLEMENTATION.configs(workload, NATIVE, 1) if c.columns == columns]
    config = min(offered, key=lambda c: IMPLEMENTATION.estimate(workload, c, NATIVE, 1).seconds)
    text = build(workload, config, NATIVE).mod.inspect_source("asm")
    blocks = re.split(r"^\.LBB\S*:", text, flags=re.M)
    # Up to the branch: behind it a block of C is transposed by way of the stack.
    loops = [re.split(r"^\s+j\w+\s.*$", block, maxsplit=1, flags=re.M)[0] for block in blocks]
    # Which operand an FMA overwrites is free: a broadcast of A where no other reads it.
    inner = max(loops, key=lambda loop: len(re.findall(r"vfmadd\d+ps", loop)))
    assert len(re.findall(r"vfmadd\d+ps", inner)) >= 20
    assert re.findall(r"^.*\(%rsp.*$", inner, re.M) == []


def test_result_is_expected_for_a_forced_config() -> None:
    """Small enough to compute by hand: one window, one filter of ones."""
    workload = Conv2dWorkload(1, 1, 2, 2, 1, 2, 2)
    config = best(IMPLEMENTATION, workload)
    data, weights = np.arange(4, dtype="f4").reshape(1, 1, 2, 2), np.ones((1, 1, 2, 2), "f4")
    assert result(workload, config, [data, weights]).item() == 6.0
    assert expected(workload, [], [data, weights]).item() == 6.0
