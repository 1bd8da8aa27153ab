"""The finals of one matrix product: who wins, what crashes, what is stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import onnx
import psutil
import pytest
from onnx import helper, numpy_helper

from tvm_blislike import register_implementation
from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import native_core
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.schedules import get_implementation, unregister_implementation
from tvm_blislike.tuning import whole_model
from tvm_blislike.tuning.competitors import Subject
from tvm_blislike.tuning.interrupt import Interrupt
from tvm_blislike.tuning.whole_model import Contest, decide

NATIVE = native_core()


@pytest.fixture(scope="module")
def product() -> tuple[onnx.ModelProto, GemmWorkload, Config, Config]:
    """One matrix product, its workload, the model's choice, and blocks of one row: far slower."""
    rng = np.random.default_rng(0)
    matrix = numpy_helper.from_array(rng.standard_normal((256, 256)).astype("float32"), "matrix")
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [128, 256]) for name in "xy"
    ]
    node = helper.make_node("MatMul", ["x", "matrix"], ["y"])
    graph = helper.make_graph([node], "one", values[:1], values[1:], [matrix])
    opset = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=8)
    w = GemmWorkload(128, 256, 256)
    strategy = Strategy(NATIVE, 1)
    slow = min((c for c, _ in strategy.offers(w) if c.mr == 1), key=lambda c: c.nr)
    return made, w, strategy.choose(w).config, slow


def _contest(product: tuple[Any, ...], *candidates: Config) -> Contest:
    model, w, _, _ = product
    # All rows at once: where blocks of one row are slow enough, two at a time are predicted to be
    # faster, and the product would be another one.
    strategy = Strategy(NATIVE, 1, constraints=Constraints(images=0))
    return Contest(Subject(model, None, strategy), {w: candidates}, seconds=0.5)


def test_a_slower_candidate_loses_the_finals(product: tuple[Any, ...]) -> None:
    _, w, choice, slow = product
    verdict = decide(_contest(product, choice, slow))
    assert set(verdict.layers) == {(w, choice), (w, slow)}
    assert np.median(verdict.layers[w, choice]) < np.median(verdict.layers[w, slow])
    # What is left is the untuned model.
    assert verdict.gain == 1 and not verdict.rejected and verdict.untuned_ms > 0


def test_without_time_for_layers_the_models_meet(product: tuple[Any, ...]) -> None:
    _, w, choice, slow = product
    hurried = replace(_contest(product, choice, slow), end=time.monotonic())
    verdict = decide(replace(hurried, favourites={w: slow}))
    assert not verdict.layers
    assert verdict.tuned_ms > verdict.untuned_ms and verdict.rejected
    # What the records follow is the model's choice: nothing to compare it with.
    same = decide(replace(hurried, favourites={w: choice}))
    assert same.tuned_ms == same.untuned_ms > 0 and not same.rejected


def _crash(*_: object) -> None:
    os.abort()


def _hang(*_: object) -> None:
    # What the test looks for; made complete at once.
    folder = Path(tempfile.gettempdir())
    (folder / "new").write_text(str(os.getpid()))
    (folder / "new").rename(folder / f"hangs-{os.getpid()}")
    time.sleep(1000)


@contextlib.contextmanager
def _with_schedule(choice: Config, schedule: Callable[..., None]) -> Iterator[Config]:
    """Yield a choice whose schedule in the worker processes is another one."""
    # Workers cannot import this file.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    register_implementation(replace(get_implementation("gemm"), name="other", schedule=schedule))
    try:
        yield replace(choice, implementation="other")
    finally:
        unregister_implementation("other")
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_model_that_crashes_leaves_the_untuned_one(product: tuple[Any, ...]) -> None:
    _, _, choice, _ = product
    with _with_schedule(choice, _crash) as crashing:
        verdict = decide(_contest(product, choice, crashing))
    assert verdict.rejected == "the tuned model cannot be run: ChildProcessError"
    assert verdict.gain == 1 and not verdict.layers


def test_a_stop_ends_a_model_that_compiles(
    product: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes when the rival has begun to compile, which it would never finish."""
    _, _, choice, _ = product
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    main, seen = threading.main_thread().ident, []
    before = psutil.Process().children()

    def interrupt_when_it_hangs() -> None:
        while not seen:
            seen.extend(tmp_path.glob("**/hangs-*"))
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    with _with_schedule(choice, _hang) as hanging, Interrupt(lambda: None) as interrupt:
        threading.Thread(target=interrupt_when_it_hangs, daemon=True).start()
        contest = replace(_contest(product, choice, hanging), stopped=interrupt.asked)
        assert decide(contest) is None
    assert not psutil.pid_exists(int(seen[0].name.removeprefix("hangs-")))
    assert set(psutil.Process().children()) <= set(before)
    assert not list(tmp_path.iterdir())


def test_a_slower_model_is_not_kept(
    product: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, w, choice, slow = product
    # Layers' times that are wrong about the whole: the slow one seems to be faster.
    monkeypatch.setattr(whole_model, "_layers", lambda *_: {(w, choice): [2.0], (w, slow): [1.0]})
    verdict = decide(_contest(product, choice, slow))
    assert verdict.tuned_ms > verdict.untuned_ms
    assert verdict.rejected.startswith("the tuned model took") and verdict.gain == 1


def test_layers_whose_layouts_the_neighbours_decide_take_no_part(product: tuple[Any, ...]) -> None:
    _, w, choice, slow = product
    # The untuned model does not use this first candidate.
    verdict = decide(_contest(product, slow, choice))
    assert verdict.unsettled == (w,)
    assert not verdict.layers and verdict.gain == 1
