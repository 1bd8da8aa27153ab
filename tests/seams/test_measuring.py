"""MetaSchedule's spaces and runners, and TVM's worker processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import tvm
from small_kernels import TARGET, doubled
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from tvm_blislike.export.link import find_compiler, link
from tvm_blislike.tvm_seams import measuring


def test_a_space_has_the_schedules_it_was_given() -> None:
    def schedules(mod: tvm.IRModule, target: tvm.target.Target) -> list[s_tir.Schedule]:
        targets.append(target)
        return [s_tir.Schedule(mod)] * 3

    targets: list[tvm.target.Target] = []
    mod = tvm.IRModule({"main": doubled("main")})
    space = measuring.space(schedules).clone()
    context = ms.TuneContext(mod, target=TARGET, space_generator=space)
    assert len(context.generate_design_space()) == 3
    assert list(map(str, targets)) == [str(TARGET)]


def test_a_worker_can_be_ended_and_starts_anew() -> None:
    worker = measuring.Worker(lambda: None)
    try:
        first = worker.ask(os.getpid)
        with pytest.raises(TimeoutError):
            worker.ask(time.sleep, 60, timeout=0.2)
        assert worker.ask(os.getpid) != first
    finally:
        worker.close()


def test_a_runner_takes_other_functions_for_each_run(tmp_path: Path) -> None:
    compiler = find_compiler({"mtriple": tvm.target.Target("llvm").attrs["mtriple"]})
    library = str(tmp_path / "library.so")
    built = tvm.compile(doubled(), TARGET)
    built.export_library(library, fcompile=lambda *a, **k: link(compiler, *a, **k))
    runner = measuring.IsolatedRunner(20.0, lambda: None)
    try:
        for number in (1.0, 2.0):
            found = runner.run(library, lambda *_, n=number: [n], lambda *run: [run[-1][0], 7.0])
            assert found == [number, 7.0]
        with pytest.raises(RuntimeError, match="exception"):
            runner.run(library, lambda *_: [], lambda *_: 1 / 0)
    finally:
        runner.close()
