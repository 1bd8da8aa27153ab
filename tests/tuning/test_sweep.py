"""The sweep with made-up measurements: order, limits, resuming, stopping, kills."""

from __future__ import annotations

import math
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from effort import EFFORT
from made import CORE, STRATEGY, WORKLOADS, MadeRunner, Silent, record, tasks

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.errors import UsageError
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.records import files
from tvm_blislike.records.book import RecordBook
from tvm_blislike.tuning import sweep as sweep_module
from tvm_blislike.tuning.interrupt import Interrupt
from tvm_blislike.tuning.measure import Outcome
from tvm_blislike.tuning.search import (
    exhaustive_search,
    model_search,
)
from tvm_blislike.tuning.searches import search_named
from tvm_blislike.tuning.sweep import Limits, Sweep

HERE = Path(__file__).parent
CONV = Conv2dWorkload(1, 64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1))


def sweep(path: Path, runner: MadeRunner | None = None, **options: object) -> Sweep:
    """Return a sweep that follows and extends a file."""
    book = RecordBook(files.read(path)[0] if path.exists() else [])
    write = partial(files.append, path)
    return Sweep(STRATEGY, model_search, runner or MadeRunner(), book, write, Silent(), **options)


def test_the_models_choice_comes_first_then_every_implementation() -> None:
    proposals = model_search(STRATEGY, CONV).propose(8)
    assert proposals[0].config == STRATEGY.choose(CONV).config
    limit = 3 * proposals[0].predicted_seconds
    close = {c.implementation for c, seconds in STRATEGY.offers(CONV) if seconds < limit}
    assert {p.config.implementation for p in proposals[: len(close)]} == close
    assert len({p.config for p in proposals}) == 8
    rest = [p.predicted_seconds for p in proposals[len(close) + 1 :]]
    assert rest == sorted(rest)


def test_the_model_search_ends_with_every_kind_of_kernel() -> None:
    def kinds(search: object) -> set[object]:
        return {p.config.kind for p in search.propose(10**6)}

    wanted = {c.kind for c, _ in STRATEGY.offers(CONV)}
    assert kinds(model_search(STRATEGY, CONV)) == wanted
    everything = exhaustive_search(STRATEGY, CONV).propose(10**6)
    assert {p.config.kind for p in everything} == wanted
    assert len(everything) == len(wanted)


def test_constraints_limit_what_is_measured() -> None:
    strict = Strategy(CORE, 1, None, Constraints(max_error=0))
    proposals = model_search(strict, CONV).propose(1000)
    assert proposals and not any("winograd" in p.config.implementation for p in proposals)


def test_unknown_searches_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown search"):
        search_named("modell")


def test_each_task_gets_its_measurements(tmp_path: Path) -> None:
    path, runner = tmp_path / "records.jsonl", MadeRunner()
    done = sweep(path, runner)
    done.run(tasks())
    counts = Counter(r.workload for r in files.read(path)[0])
    assert counts == dict.fromkeys(WORKLOADS, 8)
    assert done.measured == len(runner.asked) == 24
    for task in tasks():
        best = done.best(task)
        assert best.config.mr == min(r.config.mr for r in done.usable(task))
    assert done.watcher.told.count("finished") == 3


def test_a_second_run_measures_nothing_again(tmp_path: Path) -> None:
    path, runner = tmp_path / "records.jsonl", MadeRunner()
    sweep(path).run(tasks())
    sweep(path, runner).run(tasks())
    assert not runner.asked
    more = sweep(path, runner, limits=Limits(per_task=10))
    more.run(tasks())
    assert more.measured == 6
    assert all(count == 1 for count in Counter(r.config for r in files.read(path)[0]).values())


@pytest.mark.parametrize("trials", [1, 8, 9])
def test_trials_limit_the_measurements(tmp_path: Path, trials: int) -> None:
    path = tmp_path / "records.jsonl"
    done = sweep(path, limits=Limits(trials=trials))
    done.run(tasks())
    assert done.measured == trials == len(files.read(path)[0])


def test_nothing_begins_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "records.jsonl"
    over = sweep(path, limits=Limits(end=time.monotonic()))
    over.run(tasks())
    assert over.measured == 0
    soon = sweep(path, limits=Limits(end=9))
    monkeypatch.setattr(time, "monotonic", lambda: soon.measured)
    soon.run(tasks())
    assert soon.measured == 16


def test_batches_are_as_large_as_there_is_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(MadeRunner):
        """Takes ten seconds to build each group, then measures all."""

        def measure(self, groups, wait):
            clock[0] += 10.0 * len(groups)
            sizes.append(len(groups))
            yield from super().measure(groups, wait)

    def run(end: float | None) -> list[int]:
        sizes.clear()
        clock[0] = 0.0
        path = tmp_path / f"{end}.jsonl"
        sweep(path, Slow(), limits=Limits(end=end), batch=3, group=2).run(tasks())
        return list(sizes)

    clock, sizes = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sweep_module, "_FIRST_GROUPS", 1)
    # Three layers of four groups; then those of each layer meet again.
    assert run(None) == [3] * 5
    assert run(math.inf) == [1, 3, 3, 3, 3, 2]
    # After the third batch 25 seconds are left, after the fourth 5.
    assert run(95.0) == [1, 3, 3, 2, 1]


