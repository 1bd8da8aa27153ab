"""Learning from records: what is learned, what is left alone, and who is refused."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import learned_machine as machine
import numpy as np
import pytest
from learned_machine import HELD_OUT, SEEN, some_configs
from made import CORE, STRATEGY, MadeRunner
from test_sweep import sweep

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.learned import Sample, load, save
from tvm_blislike.cost_models.learned.features import features
from tvm_blislike.cost_models.learned.model import _loss
from tvm_blislike.cost_models.roofline import clock_hz
from tvm_blislike.errors import InputError, ToolchainError, UsageError
from tvm_blislike.hardware import Core
from tvm_blislike.model.estimate import NEIGHBOURS
from tvm_blislike.model.workload import Workload
from tvm_blislike.records import files
from tvm_blislike.records.book import RecordBook
from tvm_blislike.tuning import learn
from tvm_blislike.tuning.search import learned_search
from tvm_blislike.tuning.searches import search_named
from tvm_blislike.tuning.sweep import Limits
from tvm_blislike.tuning.tasks import Task

OTHER = Core.named("zen4")
LEARNED = Strategy(CORE, 1, predictor=machine.model())


def candidates(workload: Workload) -> list[Sample]:
    """Return some candidates of a workload."""
    made = [machine.record(workload, c, 1.0) for c in some_configs(workload)]
    return [learn.candidate_of(record, CORE) for record in made]


def ranks(values: object) -> np.ndarray:
    return np.argsort(np.argsort(values))


def correlation(left: object, right: object) -> float:
    """Return Spearman's rank correlation of values without ties."""
    return float(np.corrcoef(ranks(left), ranks(right))[0, 1])


def test_what_the_analytical_model_lacks_is_learned() -> None:
    found = candidates(HELD_OUT)
    truth = [machine.seconds(HELD_OUT, c.config) for c in found]
    analytical = [c.seconds for c in found]
    learned = machine.model().seconds(found)
    assert correlation(learned, truth) > 0.98 > correlation(analytical, truth)
    assert np.median(np.abs(np.log(learned / truth))) < 0.03


def test_the_strategy_chooses_by_it_without_a_measurement() -> None:
    before, after = STRATEGY.choose(HELD_OUT).config, LEARNED.choose(HELD_OUT).config
    assert "winograd" in before.implementation and "winograd" not in after.implementation
    assert machine.seconds(HELD_OUT, after) < machine.seconds(HELD_OUT, before)
    assert "learned" in LEARNED.choose(HELD_OUT).reason


def test_options_for_other_layouts_are_corrected_too() -> None:
    for option in LEARNED.options(HELD_OUT):
        assert option.estimate.cycles["learned"] != 0
        assert option.seconds == LEARNED.seconds(HELD_OUT, option.config)


def test_a_corrected_estimate_adds_up() -> None:
    corrected = LEARNED.choose(HELD_OUT).estimate
    assert sum(corrected.cycles.values()) / clock_hz(CORE) == pytest.approx(corrected.seconds)
    peak = CORE.lanes() * CORE.fma_per_cycle * clock_hz(CORE) * corrected.seconds
    assert corrected.peak_fraction == pytest.approx(HELD_OUT.macs / peak)


def test_what_neighbours_cost_is_no_part_of_what_is_learned() -> None:
    """Kernels are measured without the moves that im2col's images need around them."""
    configs = [c for c in some_configs(HELD_OUT, 400) if c.implementation == "conv2d_im2col"]
    assert configs
    for config in configs:
        candidate = learn.candidate_of(machine.record(HELD_OUT, config, 1.0), CORE)
        moves = candidate.estimate.cycles[NEIGHBOURS] / clock_hz(CORE)
        assert moves > 0
        assert candidate.seconds == pytest.approx(candidate.estimate.seconds - moves)
        (kernel,) = machine.model().seconds([candidate])
        assert LEARNED.seconds(HELD_OUT, config) == pytest.approx(kernel + moves)


