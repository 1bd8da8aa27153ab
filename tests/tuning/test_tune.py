"""Tuning a small model for real: records, commands that follow them, resuming."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from made import record
from onnx_runtime import exact_session
from small import run_command, small_model
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cli.app import app
from tvm_blislike.errors import TargetError, UsageError
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.config import Config
from tvm_blislike.model.marks import SCHEDULED, root_annotations
from tvm_blislike.model.validity import core_facts
from tvm_blislike.model.workload import GemmWorkload, Workload
from tvm_blislike.records import files
from tvm_blislike.records.book import RecordBook
from tvm_blislike.records.record import Record, now
from tvm_blislike.tuning import database, whole_model
from tvm_blislike.tuning import tune as tuning
from tvm_blislike.tuning.search import model_search
from tvm_blislike.tuning.tune import tune

NATIVE = native_core()


def test_the_command_says_what_it_found(tuned: tuple[Path, Path, dict[str, Any]]) -> None:
    _, records, printed = tuned
    assert printed["records"] == str(records)
    assert [layer["count"] for layer in sorted(printed["layers"], key=lambda x: x["count"])] == [
        1,
        2,
    ]
    assert printed["measured"] == 16 and not printed["rejected"] and not printed["interrupted"]
    verdict = printed["verdict"]
    assert verdict["gain"] >= 1 and verdict["rel_error"] < 1e-5
    assert verdict["untuned_ms"] > 0


def test_a_search_in_the_whole_space_measures_right_kernels(tmp_path: Path) -> None:
    model, records = small_model(tmp_path / "small.onnx"), tmp_path / "records.jsonl"
    command = ["tune", model, "--threads", 1, "--records", records, "--search", "genetic", "--json"]
    first = json.loads(run_command(*command, "--seed", 3, "--trials", 8).stdout)
    assert first["measured"] == 8 and not first["rejected"]
    assert all(layer["measured"] == 4 and layer["untuned_ms"] for layer in first["layers"])
    # Another run with the same seed goes on with others.
    again = json.loads(run_command(*command, "--seed", 3, "--trials", 12).stdout)
    assert again["measured"] == 4
    alone = [r for r in files.read(records)[0] if r.context == "cold"]
    # What the finals drop is on record once more.
    assert len({(r.workload, r.config) for r in alone}) == 12


def test_without_a_bound_the_user_is_told_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(tuning, "tune", lambda *a, **k: asked.append(k) or sys.exit(0))
    result = CliRunner().invoke(app, ["tune", "m.onnx", "--search", "random", "--seed", "7"])
    assert "at most 64 measurements of each distinct layer" in result.stderr
    assert asked[0]["seed"] == 7
    result = CliRunner().invoke(app, ["tune", "m.onnx", "--search", "random", "--trials", "9"])
    assert "64" not in result.stderr


def test_records_hold_all_repeats(tuned: tuple[Path, Path, dict[str, Any]]) -> None:
    good, bad = files.read(tuned[1])
    assert not bad
    alone = [r for r in good if r.context == "cold"]
    measured = [r for r in alone if r.status == "ok"]
    assert len(measured) == 16
    # What the finals drop is on record once more.
    assert len(alone) == 16 or tuned[2]["verdict"]["rejected"]
    for made in measured:
        assert len(made.seconds) >= 8 and made.error < 2e-5
        assert made.facts == core_facts(NATIVE) and made.threads == 1
        assert made.predicted_seconds > 0 and made.model == "small"
    if not tuned[2]["verdict"]["rejected"]:
        assert [r for r in good if r.context == "model"]


def test_compilations_follow_the_records(tuned: tuple[Path, Path, dict[str, Any]]) -> None:
    model, records, _ = tuned
    report = json.loads(
        run_command("explain", model, "--threads", 1, "--records", records, "--json").stdout
    )
    layers = [layer for layer in report["layers"] if layer["microkernel"]]
    assert len(layers) == 3
    for layer in layers:
        assert layer["measured_ms"] > 0 and "measured" in layer["reason"]
    other = json.loads(
        run_command("explain", model, "--threads", 2, "--records", records, "--json").stdout
    )
    assert all(layer["measured_ms"] is None for layer in other["layers"])
    plain = json.loads(
        run_command("explain", model, "--threads", 1, "--records", "none", "--json").stdout
    )
    assert all(layer["measured_ms"] is None for layer in plain["layers"])


@pytest.mark.parametrize("command", ["compile", "run", "bench"])
def test_every_command_takes_records(
    tuned: tuple[Path, Path, dict[str, Any]], command: str, tmp_path: Path
) -> None:
    model, records, _ = tuned
    extra = {
        "compile": ["-o", tmp_path / "out.so"],
        "run": [],
        "bench": ["--engines", "blislike", "--repeat", 1],
    }
    run_command(command, model, "--threads", 1, "--records", records, *extra[command])
    missing = tmp_path / "missing.jsonl"
    result = CliRunner().invoke(app, [command, str(model), "--records", str(missing)])
    assert result.exit_code == 5 and "missing.jsonl" in result.output


def test_the_users_own_file_is_the_default(
    tuned: tuple[Path, Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, records, _ = tuned
    monkeypatch.setenv("TVM_BLISLIKE_RECORDS", str(records))
    report = json.loads(run_command("explain", model, "--threads", 1, "--json").stdout)
    assert any(layer["measured_ms"] for layer in report["layers"])
    assert "conv2d" in run_command("records", "best").stdout


def test_a_second_sweep_only_compares(tuned: tuple[Path, Path, dict[str, Any]]) -> None:
    model, records, _ = tuned
    result = tune(model, threads=1, records=records)
    assert result.measured == 0 and result.verdict is not None
    assert all(layer.measured == 8 for layer in result.layers)


def test_what_was_dropped_has_been_measured_all_the_same(
    tuned: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    model, records, _ = tuned
    copy = tmp_path / "copy.jsonl"
    dropped = [replace(r, status="dropped", date=now()) for r in files.read(records)[0]]
    copy.write_text("".join(f"{r.to_json()}\n" for r in dropped))
    result = tune(model, threads=1, records=copy)
    assert result.measured == 0
    assert all(layer.measured == 8 for layer in result.layers)


def test_results_with_records_are_right(tuned: tuple[Path, Path, dict[str, Any]]) -> None:
    model, records, _ = tuned
    image = np.random.default_rng(1).standard_normal((1, 16, 12, 12)).astype("float32")
    session = exact_session(onnx.load(model))
    (expected,) = session.run(None, {session.get_inputs()[0].name: image})
    for book in (records, RecordBook()):
        (result,) = tvm_blislike.compile(model, threads=1, records=book).run([image]).values()
        # Relative to the largest output, as the whole model's error is everywhere: which
        # algorithm is fastest, F(6, 3) for one, differs from run to run.
        assert np.abs(result - expected).max() <= 1e-5 * np.abs(expected).max()


def test_show_best_prune(tuned: tuple[Path, Path, dict[str, Any]], tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(tuned[1].read_bytes() + b"half a li")
    shown = run_command("records", "show", "--records", copy)
    assert "skipped" in shown.stderr and "torn" in shown.stderr
    assert "conv2d_direct" in shown.stdout
    best = json.loads(run_command("records", "best", "--records", copy, "--json").stdout)
    assert len(best) == 2
    run_command("records", "prune", "--records", copy, "--keep", 1)
    kept, bad = files.read(copy)
    assert not bad and len({r.workload for r in kept}) == 2
    assert len(kept) < len(files.read(tuned[1])[0])
    run_command("records", "merge", tmp_path / "all.jsonl", copy, tuned[1])
    assert len(files.read(tmp_path / "all.jsonl")[0]) == len(files.read(tuned[1])[0])


def test_metaschedules_database_and_back(
    tuned: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    from tvm import s_tir
    from tvm.s_tir import meta_schedule as ms

    folder, back = tmp_path / "database", tmp_path / "back.jsonl"
    run_command("records", "export", folder, "--records", tuned[1])
    run_command("records", "import", folder, "--records", back)
    usable = [r.to_json() for r in files.read(tuned[1])[0] if r.status == "ok"]
    assert sorted(r.to_json() for r in files.read(back)[0]) == sorted(usable)
    entries = (folder / "database_tuning_record.json").read_text().splitlines()
    assert len(entries) == len(usable)
    for entry in ms.database.JSONDatabase(work_dir=str(folder)).get_all_tuning_records():
        replayed = s_tir.Schedule(entry.workload.mod)
        entry.trace.apply_to_schedule(replayed, remove_postproc=False)
        assert SCHEDULED in root_annotations(replayed.mod["main"])
    result = CliRunner().invoke(app, ["records", "import", str(tmp_path)])
    assert result.exit_code == 5 and "no MetaSchedule database" in result.output


def test_foreign_schedules_of_a_database_are_left_out(tmp_path: Path) -> None:
    import tvm
    from tvm import s_tir, te
    from tvm.s_tir import meta_schedule as ms

    a = te.placeholder((8, 8), name="a")
    mod = tvm.IRModule({"main": te.create_prim_func([a, te.compute((8, 8), lambda i, j: a[j, i])])})
    made = ms.database.JSONDatabase(work_dir=str(tmp_path))
    target = tvm.target.Target(NATIVE.target_config(1))
    made.commit_tuning_record(
        ms.database.TuningRecord(
            s_tir.Schedule(mod).trace,
            made.commit_workload(mod),
            [1e-3],
            target,
            ms.arg_info.ArgInfo.from_prim_func(mod["main"]),
        )
    )
    assert database.read(tmp_path) == ([], 1)


def test_constraints_hold_for_records_too() -> None:
    from tvm_blislike.model.workload import Conv2dWorkload

    w = Conv2dWorkload(1, 64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1))
    plain = Strategy(NATIVE, 1)
    winograd = next(c for c, _ in plain.offers(w) if c.implementation == "conv2d_winograd")
    book = RecordBook([_native(w, winograd)])
    followed = Strategy(NATIVE, 1, records=book).choose(w)
    assert followed.config == winograd and followed.measured_seconds == 1e-9
    for limits in (
        Constraints(max_error=0),
        Constraints(without=("conv2d_winograd",)),
        Constraints(only=("conv2d_direct",)),
        Constraints(max_workspace=0),
    ):
        choice = Strategy(NATIVE, 1, None, limits, book).choose(w)
        assert choice.config != winograd and choice.measured_seconds is None


def _native(workload: Workload, config: Config) -> Record:
    target = NATIVE.target_config(1)
    facts = core_facts(NATIVE)
    return Record(workload, config, NATIVE.name, facts, target, 1, (1e-9,), 1e-6, 0.0)


def test_what_was_not_kept_is_out_of_use(
    tuned: tuple[Path, Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, records, _ = tuned
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(records.read_bytes())
    verdict = whole_model.Verdict(1.0, 2.0, {}, "slower")
    monkeypatch.setattr("tvm_blislike.tuning.verdicts.decide", lambda _: verdict)
    tune(model, threads=1, records=copy)
    book = RecordBook.open(copy)
    for w in {r.workload for r in files.read(copy)[0]}:
        usable = book.usable(w, NATIVE, 1)
        assert {r.config for r in usable} == {Strategy(NATIVE, 1).choose(w).config}


def test_what_cannot_be_tuned_is_refused(tmp_path: Path) -> None:
    model = small_model(tmp_path / "small.onnx")
    with pytest.raises(UsageError, match="unknown search"):
        tune(model, search="best")
    with pytest.raises(UsageError, match="unknown cache mode"):
        tune(model, cache="hot")
    foreign = "cortex-a72" if NATIVE.isa.name != "neon" else "haswell"
    with pytest.raises(TargetError):
        tune(model, target=foreign)


def test_made_records_are_of_their_core() -> None:
    assert record().facts == core_facts(Core.named("skylake-avx512"))
    assert model_search(Strategy(NATIVE, 1), GemmWorkload(8, 8, 8)).propose(1)


def test_a_record_that_agrees_with_the_model_leaves_the_layouts_open() -> None:
    from tvm_blislike.model.workload import Conv2dWorkload

    w = Conv2dWorkload(1, 64, 14, 14, 64, 1, 1)
    plain = Strategy(NATIVE, 1)
    agreeing = Strategy(NATIVE, 1, records=RecordBook([_native(w, plain.choose(w).config)]))
    assert agreeing.choose(w).measured_seconds == 1e-9
    assert [c.config for c in agreeing.options(w)] == [c.config for c in plain.options(w)]
    assert agreeing.choose(w).seconds == plain.choose(w).seconds
    other = next(c for c, _ in plain.offers(w) if c != plain.choose(w).config)
    following = Strategy(NATIVE, 1, records=RecordBook([_native(w, other)]))
    assert [c.config for c in following.options(w)] == [other]
    assert following.choose(w).seconds == 1e-9