def test_wrong_and_failed_are_kept_apart_and_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    proposals = model_search(STRATEGY, WORKLOADS[0]).propose(8)
    one, two = sorted({p.config.mr for p in proposals})[:2]
    bad = {one: "wrong", two: "failed"}
    first = sweep(path, MadeRunner(bad=bad))
    first.run(tasks())
    statuses = Counter(r.status for r in files.read(path)[0])
    assert all(statuses[status] for status in ("ok", "wrong", "failed"))
    assert all(r.config.mr not in bad for t in tasks() for r in first.usable(t))
    again = MadeRunner()
    sweep(path, again).run(tasks())
    assert not again.asked


def test_a_sweep_on_emulated_boards_goes_on_from_its_own_records(tmp_path: Path) -> None:
    path, runner = tmp_path / "records.jsonl", MadeRunner()
    sweep(path).run(tasks())
    emulated = sweep(path, runner, context="emulated")
    emulated.run(tasks())
    assert emulated.measured == 24 and emulated.best(tasks()[0]).context == "emulated"
    sweep(path, runner, context="emulated").run(tasks())
    assert len(runner.asked) == 24
    assert sweep(path).best(tasks()[0]).context == "cold"


def test_an_emulated_board_among_others_is_labelled(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    sweep(path, MadeRunner(emulates=True)).run(tasks())
    assert {r.context for r in files.read(path)[0]} == {"emulated"}
    assert sweep(path).best(tasks()[0]) is None


def test_what_several_groups_found_is_measured_side_by_side(tmp_path: Path) -> None:
    path, runner = tmp_path / "records.jsonl", MadeRunner()
    done = sweep(path, runner, limits=Limits(per_task=20))
    done.run(tasks()[:1])
    assert len(runner.asked) == 20 + 4
    repeated = [c for c, count in Counter(runner.asked).items() if count > 1]
    usable = sorted(done.usable(tasks()[0]), key=lambda r: r.median_seconds)
    assert {c.mr for c in repeated} == {r.config.mr for r in usable[:4]}


def test_a_search_hears_of_every_outcome(tmp_path: Path) -> None:
    heard: list[Outcome] = []

    class Listening:
        left = 3

        def propose(self, most: int) -> list[object]:
            self.left -= 1
            return model_search(STRATEGY, WORKLOADS[0]).propose(2) if self.left >= 0 else []

        def tell(self, outcomes: list[Outcome]) -> None:
            heard.extend(outcomes)

    listening = Listening()
    sweep_ = sweep(tmp_path / "records.jsonl")
    sweep_.make_search = lambda strategy, workload: listening
    sweep_.run(tasks()[:1])
    assert len(heard) == 6 + 4 - 2 and {o.status for o in heard} == {"ok"}


def test_a_stop_ends_it_and_keeps_everything_measured(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    stopped = sweep(path, batch=1)
    stopped.stopped = lambda: stopped.measured >= 8
    stopped.run(tasks())
    assert len(files.read(path)[0]) == stopped.measured == 8
    sweep(path).run(tasks())
    assert len(files.read(path)[0]) == 24


def test_the_first_interrupt_only_asks_the_second_one_stops() -> None:
    told = []
    # Ignored where the tests run in the background.
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(lambda: told.append("asked")) as interrupt:
        assert not interrupt.asked()
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked() and told == ["asked"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_amid_a_line_of_output_is_told_later() -> None:
    told = []

    def notify() -> None:
        told.append("asked")
        if len(told) == 1:
            raise RuntimeError("reentrant call")

    with Interrupt(notify) as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert told == ["asked"]
        assert interrupt.asked() and interrupt.asked()
        assert told == ["asked", "asked"]


_KILLED = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from pathlib import Path
from made import MadeRunner, tasks
from test_sweep import sweep
from tvm_blislike.tuning.sweep import Limits
print("ready", flush=True)
done = sweep(Path(sys.argv[3]), MadeRunner(0.02), limits=Limits(per_task=40), batch=2)
write = done.write
done.write = lambda records: (write(records), print(len(records), flush=True))
done.run(tasks())
"""


def test_killed_at_any_moment_it_loses_nothing_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    command = [sys.executable, "-c", _KILLED, str(HERE), str(HERE.parent), str(path)]
    rng = random.Random(3)
    confirmed = 0
    for _ in range(4 * EFFORT):
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        victim.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            victim.wait(rng.uniform(0, 0.15))
        victim.kill()
        confirmed += sum(int(line) for line in victim.stdout.read().split())
        victim.wait()
        # A write may have been finished and not yet confirmed.
        assert len(files.read(path)[0] if path.exists() else []) >= confirmed
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=True).returncode == 0
    good, _ = files.read(path)
    per_task = Counter(r.workload for r in good)
    assert all(count >= min(40, _offered(w)) for w, count in per_task.items())
    assert set(per_task) == set(WORKLOADS)


def _offered(workload: object) -> int:
    return len(model_search(STRATEGY, workload).propose(10**6))


def test_a_record_of_the_choice_itself_has_no_gain() -> None:
    made = record()
    assert made.config == STRATEGY.choose(WORKLOADS[0]).config
    assert math.isclose(made.predicted_seconds, STRATEGY.seconds(WORKLOADS[0], made.config))
