"""Predicted time of a GEMM: properties on any core, and one product by hand."""

from __future__ import annotations

import dataclasses

import pytest
from estimates import (
    AVX512,
    KINDS,
    assert_more_work_takes_longer,
    assert_threads_cost_a_fork_at_most,
    check_all,
    check_registers,
    cores,
    doubled,
    fastest,
    late,
    loads,
    odd_shapes,
    on_every,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.cache_room import taken_bytes
from tvm_blislike.cost_models.gemm.candidates import configs
from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.cost_models.gemm.estimate import FAR_ROW_CYCLES
from tvm_blislike.cost_models.gemm.geometry import A_OUTSIDE, B_OUTSIDE, IN_PLACE, PACKED
from tvm_blislike.cost_models.issue import FMA_EFFICIENCY
from tvm_blislike.cost_models.moving import LOSS, beyond_l2_cycles
from tvm_blislike.hardware import Core
from tvm_blislike.model.types import BITS, Types
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.schedules.gemm.definition import IMPLEMENTATION

ODD = [
    GemmWorkload(1, 1, 1),
    GemmWorkload(1, 1000, 2048),
    GemmWorkload(3, 7, 4096),
    GemmWorkload(49, 2048, 512),
    GemmWorkload(53, 1, 1024),
    GemmWorkload(97, 250, 1),
    GemmWorkload(128, 128, 64, batch=12, constant_b=False),
    GemmWorkload(12544, 64, 147),
]

sizes = st.one_of(st.sampled_from([1, 4, 5, 64, 1000, 1024, 3136]), st.integers(1, 700))
workloads = st.builds(GemmWorkload, sizes, sizes, sizes, batch=st.sampled_from([1, 1, 2, 12]))


@on_every(KINDS)
def test_odd_shapes_on_every_core(core: Core, threads: int) -> None:
    for workload, config in odd_shapes(IMPLEMENTATION, ODD, core, threads):
        check_registers(config, core)
        assert config.mc % config.mr == config.nc % config.nr == 0
        assert 1 <= config.kc <= workload.k


@settings(max_examples=60, deadline=None)
@given(workloads, cores(), st.integers(1, 8))
def test_any_product_on_any_core(workload: GemmWorkload, core: Core, threads: int) -> None:
    for config in check_all(IMPLEMENTATION, workload, core, threads):
        check_registers(config, core)


@settings(max_examples=60, deadline=None)
@given(workloads, cores(), st.sampled_from(["m", "n", "k", "batch"]))
def test_more_work_takes_longer(workload: GemmWorkload, core: Core, size: str) -> None:
    # A single column of A has no unit stride and is copied first: two take less.
    assume(size != "k" or workload.k > 1)
    assert_more_work_takes_longer(IMPLEMENTATION, workload, doubled(workload, size), core)


@settings(max_examples=60, deadline=None)
@given(workloads, cores(), st.integers(2, 8))
def test_threads_cost_a_fork_at_most(workload: GemmWorkload, core: Core, threads: int) -> None:
    assume(threads <= core.cores)  # Others take turns, and push each other's operands out.
    one, several = (fastest(IMPLEMENTATION, workload, core, n) for n in (1, threads))
    assert_threads_cost_a_fork_at_most(one, several, core)


def test_other_types_are_refused() -> None:
    reason = IMPLEMENTATION.applies(GemmWorkload(8, 8, 8, types=Types.of("int8")), AVX512)
    assert reason == "no int8 micro-kernels for avx512"


# --- one product by hand: a 3x3 convolution of ResNet-50 as im2col would give it ----------------

PRODUCT = GemmWorkload(196, 256, 1152)
CONFIG = GemmConfig(mr=14, nr=32, mc=98, nc=128, kc=1152, loop_order=B_OUTSIDE, packing=IN_PLACE)
L2 = 2 * 2**20


def test_footprint_by_hand() -> None:
    sizes = {"Br": 32 * 1152 * 4, "Ac": 98 * 1152 * 4, "Bc": 128 * 1152 * 4}
    estimate = IMPLEMENTATION.estimate(PRODUCT, CONFIG, AVX512, 1)
    assert estimate.footprint == tuple((k, 2, v, v / L2) for k, v in sizes.items())
    exchanged = CONFIG.with_fields(loop_order=A_OUTSIDE)
    sizes = {"Ar": 14 * 1152 * 4, "Bc": 128 * 1152 * 4, "Ac": 98 * 1152 * 4}
    estimate = IMPLEMENTATION.estimate(PRODUCT, exchanged, AVX512, 1)
    assert estimate.footprint == tuple((k, 2, v, v / L2) for k, v in sizes.items())


def test_footprint_of_a_block_of_k() -> None:
    """Half of k: panels of half the size; the panel of A fits into L1."""
    halved = CONFIG.with_fields(kc=576, loop_order=A_OUTSIDE)
    estimate = IMPLEMENTATION.estimate(PRODUCT, halved, AVX512, 1)
    assert estimate.footprint[0] == ("Ar", 1, 14 * 576 * 4, 14 * 576 * 4 / 49152)


def test_time_of_the_fmas_by_hand() -> None:
    """14 divides 196 and 32 divides 256: whole blocks only."""
    estimate = IMPLEMENTATION.estimate(PRODUCT, CONFIG, AVX512, 1)
    vectors = 196 * 256 * 1152 / 16
    assert estimate.cycles["fma"] == pytest.approx(vectors / 2 / FMA_EFFICIENCY)
    step = late(14 / FMA_EFFICIENCY + loads(14, 2), AVX512.fma_latency)
    beside = vectors / 28 * (step - 14 / FMA_EFFICIENCY)
    assert estimate.cycles["loads and edges"] == pytest.approx(beside)
    assert estimate.cycles["packing"] == estimate.cycles["fork"] == 0
    half = IMPLEMENTATION.estimate(PRODUCT, CONFIG, AVX512, 2)
    assert half.cycles["fma"] == pytest.approx(estimate.cycles["fma"] / 2)


def test_packing_is_paid_once_per_block_of_columns() -> None:
    packed = CONFIG.with_fields(packing=PACKED)
    twice = IMPLEMENTATION.estimate(PRODUCT, packed, AVX512, 1).cycles["packing"]
    once = IMPLEMENTATION.estimate(PRODUCT, packed.with_fields(nc=256), AVX512, 1).cycles["packing"]
    assert twice == pytest.approx(2 * once)
    # A store a cycle, and a line from L2.
    vector = LOSS * (1 + 64 / AVX512.cache(2).bytes_per_cycle)
    assert once == pytest.approx(196 * 1152 / 16 * vector)


def test_partial_sums_are_stored_and_loaded() -> None:
    whole, halves = (
        IMPLEMENTATION.estimate(PRODUCT, CONFIG.with_fields(kc=kc), AVX512, 1) for kc in (1152, 576)
    )
    assert halves.cycles["calls"] > 2 * whole.cycles["calls"]


def test_rows_a_way_apart_compete_for_the_first_level() -> None:
    """4 KiB is the size of a way of L1: read in place, no two rows of A keep their lines there."""

    def per_step(k: int, layout: str) -> float:
        config = CONFIG.with_fields(mr=28, nr=16, mc=84, kc=k, packing=layout)
        workload = GemmWorkload(196, 256, k)
        return IMPLEMENTATION.estimate(workload, config, AVX512, 1).cycles["L2"] / k

    # Else a tenth of the panels' way shows.
    assert per_step(1040, IN_PLACE) == pytest.approx(per_step(1040, PACKED))
    assert per_step(1024, IN_PLACE) > 5 * per_step(1040, IN_PLACE)


@pytest.mark.parametrize("size", [512, 768, 1024, 1536])
def test_products_on_narrow_vectors_have_accumulators_to_spare(size: int) -> None:
    """By 4x16 and 2x32 blocks, 8 accumulators, they take 1.1 to 1.4 times as long on Zen 3."""
    choice = Strategy(Core.named("zen3"), 1, constraints=Constraints(only=("gemm",)))
    found = choice.choose(GemmWorkload(size, size, size)).config
    assert (found.mr, found.nr) == (6, 16)


def test_panels_that_fill_the_first_level_do_not_stay_in_it() -> None:
    """Two thirds of L1 stay; panels of all of it cost next to what streams through it does."""

    def per_step(kc: int) -> float:
        config = CONFIG.with_fields(mr=5, nr=16, mc=200, kc=kc, packing=PACKED)
        workload = GemmWorkload(200, 256, kc)
        return IMPLEMENTATION.estimate(workload, config, Core.named("zen3"), 1).cycles["L2"] / kc

    assert per_step(192) == pytest.approx(per_step(256))
    assert per_step(256) < 0.8 * per_step(380) < 0.8 * per_step(1024)


def test_few_rows_run_at_the_speed_of_memory() -> None:
    """The last layer of VGG: 103 million multiplications, and a weight from memory for each."""
    layer = GemmWorkload(1, 4096, 25088)
    estimate = fastest(IMPLEMENTATION, layer, AVX512, 1)
    stream = 4 * 4096 * 25088 / (0.08 * 64)  # bytes over bytes per cycle
    assert estimate.cycles["beyond L2"] + estimate.cycles["fma"] >= 0.9 * stream
    assert estimate.peak_fraction < 0.1


def test_weights_in_fewer_bytes_are_asked_for_as_far_ahead_as_a_core_wants() -> None:
    for name in ("zen3", "zen4"):
        core = Core.named(name)
        for dtype, size in (("bfloat16", 2), ("int8", 1)):
            layer = GemmWorkload(1, 4096, 4096, types=Types.stored(dtype))
            distances = {(c.prefetch, c.prefetch_bytes) for c in configs(layer, core, 1)}
            assert distances == {(1, core.ahead_bytes // size)}


def test_a_cache_that_threads_share_holds_one_copy() -> None:
    """B of 1.5 MB in the 2 MB of four cores: two threads do not need it twice."""
    board = Core.named("cortex-a72")
    workload = GemmWorkload(100, 96, 1024)  # 0.8 MB in all, L2 has 1 MiB
    one, two = (fastest(IMPLEMENTATION, workload, board, threads) for threads in (1, 2))
    assert two.seconds < one.seconds


def test_panels_come_from_memory_whole() -> None:
    """1000 columns are 1056 in panels of 96 and 1008 in panels of 48."""
    product = GemmWorkload(1, 1000, 4096)

    def beyond(nr: int) -> float:
        config = CONFIG.with_fields(mr=1, nr=nr, mc=1, nc=1056, kc=4096)
        cycles = IMPLEMENTATION.estimate(product, config, AVX512, 1).cycles
        return sum(cycles.values())

    assert beyond(96) / beyond(48) == pytest.approx(1056 / 1008, rel=0.015)


def test_rows_a_power_of_two_apart_leave_sets_out() -> None:
    """L2 of 1 MiB in 8 ways: rows of 1 KiB every 8 KiB use an eighth of each way."""
    core = Core.named("zen4")
    assert taken_bytes(core, 2, 192 * 1024, run=1024, stride=8192) == 8 * 192 * 1024
    assert taken_bytes(core, 2, 192 * 1024, run=8192, stride=8192) == 192 * 1024
    assert taken_bytes(core, 2, 192 * 1024, run=1024, stride=8192 + 64) == 192 * 1024


def test_a_is_packed_where_its_rows_share_sets() -> None:
    """The same block of A stays in L2 packed, and in place of rows of 2000 elements."""
    core = Core.named("haswell")

    def seconds(k: int, packing: str) -> float:
        config = GemmConfig(
            mr=6, nr=16, mc=96, nc=2048, kc=250, loop_order="B3A2C0", packing=packing
        )
        return IMPLEMENTATION.estimate(GemmWorkload(2000, 2000, k), config, core, 1).seconds

    assert seconds(2048, "in place") > 1.05 * seconds(2048, "packed")
    # Parts of rows in place wait for their lines, which costs as much as packing them.
    assert seconds(2000, "in place") < 1.02 * seconds(2000, "packed")


def test_rows_of_signs_on_other_pages_count_once() -> None:
    """16 MB of sums: what their rows wait for is not added to the way of their lines again."""
    core, product = Core.named("zen4"), GemmWorkload(2048, 2048, 64, types=BITS)
    config = GemmConfig(
        mr=4, nr=64, mc=2048, nc=2048, kc=64, loop_order=B_OUTSIDE, packing=IN_PLACE
    )
    cycles = IMPLEMENTATION.estimate(product, config, core, 1).cycles
    assert cycles["rows of C"] == FAR_ROW_CYCLES * 2048 * 2048 / 64
    assert cycles["beyond L2"] < 2048 * 2048 * 4 * beyond_l2_cycles(core, 3)


def test_wide_panels_queue_for_l2() -> None:
    """1024x1024x1024: 30 ms with 2x128 blocks, 12.7 with 13x32; a faster L2 closes the gap."""
    product = GemmWorkload(1024, 1024, 1024)

    def factor(rate: float) -> float:
        caches = (AVX512.caches[0], dataclasses.replace(AVX512.cache(2), bytes_per_cycle=rate))
        core = dataclasses.replace(AVX512, caches=(*caches, *AVX512.caches[2:]))
        low, tall = (
            GemmConfig(mr=mr, nr=nr, mc=512, nc=1024, kc=512, loop_order=B_OUTSIDE, packing=PACKED)
            for mr, nr in ((2, 128), (13, 32))
        )
        times = [IMPLEMENTATION.estimate(product, c, core, 1).seconds for c in (low, tall)]
        return times[0] / times[1]

    assert factor(48) > 2
    assert factor(400) < 1.3


def test_parts_of_rows_of_a_in_place_are_waited_for() -> None:
    """2000x2000x2000 by halves of k is packed, unless more lines may be in flight."""
    product = GemmWorkload(2000, 2000, 2000)

    def seconds(lines: int, packing: str, kc: int = 1000) -> float:
        core = dataclasses.replace(AVX512, lines_in_flight=lines)
        config = GemmConfig(
            mr=14, nr=32, mc=168, nc=2016, kc=kc, loop_order=B_OUTSIDE, packing=packing
        )
        return IMPLEMENTATION.estimate(product, config, core, 1).seconds

    assert seconds(8, IN_PLACE) > seconds(8, PACKED)
    assert seconds(64, IN_PLACE) < seconds(64, PACKED)
    assert seconds(8, PACKED) == seconds(64, PACKED)
    assert seconds(8, IN_PLACE, 2000) < seconds(8, PACKED, 2000)


def test_bytes_of_many_rows_in_place_come_late_where_nothing_follows_rows() -> None:
    """1024x1024x1024 on Zen 4, of the peak: 0.89 with 27x16, 0.94 with 13x32; fp32 as fast."""
    zen4 = Core.named("zen4")
    assert not zen4.follows_rows

    def apart(mr: int, nr: int, core: Core, packing: str = IN_PLACE, **other: object) -> float:
        size = int(other.pop("size", 1024))
        product = GemmWorkload(size, size, size, **other)
        config = GemmConfig(
            mr=mr, nr=nr, ks=4 if other else 1, mc=38 * mr, nc=512, kc=size, packing=packing
        ).with_fields(loop_order=A_OUTSIDE)
        return IMPLEMENTATION.estimate(product, config, core, 1).cycles["rows apart"]

    of_bytes = {"types": Types("uint8", "int8", "int32", "int32")}
    assert apart(27, 16, zen4, **of_bytes) > 10 * apart(13, 32, zen4, **of_bytes) > 0
    assert apart(12, 32, zen4, **of_bytes) == 0
    # Panels that stay in L1, packed ones, products that read A themselves, other prefetchers.
    assert apart(27, 16, zen4, size=512, **of_bytes) == 0
    assert apart(27, 16, zen4, PACKED, **of_bytes) == 0
    assert apart(27, 16, zen4) == 0
    assert apart(27, 16, dataclasses.replace(zen4, follows_rows=True), **of_bytes) == 0
