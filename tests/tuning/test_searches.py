"""The searches in whole spaces, on a landscape whose optimum is known."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from statistics import mean
from types import SimpleNamespace

import pytest
from made import CORE, STRATEGY, WORKLOADS, MadeRunner, Silent, record, tasks

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.gemm.config import GemmConfig as Config
from tvm_blislike.model.space import Axis, Space, even_parts, listed, single, unrolls
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.records import files
from tvm_blislike.records.book import RecordBook
from tvm_blislike.schedules import get_implementation
from tvm_blislike.tuning.measure import Outcome
from tvm_blislike.tuning.search import Search
from tvm_blislike.tuning.searches import IN_WHOLE_SPACE, search_named
from tvm_blislike.tuning.searches.narrowing import MOST_CHANGES, neighbour
from tvm_blislike.tuning.searches.walks import Walks
from tvm_blislike.tuning.searches.whole_space import BEST, ROUND
from tvm_blislike.tuning.sweep import Limits, Sweep

FIELDS = ("mr", "nr", "mc", "nc", "kc")
OPTIMUM = (3, 5, 2, 7, 4)
LANDSCAPE = Space(Config(), tuple(single(f, lambda _: range(1, 9)) for f in FIELDS))
SIZE = 8 ** len(FIELDS)
CONV = Conv2dWorkload(1, 64, 14, 14, 64, 3, 3, padding=(1, 1, 1, 1))


def seconds(config: Config) -> float:
    """Return 1 for the optimum, more for each power of two that a field is away from it."""
    ratios = (max(1, getattr(config, f, 0)) / best for f, best in zip(FIELDS, OPTIMUM, strict=True))
    return 1 + sum(abs(math.log2(ratio)) for ratio in ratios)


class MadeStrategy:
    """Has the landscape and no favourite; allows what it is told to."""

    core, threads = CORE, 1

    def __init__(self, spaces: Sequence[Space] = (LANDSCAPE,), **options: object) -> None:
        self._spaces = spaces
        self._choice = options.get("choice")
        self._allows = options.get("allows", lambda config: True)

    def spaces(self, workload: object) -> Sequence[Space]:
        return self._spaces

    def choose(self, workload: object) -> SimpleNamespace:
        return SimpleNamespace(config=self._choice)

    def allows(self, workload: object, config: Config) -> bool:
        return self._allows(config)

    def seconds(self, workload: object, config: Config) -> float:
        return 1.0

    def moving(self, workload: object, config: Config) -> float:
        return 0.0


def made(name: str, seed: int = 0, strategy: object = None) -> Search:
    """Return a search of the landscape."""
    return search_named(name, seed=seed)(strategy or MadeStrategy(), WORKLOADS[0])


def measured(
    search: Search, most: int, status: Callable[[Config], str] = lambda config: "ok"
) -> list[Config]:
    """Measure up to `most` proposals, in groups of 8; return all in order."""
    found: list[Config] = []
    while len(found) < most:
        proposals = [p.config for p in search.propose(min(8, most - len(found)))]
        if not proposals:
            break
        search.tell([Outcome(c, status(c), (seconds(c),)) for c in proposals])
        found += proposals
    return found


def best_of(name: str, most: int) -> list[float]:
    """Return the best time after `most` measurements for each of 8 seeds."""
    return [min(map(seconds, measured(made(name, seed), most))) for seed in range(8)]


def test_each_comes_close_with_few_of_all_measurements() -> None:
    every = sorted(map(seconds, LANDSCAPE))
    assert len(every) == SIZE and every[0] == 1
    random, genetic, narrowing = (best_of(name, 256) for name in IN_WHOLE_SPACE)
    # A hundredth of the space: by luck the best percent, by looking back far better.
    assert max(random) <= every[SIZE // 50] and mean(random) < every[SIZE // 100]
    assert mean(genetic) < every[SIZE // 1000] and max(genetic) < mean(random)
    assert sum(found == 1 for found in narrowing) > 5
    assert mean(narrowing) < mean(genetic) < mean(random)


@pytest.mark.parametrize("name", IN_WHOLE_SPACE)
def test_the_seed_decides(name: str) -> None:
    one, same, other = (measured(made(name, seed), 100) for seed in (7, 7, 8))
    assert one == same != other
    elsewhere = search_named(name, seed=7)(MadeStrategy(), WORKLOADS[1])
    assert measured(elsewhere, 100) != one


@pytest.mark.parametrize("name", IN_WHOLE_SPACE)
def test_nothing_twice_and_everything_once_in_the_end(name: str) -> None:
    small = Space(Config(), LANDSCAPE.axes[:3])
    found = measured(made(name, 0, MadeStrategy([small])), 10**6)
    assert len(found) == len(set(found)) == 8**3
    assert set(found) == set(small)


@pytest.mark.parametrize("name", IN_WHOLE_SPACE)
def test_what_is_not_allowed_is_never_proposed(name: str) -> None:
    strategy = MadeStrategy(allows=lambda config: (config.mr + config.nr) % 2)
    found = measured(made(name, 0, strategy), 300)
    assert len(found) == 300 and all((c.mr + c.nr) % 2 for c in found)
    assert measured(made(name, 0, MadeStrategy(allows=lambda config: False)), 300) == []


@pytest.mark.parametrize("name", IN_WHOLE_SPACE)
def test_what_failed_is_no_example(name: str) -> None:
    # The fastest of all do not run.
    found = measured(made(name), 256, lambda c: "failed" if c.mr in (2, 3, 4) else "ok")
    late = found[128:]
    share = sum(c.mr in (2, 3, 4) for c in late) / len(late)
    assert share < (0.5 if name == "random" else 0.3)


@pytest.mark.parametrize("name", IN_WHOLE_SPACE)
def test_the_models_choice_comes_first_once(name: str) -> None:
    choice = Config(mr=8, nr=8, mc=8, nc=8, kc=8)
    strategy = MadeStrategy(choice=choice)
    assert measured(made(name, 0, strategy), 50).index(choice) == 0
    known = made(name, 0, strategy)
    known.tell([Outcome(choice, "ok", (1.0,))])
    assert choice not in measured(known, 50)


@pytest.mark.parametrize("name", IN_WHOLE_SPACE)
def test_earlier_records_are_gone_on_from(name: str) -> None:
    earlier = measured(made(name), 64)
    resumed = made(name)
    resumed.tell([Outcome(c, "ok", (seconds(c),)) for c in earlier])
    later = measured(resumed, 64)
    assert not {*earlier} & {*later}
    if name != "random":
        assert mean(map(seconds, later)) < mean(map(seconds, earlier[:ROUND]))


def test_genetic_rounds_have_the_values_of_the_best_only() -> None:
    found = measured(made("genetic"), 2 * ROUND)
    first, second = found[:ROUND], found[ROUND:]
    parents = sorted(first, key=seconds)[:BEST]
    for field in FIELDS:
        assert {getattr(c, field) for c in second} <= {getattr(c, field) for c in parents}


def test_narrowing_rounds_are_like_the_best() -> None:
    found = measured(made("narrowing"), 2 * ROUND)
    parents = sorted(found[:ROUND], key=seconds)[:BEST]

    def changes(one: Config, other: Config) -> int:
        return sum(getattr(one, f) != getattr(other, f) for f in FIELDS)

    for config in found[ROUND:]:
        assert 1 <= min(changes(config, parent) for parent in parents) <= MOST_CHANGES


def test_choices_that_no_longer_fit_become_the_nearest() -> None:
    axes = (
        single("mr", lambda _: (4, 6)),
        single("mc", lambda c: [tiles * c.mr for tiles in range(1, 9)]),
    )
    space, rng = Space(Config(), axes), Random(0)
    start = Config(mr=4, mc=16)
    found = {neighbour(space, start, rng) for _ in range(200)}
    assert all(c in space for c in found)
    assert Config(mr=6, mc=18) in found


def test_walks_end_and_go_around_dead_ends() -> None:
    axes = (
        single("mr", lambda _: range(4)),
        single("nr", lambda c: range(c.mr)),
        single("kc", lambda c: (1, 2) if c.nr != 1 else ()),
    )
    spaces = [Space(Config(implementation=name), axes) for name in "ab"]
    walks, rng = Walks(spaces, lambda config: True), Random(1)
    found = list(iter(partial(walks.draw, rng), None))
    assert sorted(map(str, found)) == sorted(str(c) for space in spaces for c in space)
    assert len(found) == 2 * 2 * (1 + 1 + 2)
    assert walks.draw(rng) is None


def test_a_space_knows_what_is_in_it() -> None:
    # Fields that no axis sets are the start's.
    assert Config(mr=1, nr=1, mc=1, nc=1, kc=8) in LANDSCAPE
    assert Config(mr=1, nr=1, mc=1, nc=1, kc=9) not in LANDSCAPE
    assert Config(mr=1, nr=1, unroll=1, mc=1, nc=1, kc=8) not in LANDSCAPE
    offered = [
        Config(mr=1),
        Config(mr=2, prefetch=1),
        Config(mr=1),
    ]
    assert list(listed(Config(), offered)) == offered[:2]
    assert Axis("block", ("mr", "nr"), lambda _: []).of(Config(mr=1, nr=2)) == (1, 2)


def test_values_of_common_axes() -> None:
    assert even_parts(7) == [1, 2, 3, 4, 7]
    assert [unrolls(steps) for steps in (1, 2, 3, 5)] == [[4], [1, 4], [1, 2, 4], [1, 2, 4, 8]]


@pytest.mark.parametrize("name", IN_WHOLE_SPACE)
def test_real_spaces_within_constraints(name: str) -> None:
    limits = Constraints(max_error=1e-6, max_workspace=100_000, without=("conv2d_im2col",))
    strategy = Strategy(CORE, 1, None, limits)
    found = measured(search_named(name, seed=3)(strategy, CONV), 100)
    assert len(set(found)) == 100
    for config in found:
        implementation = get_implementation(config.implementation)
        assert config.implementation != "conv2d_im2col"
        assert implementation.error_bound(CONV, config) <= 1e-6
        assert implementation.workspace_bytes(CONV, config, 1) <= 100_000
    exact = Strategy(CORE, 1, None, Constraints(max_error=0))
    assert {s.start.implementation for s in exact.spaces(CONV)} == {
        "conv2d_dataflow",
        "conv2d_direct",
        "conv2d_im2col",
    }


def test_other_layouts_cost_what_moving_images_takes() -> None:
    search = search_named("narrowing")(STRATEGY, CONV)
    choice = STRATEGY.choose(CONV).config
    (direct,) = (s for s in STRATEGY.spaces(CONV) if s.start.implementation == "conv2d_direct")
    usual, moved = (
        next(c for c in direct if (c.data_layout, c.out_layout) == layouts)
        for layouts in ((choice.data_layout, choice.out_layout), ("NHWC", "NHWC"))
    )
    # The other one is a little faster by itself.
    search.tell([Outcome(usual, "ok", (1e-4,)), Outcome(moved, "ok", (0.99e-4,))])
    assert search.best() == [usual, moved]
    known = [
        record(CONV, config=config, seconds=(seconds_,))
        for config, seconds_ in ((usual, 1e-4), (moved, 0.99e-4))
    ]
    assert Strategy(CORE, 1, records=RecordBook(known)).choose(CONV).config == usual
    assert Strategy(CORE, 1, records=RecordBook(known[1:])).choose(CONV).config == moved


@pytest.mark.parametrize("name", IN_WHOLE_SPACE)
def test_a_sweep_stops_goes_on_and_measures_the_best_again(name: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"

    def run(per_task: int) -> MadeRunner:
        runner = MadeRunner()
        book = RecordBook(files.read(path)[0] if path.exists() else [])
        make, write = search_named(name, seed=5), partial(files.append, path)
        sweep = Sweep(STRATEGY, make, runner, book, write, Silent(), Limits(per_task))
        sweep.run(tasks()[:1])
        return runner

    first = run(24).asked
    assert len(set(first)) == 24 and len(first) == 24 + 4
    second = run(40).asked
    assert len(set(second) - set(first)) == 16
    # Side by side: the four of the smallest mr, which is the runner's idea of time.
    assert sorted(c.mr for c in second[-4:]) == sorted(c.mr for c in {*first, *second})[:4]


def test_the_best_are_measured_again_when_time_ends_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, write = MadeRunner(), partial(files.append, tmp_path / "records.jsonl")
    limits = Limits(per_task=10**6, end=48, last=54)
    sweep = Sweep(
        STRATEGY, search_named("random"), runner, RecordBook(), write, Silent(), limits, batch=1
    )
    monkeypatch.setattr(time, "monotonic", lambda: sweep.measured)
    sweep.run(tasks())
    # Two groups of each of three layers; then the best four of a layer, until time is over.
    first, again = runner.asked[:48], runner.asked[48:]
    assert len(set(first)) == 48
    assert len(again) == 8 and {*again} <= {*first}


def test_spaces_are_not_listed_beforehand() -> None:
    large = Space(
        Config(),
        tuple(single(f, lambda _: range(1, 1000)) for f in FIELDS),
    )
    walks = Walks([large], lambda config: True)
    assert len({*islice(iter(partial(walks.draw, Random(0)), None), 50)}) == 50