def test_without_records_of_an_implementation_its_order_is_the_analytical_one() -> None:
    known = [r for r in machine.records() if r.config.implementation != "conv2d_im2col"]
    model = learn.train(known, CORE)
    found = [c for c in candidates(HELD_OUT) if c.config.implementation == "conv2d_im2col"]
    corrections = model.seconds(found) / [c.seconds for c in found]
    assert corrections == pytest.approx(np.exp(model.offset))
    ratios = [r.median_seconds / learn.candidate_of(r, CORE).seconds for r in known]
    assert corrections[0] == pytest.approx(np.median(ratios))


def test_records_that_agree_with_the_analytical_model_change_nothing() -> None:
    agreeing = [
        machine.record(r.workload, r.config, learn.candidate_of(r, CORE).seconds)
        for r in machine.records()
    ]
    found = candidates(HELD_OUT)
    learned = learn.train(agreeing, CORE).seconds(found)
    assert learned == pytest.approx([c.seconds for c in found], rel=1e-3)


def test_the_same_records_in_any_order_give_the_same_model(tmp_path: Path) -> None:
    records = list(machine.records())
    random.Random(1).shuffle(records)
    for name, model in (("one", machine.model()), ("two", learn.train(records, CORE))):
        save(model, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    other = learn.train(records, CORE, seed=1)
    found = candidates(HELD_OUT)
    assert (other.seconds(found) != machine.model().seconds(found)).any()


def test_of_several_records_of_a_configuration_the_latest_counts() -> None:
    early = [
        replace(r, seconds=(1.0,), date="2020-01-01T00:00:00+00:00") for r in machine.records()
    ]
    wrong = [
        replace(r, status="wrong", date="2130-01-01T00:00:00+00:00") for r in machine.records()[:3]
    ]
    used = learn.usable([*machine.records(), *early, *wrong], CORE)
    assert len(used) == len(machine.records()) - 3
    assert all(r.median_seconds < 1.0 for r in used)


def test_records_of_no_use_are_left_out() -> None:
    first, *_ = machine.records()
    assert len(learn.usable([first, replace(first, context="model")], CORE)) == 2
    for fields in (
        {"facts": "other"},
        {"context": "warm"},
        {"status": "failed", "seconds": ()},
        {"versions": {"tvm-blislike": "0.0.0", "apache-tvm": "0.1.0"}},
    ):
        assert learn.usable([replace(first, **fields)], CORE) == []
    gone = [replace(first, config=first.config.with_fields(implementation="conv2d_gone"))]
    assert learn.train([*machine.records(), *gone], CORE).facts == machine.model().facts


def test_dropped_configurations_have_right_times_too() -> None:
    dropped = [replace(r, status="dropped", reason="slower") for r in machine.records()]
    assert learn.train(dropped, CORE).facts.records == len(dropped)


def test_times_inside_a_model_are_told_from_those_of_kernels_by_themselves() -> None:
    inside = [
        replace(r, context="model", seconds=tuple(1.5 * s for s in r.seconds))
        for r in machine.records()
    ]
    model = learn.train([*machine.records(), *inside], CORE)
    assert model.facts.in_model and not machine.model().facts.in_model
    found = candidates(HELD_OUT)
    ratio = model.seconds([replace(c, in_model=True) for c in found]) / model.seconds(found)
    assert np.median(ratio) == pytest.approx(1.5, rel=0.05)
    strategy = Strategy(CORE, 1, predictor=model)
    (one,) = model.seconds([replace(found[0], in_model=True)])
    moves = found[0].estimate.cycles.get(NEIGHBOURS, 0) / clock_hz(CORE)
    assert strategy.seconds(HELD_OUT, found[0].config) == pytest.approx(one + moves)


def test_clocks_that_move_between_groups_matter_less_than_what_differs_in_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = candidates(HELD_OUT)
    truth = [machine.seconds(HELD_OUT, c.config) for c in found]
    factors = dict(zip(SEEN, (0.4, 2.5, 1.0, 3.0, 0.5), strict=True))
    unsteady = [
        replace(r, seconds=tuple(factors[r.workload] * s for s in r.seconds))
        for r in machine.records()
    ]

    def typical() -> float:
        models = [learn.train(unsteady, CORE, seed) for seed in range(5)]
        return float(np.median([correlation(m.seconds(found), truth) for m in models]))

    weighed = typical()
    monkeypatch.setattr("tvm_blislike.cost_models.learned.model.GROUP_WEIGHT", 1.0)
    assert weighed > typical() + 0.1


def test_errors_count_relative_to_how_much_the_candidates_of_a_group_differ() -> None:
    alike, apart, alone = [0.00, 0.02, 0.04], [0.0, 1.0, 2.0], [5.0]
    times, groups = np.array(alike + apart + alone), np.array([0, 0, 0, 1, 1, 1, 2])
    target = np.zeros_like(times)
    errors = np.array([0.01, -0.01, 0.0] * 2 + [0.0])
    gradient, hessian = _loss(target, times, groups)(target + errors, None)
    assert np.all(hessian[:3] == hessian[0]) and np.all(hessian[3:6] == hessian[3])
    assert hessian[0] > 50 * hessian[3]
    assert np.average(hessian) == pytest.approx(1.0)
    np.testing.assert_allclose(gradient[:2] / hessian[0], gradient[3:5] / hessian[3])
    # A candidate that nothing was compared with is no more certain than others.
    assert hessian[3] < hessian[6] < hessian[0]


def test_candidates_that_took_turns_are_recognized() -> None:
    first, second = machine.records()[:2]
    later, other = machine.records()[0], machine.records()[-1]
    records = [
        replace(first, date="2026-01-01T00:00:00.000+00:00"),
        replace(other, date="2026-01-01T00:00:00.001+00:00"),
        replace(second, date="2026-01-01T00:00:00.002+00:00"),
        replace(later, date="2026-01-01T00:01:00.000+00:00"),
        replace(first, date="2026-01-01T00:00:00.003+00:00", context="model"),
    ]
    numbers = learn.groups_of(records)
    assert numbers[0] == numbers[2] and len(set(numbers)) == 4


@pytest.mark.parametrize("count", [0, 29])
def test_too_few_records_are_refused(count: int) -> None:
    with pytest.raises(UsageError, match=f"^{count} usable records.*too few") as raised:
        learn.train(machine.records()[:count], CORE)
    assert "tune" in raised.value.hint


def test_records_of_another_core_teach_nothing() -> None:
    with pytest.raises(UsageError, match=f"0 usable records of {OTHER.name}"):
        learn.train(machine.records(), OTHER)


def test_another_core_or_number_of_threads_is_refused() -> None:
    for strategy, match in (
        (Strategy(OTHER, 1, predictor=machine.model()), f"is of {CORE.name}; {OTHER.name}"),
        (Strategy(CORE, 2, predictor=machine.model()), "with 1 threads, not with 2"),
    ):
        with pytest.raises(UsageError, match=match):
            strategy.choose(HELD_OUT)


def test_the_features_have_no_loops_and_are_finite() -> None:
    for workload in SEEN:
        for candidate in candidates(workload):
            found = features(candidate)
            assert np.isfinite(list(found.values())).all()
            assert f"implementation={candidate.config.implementation}" in found


def test_a_file_gives_back_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    save(machine.model(), path)
    again, found = load(path), candidates(HELD_OUT)
    assert again.facts == machine.model().facts
    assert (again.seconds(found) == machine.model().seconds(found)).all()
    save(again, tmp_path / "again.json")
    assert path.read_bytes() == (tmp_path / "again.json").read_bytes()


def test_the_file_is_plain_json_of_xgboost(tmp_path: Path) -> None:
    import xgboost

    path = tmp_path / "model.json"
    save(machine.model(), path)
    assert "learner" in json.loads(path.read_text())
    plain = xgboost.Booster(model_file=path)
    assert plain.num_boosted_rounds() == machine.model().booster.num_boosted_rounds()


def _edited(content: bytes, **fields: object) -> bytes:
    document = json.loads(content)
    attributes = document["learner"]["attributes"]
    attributes["tvm_blislike"] = json.dumps(json.loads(attributes["tvm_blislike"]) | fields)
    return json.dumps(document).encode()


def test_what_is_no_learned_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    with pytest.raises(InputError, match=r"cannot read.*model\.json: No such file"):
        load(path)
    save(machine.model(), path)
    whole = path.read_bytes()
    bad = [
        b"",
        b"{}",
        b"[1]",
        b"\x80\x04K\x01.",
        whole[: len(whole) // 2],
        _edited(whole, facts={}),
    ]
    for content in bad:
        path.write_bytes(content)
        with pytest.raises(InputError, match="is no learned model"):
            load(path)
    path.write_bytes(_edited(whole, features=0))
    with pytest.raises(InputError, match="another version"):
        load(path)


def test_without_xgboost_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(ToolchainError, match="needs xgboost") as raised:
        learn.train(machine.records(), CORE)
    assert "tvm-blislike[learned]" in raised.value.hint
    assert STRATEGY.choose(HELD_OUT)


def test_constraints_hold_for_what_was_learned() -> None:
    limits = Constraints(without=("conv2d_direct", "conv2d_dataflow"), max_error=0)
    strategy = Strategy(CORE, 1, constraints=limits, predictor=machine.model())
    assert strategy.choose(HELD_OUT).config.implementation == "conv2d_im2col"
    search = learned_search(machine.model())(Strategy(CORE, 1, constraints=limits), HELD_OUT)
    assert {p.config.implementation for p in search.propose(1000)} == {"conv2d_im2col"}


def test_the_learned_search_measures_the_models_choice_then_its_own_favourites() -> None:
    first, *rest = learned_search(machine.model())(STRATEGY, HELD_OUT).propose(9)
    assert first.config == STRATEGY.choose(HELD_OUT).config
    predicted = [proposal.predicted_seconds for proposal in rest]
    assert predicted == sorted(predicted)
    assert rest[0].config == min(LEARNED.offers(HELD_OUT), key=lambda offer: offer[1])[0]
    assert len({first.config, *(p.config for p in rest)}) == 9


def test_the_learned_search_needs_a_model_and_no_other_takes_one() -> None:
    for name, predictor in (("learned", None), ("model", machine.model())):
        with pytest.raises(UsageError, match="belong together"):
            search_named(name, predictor)


def test_a_sweep_follows_what_was_learned(tmp_path: Path) -> None:
    path, runner = tmp_path / "records.jsonl", MadeRunner()
    swept = sweep(path, runner, limits=Limits(per_task=4))
    swept.make_search = search_named("learned", machine.model())
    swept.run([Task(STRATEGY.choose(HELD_OUT), 1, 1.0)])
    assert runner.asked[0] == STRATEGY.choose(HELD_OUT).config
    assert len(runner.asked) == len(files.read(path)[0]) == 4
    # The records keep what the analytical model expected.
    for record in files.read(path)[0]:
        assert record.predicted_seconds == STRATEGY.seconds(HELD_OUT, record.config)


def test_a_record_overrules_what_was_learned() -> None:
    worst = max(LEARNED.offers(HELD_OUT), key=lambda offer: offer[1])[0]
    book = RecordBook([machine.record(HELD_OUT, worst, 1e-6)])
    strategy = Strategy(CORE, 1, records=book, predictor=machine.model())
    assert strategy.choose(HELD_OUT).config == worst
