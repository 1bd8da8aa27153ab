"""Spaces hold everything that cost models offer, and no two names for one kernel."""

from __future__ import annotations

import pytest
from conv_workloads import LARGE_CHANNELS, convolutions
from effort import examples
from hypothesis import example, given
from hypothesis import strategies as st

from tvm_blislike.hardware import Core, names
from tvm_blislike.model.config import Config
from tvm_blislike.model.registry import Implementation, Template
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.schedules import implementations
from tvm_blislike.tuning.searches.narrowing import neighbour
from tvm_blislike.tuning.searches.walks import Walks

CORES = [Core.named(name) for name in names()]
GEMMS = st.builds(
    GemmWorkload,
    st.integers(1, 300),
    st.integers(1, 2000),
    st.integers(1, 3000),
    batch=st.sampled_from((1, 1, 3)),
)
DEPTHWISE = convolutions(channels=st.just(1), groups=[16, 24, 32], most_macs=1e8)
SMALL_GROUPS = convolutions(channels=st.sampled_from([4, 8]), groups=[4, 8], most_macs=1e8)
DENSE = convolutions(channels=LARGE_CHANNELS, image=60, most_macs=1e10)
WORKLOADS = st.one_of(GEMMS, DENSE, DEPTHWISE, SMALL_GROUPS)
THREADS = st.sampled_from((1, 2, 4))


def able(workload: Workload, core: Core) -> list[Implementation]:
    return [i for i in implementations(workload.kind) if not i.applies(workload, core)]


# Rows of 26 tiles: two blocks of 14 are no equal ones.
LONG_ROWS = Conv2dWorkload(1, 16, 1, 52, 16, 1, 2, padding=(0, 0, 1, 0))


@given(WORKLOADS, st.sampled_from(CORES), THREADS)
@example(LONG_ROWS, Core.named("apple-m1"), 2)
@examples(60)
def test_every_offer_is_in_the_space(workload: Workload, core: Core, threads: int) -> None:
    for implementation in able(workload, core):
        space = implementation.space(workload, core, threads)
        for config in implementation.configs(workload, core, threads):
            assert config in space


def test_offers_of_other_algorithms_are_in_no_space() -> None:
    workload, core = Conv2dWorkload(1, 32, 14, 14, 32, 3, 3, padding=(1, 1, 1, 1)), CORES[0]
    every = able(workload, core)
    assert len(every) > 2
    for implementation in every:
        space = implementation.space(workload, core, 1)
        for other in every:
            for config in other.configs(workload, core, 1):
                assert (config in space) == (other is implementation)


@given(WORKLOADS, st.sampled_from(CORES), THREADS, st.randoms(use_true_random=False))
@examples(60)
def test_every_configuration_can_be_estimated(
    workload: Workload, core: Core, threads: int, rng: object
) -> None:
    for implementation in able(workload, core):
        space = implementation.space(workload, core, threads)
        config = Walks([space], lambda _: True).draw(rng)
        for found in (config, neighbour(space, config, rng)):
            assert found in space
            estimate = implementation.estimate(workload, found, core, threads)
            assert 0 < estimate.seconds < 1e4
            assert implementation.workspace_bytes(workload, found, threads) >= 0


@pytest.mark.parametrize(
    "workload",
    [
        GemmWorkload(9, 20, 70),
        Conv2dWorkload(1, 16, 6, 6, 32, 3, 3, padding=(1, 1, 1, 1)),
        Conv2dWorkload(1, 3, 9, 9, 16, 3, 3),
        Conv2dWorkload(1, 32, 9, 9, 32, 3, 3, groups=32),
    ],
    ids=str,
)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_space_is_larger_than_the_offer_and_names_nothing_twice(
    workload: Workload, threads: int
) -> None:
    core = Core.named("haswell")
    for implementation in able(workload, core):
        every = list(implementation.space(workload, core, threads))
        assert len(set(every)) == len(every)
        assert len(every) > 2 * len(set(implementation.configs(workload, core, threads)))
        assert {config.implementation for config in every} == {implementation.name}


def test_a_template_without_a_space_has_what_it_offers() -> None:
    offered = [Config(implementation="mine", mr=mr) for mr in (1, 2)]
    unused = lambda *_: None  # noqa: E731
    mine = Template("mine", "gemm", unused, lambda *_: offered, *[unused] * 6)
    assert list(mine.space(GemmWorkload(1, 1, 1), CORES[0], 1)) == offered
