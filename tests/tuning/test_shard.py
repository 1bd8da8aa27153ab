"""One sweep in several parts: every layer once, evenly, and the same records as of one sweep."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from made import CORE, MadeRunner
from small import run_command, small_model
from typer.testing import CliRunner

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cli.app import app
from tvm_blislike.errors import UsageError
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.records import files
from tvm_blislike.records.book import RecordBook
from tvm_blislike.tuning.effort import effort
from tvm_blislike.tuning.shard import Shard
from tvm_blislike.tuning.tasks import Task
from tvm_blislike.tuning.tune import tune

SIZES = st.integers(1, 512)
GEMMS = st.builds(GemmWorkload, SIZES, SIZES, SIZES)
CONVS = st.builds(
    lambda ci, size, co, k: Conv2dWorkload(1, ci, size + k, size + k, co, k, k),
    SIZES,
    st.integers(1, 56),
    SIZES,
    st.sampled_from([1, 3, 5]),
)


def _tasks(workloads: list[Workload]) -> list[Task]:
    return [Task(Choice(w, None, None, None, ""), 1, 1 / len(workloads)) for w in workloads]


@examples(60)
@given(st.lists(GEMMS | CONVS, unique=True, max_size=40), st.integers(1, 9), st.randoms())
def test_every_layer_is_in_one_shard_wherever_it_is_divided(
    workloads: list[Workload], count: int, rng: random.Random
) -> None:
    tasks = _tasks(workloads)
    # Another machine predicts other times: another order and other shares.
    others = [replace(task, share=rng.random()) for task in rng.sample(tasks, len(tasks))]
    loads = []
    for index in range(count):
        mine = Shard(index, count).of(tasks)
        assert {t.workload for t in mine} == {t.workload for t in Shard(index, count).of(others)}
        assert mine == [task for task in tasks if task in mine]
        loads.append([effort(task.workload) for task in mine])
    assert sorted(x for load in loads for x in load) == sorted(map(effort, workloads))
    # No shard has more than another and one layer of its own.
    for load in loads:
        for other in loads:
            assert sum(load) <= sum(other) + min(load, default=0) * (1 + 1e-9)


@pytest.mark.parametrize("trials", [0, 1, 7, 64])
@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_measurements_at_most_are_those_of_all_shards(trials: int, count: int) -> None:
    parts = [Shard(index, count).part(trials) for index in range(count)]
    assert sum(parts) == trials and max(parts) - min(parts) <= 1
    assert Shard(0, count).part(None) is None


@pytest.mark.parametrize(
    "text, said",
    [
        ("3/2", "no shard 3 of 2"),
        ("2/2", "no shard 2 of 2"),
        ("0/0", "no shard 0 of 0"),
        ("", "not of the form I/N"),
        ("1", "not of the form I/N"),
        ("/", "not of the form I/N"),
        ("-1/2", "not of the form I/N"),
        ("a/b", "not of the form I/N"),
        ("1/2/3", "not of the form I/N"),
        ("²/3", "not of the form I/N"),
    ],
)
def test_what_is_no_shard_is_refused_before_anything_is_done(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        tune("missing.onnx", shard=text)
    assert "from 0 to N - 1" in caught.value.hint
    result = CliRunner().invoke(app, ["tune", "missing.onnx", f"--shard={text}"])
    assert result.exit_code == 2 and "0/2 and 1/2" in result.stderr


def test_records_of_shards_are_those_of_one_sweep(tmp_path: Path) -> None:
    model = small_model(tmp_path / "small.onnx")

    def swept(shard: str | None) -> tuple[list, Path]:
        path = tmp_path / f"{shard}".replace("/", "of")
        runner = MadeRunner()
        done = tune(model, CORE, threads=1, records=path, runner=runner, shard=shard)
        assert done.verdict is None and done.shard == (shard or "")
        assert len(runner.asked) == done.measured
        return list(done.layers), path

    layers, whole = swept(None)
    parts = [swept(f"{index}/2") for index in range(2)]
    assert len(layers) == 2 and all(len(found) == 1 for found, _ in parts)
    merged = tmp_path / "merged"
    merged.write_bytes(b"".join(path.read_bytes() for _, path in parts))

    def known(path: Path) -> dict:
        return {(r.workload, r.config): r.seconds for r in files.read(path)[0]}

    assert known(merged) == known(whole)
    assert not known(parts[0][1]).keys() & known(parts[1][1]).keys()
    chosen = [Strategy(CORE, 1, records=RecordBook.open(path)) for path in (merged, whole)]
    for workload, _ in known(whole):
        assert chosen[0].choose(workload).config == chosen[1].choose(workload).config


def test_a_last_sweep_measures_what_is_missing_only(tmp_path: Path) -> None:
    model, path = small_model(tmp_path / "small.onnx"), tmp_path / "records.jsonl"
    first = tune(model, CORE, threads=1, records=path, runner=MadeRunner(), shard="0/2")
    rest = MadeRunner()
    last = tune(model, CORE, threads=1, records=path, runner=rest)
    assert len(last.layers) == 2 and first.measured + last.measured == 16
    assert tune(model, CORE, threads=1, records=path, runner=MadeRunner()).measured == 0


def test_more_shards_than_layers_leave_some_without_work(tmp_path: Path) -> None:
    model, path = small_model(tmp_path / "small.onnx"), tmp_path / "records.jsonl"
    command = ["tune", model, "--threads", 1, "--records", path, "--trials", 1, "--shard"]
    done = run_command(*command, "3/4")
    assert "has no layers" in done.stdout and "without --shard" in done.stdout
    assert not path.exists()
