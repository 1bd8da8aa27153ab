"""`TVM_BLISLIKE_JOBS`: how many threads and processes compile, and that it changes nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import small_network

import tvm_blislike
from tvm_blislike.errors import UsageError
from tvm_blislike.hardware.cpus import usable_cpus
from tvm_blislike.side_by_side import code_threads


@pytest.mark.parametrize(("said", "threads"), [("1", 1), ("12", 12)])
def test_said(said: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_BLISLIKE_JOBS", said)
    assert code_threads() == threads


def test_unsaid_each_cpu_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVM_BLISLIKE_JOBS")
    assert code_threads() == min(8, len(usable_cpus()))


@pytest.mark.parametrize("said", ["0", "-1", "2.5", "all"])
def test_no_number(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_BLISLIKE_JOBS", said)
    with pytest.raises(UsageError, match=f"TVM_BLISLIKE_JOBS={said} is no number of threads"):
        code_threads()


def test_choices_and_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    image = rng.standard_normal((1, 3, 24, 24)).astype("float32")
    reports, results = [], []
    for jobs in ("1", "3"):
        monkeypatch.setenv("TVM_BLISLIKE_JOBS", jobs)
        compiled = tvm_blislike.compile(small_network(size=24), target="native")
        reports.append(compiled.explain())
        results.append(compiled.run({"image": image})["scores"])
    assert reports[0] == reports[1]
    np.testing.assert_array_equal(*results)
