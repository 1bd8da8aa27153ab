"""Python's garbage collector: off while a model is compiled, and as it was afterwards."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from small_models import small_network

from tvm_blislike import api
from tvm_blislike.collector import resting_collector
from tvm_blislike.errors import TargetError
from tvm_blislike.onnx import frontend


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_it_rests_in_nested_blocks_and_behind_an_error_runs_again() -> None:
    with pytest.raises(ZeroDivisionError), resting_collector():
        with resting_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()


def test_what_the_user_turned_off_stays_off() -> None:
    gc.disable()
    with resting_collector():
        pass
    assert not gc.isenabled()


def test_it_rests_until_the_last_thread_is_done() -> None:
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        with resting_collector():
            inside.set()
            done.wait()

    thread = threading.Thread(target=other)
    with resting_collector():
        thread.start()
        inside.wait()
    assert not gc.isenabled()
    done.set()
    thread.join()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_it_runs_in_a_process_that_is_forked_amid_a_block() -> None:
    with resting_collector():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert gc.isenabled()


def test_it_rests_while_a_model_is_imported_and_built(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    load = frontend.load
    monkeypatch.setattr(frontend, "load", lambda *args: seen.append(gc.isenabled()) or load(*args))
    strategy = api.resolve_strategy(api.resolve_core("native"), threads=1, records="none")
    api.built_sizes(strategy, small_network(), None, lambda *_: seen.append(gc.isenabled()))
    assert seen == [False, False]
    assert gc.isenabled()


@pytest.mark.parametrize("call", [api.compile, api.explain])
def test_it_rests_from_the_beginning_where_modules_are_imported(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    begin = api.resolve_core
    monkeypatch.setattr(
        api, "resolve_core", lambda target: seen.append(gc.isenabled()) or begin(target)
    )
    with pytest.raises(TargetError):
        call(small_network(), "no such core")
    assert seen == [False]
    assert gc.isenabled()
