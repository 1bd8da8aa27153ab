"""TVM's RPC against `blis_rpc` on the emulated board, on loopback. Times mean nothing there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from emulated_board import Board
from small_models import small_network, small_reference
from tvm import relax, rpc
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T

import tvm_blislike
from tvm_blislike.export.link import find_compiler, link
from tvm_blislike.hardware import Core

TARGET = Core.named("cortex-a72").target_config(1)


@T.prim_func
def _doubled(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    T.func_attr({"global_symbol": "main"})
    for i in range(64):
        b[i] = a[i] * T.float32(2)


@T.prim_func
def _crashes(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    T.func_attr({"global_symbol": "main"})
    whole = T.decl_buffer((1 << 40,), "float32", data=a.data)
    for i in range(64):
        b[i] = whole[i + (1 << 38)]


def _library(func: tvm.tirx.PrimFunc, path: Path) -> Path:
    compiler = find_compiler(TARGET)
    executable = tvm.compile(func, tvm.target.Target(TARGET))
    executable.export_library(str(path), fcompile=lambda *a, **k: link(compiler, *a, **k))
    return path


@pytest.fixture(scope="module")
def port(board: Board) -> Iterator[int]:
    with board.rpc_server(key="board") as port:
        yield port


def _connect(port: int, timeout: int = 60) -> rpc.RPCSession:
    return rpc.connect("127.0.0.1", port, "board", session_timeout=timeout)


def _check_doubled(session: rpc.RPCSession, library: Path) -> rpc.RPCSession:
    session.upload(str(library))
    module = session.load_module(library.name)
    values = np.arange(64, dtype=np.float32)
    a, b = (tvm.runtime.tensor(values * k, session.cpu()) for k in (1, 0))
    module["main"](a, b)
    np.testing.assert_array_equal(b.numpy(), 2 * values)
    timed = module.time_evaluator("main", session.cpu(), number=3)(a, b)
    assert timed.mean > 0
    return session


def test_upload_call_and_time_a_kernel(port: int, tmp_path: Path) -> None:
    library = _library(_doubled, tmp_path / "doubled.so")
    session = _check_doubled(_connect(port), library)
    # A second session while the first one is open.
    _check_doubled(_connect(port), library)
    assert "doubled.so" in session.listdir(".")


def test_whole_model(port: int, image: np.ndarray, tmp_path: Path) -> None:
    compiled = tvm_blislike.compile(small_network(), target="cortex-a72", threads=1)
    compiled.export(tmp_path / "net.so")
    session = _connect(port)
    session.upload(str(tmp_path / "net.so"))
    machine = relax.VirtualMachine(session.load_module("net.so"), session.cpu())
    machine.set_input("main", tvm.runtime.tensor(image, session.cpu()))
    machine.invoke_stateful("main")
    found = machine.get_outputs("main").numpy()
    np.testing.assert_allclose(found, small_reference(image), rtol=1e-5, atol=1e-5)


def test_errors_end_a_call_and_crashes_a_session(port: int, tmp_path: Path) -> None:
    session = _connect(port)
    with pytest.raises(Exception, match=r"none\.so"):
        session.load_module("none.so")
    with pytest.raises(Exception, match="outside of the session"):
        session.load_module("../none.so")
    crashing = _library(_crashes, tmp_path / "crashing.so")
    session.upload(str(crashing))
    module = session.load_module("crashing.so")
    a = tvm.runtime.tensor(np.zeros(64, np.float32), session.cpu())
    with pytest.raises(Exception, match=r"kReturn|connection|closed|reset"):
        module["main"](a, a)
    # The server is still there.
    _check_doubled(_connect(port), _library(_doubled, tmp_path / "doubled.so"))


def test_strangers_are_refused(port: int) -> None:
    with pytest.raises(Exception, match=r"key"):
        rpc.connect("127.0.0.1", port, "another")


def test_a_session_ends_in_time(port: int, tmp_path: Path) -> None:
    session = _connect(port, timeout=1)
    library = _library(_doubled, tmp_path / "doubled.so")
    session.upload(str(library))
    time.sleep(2.5)
    with pytest.raises(Exception, match=r"."):
        session.load_module("doubled.so")


def test_sessions_leave_nothing_behind(board: Board, tmp_path: Path) -> None:
    library = _library(_doubled, tmp_path / "doubled.so")
    folder = tmp_path / "sessions"
    folder.mkdir()
    with board.rpc_server(key="board", folder=folder) as port:
        session = _check_doubled(_connect(port), library)
        assert len(os.listdir(folder)) == 1
        del session
        deadline = time.monotonic() + 20
        while os.listdir(folder) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not os.listdir(folder)
        session = _check_doubled(_connect(port), library)
        assert "doubled.so" in session.listdir(".")
    # The server was ended while a session was open.
    assert not os.listdir(folder)


def test_tracker_hands_the_board_out_again_and_again(tracker: str, tmp_path: Path) -> None:
    library = _library(_doubled, tmp_path / "doubled.so")
    host, port = tracker.split(":")
    client = rpc.connect_tracker(host, int(port))
    for _ in range(3):
        session = client.request("board", priority=1, session_timeout=60)
        _check_doubled(session, library)
        del session


def test_metaschedule_measures_there(tracker: str, tmp_path: Path) -> None:
    """TVM's own remote runner, with random arguments."""
    library = _library(_doubled, tmp_path / "doubled.so")
    host, port = tracker.split(":")
    config = ms.runner.RPCConfig(host, int(port), "board", session_timeout_sec=60)
    runner = ms.runner.RPCRunner(config, max_workers=1)
    shapes = [ms.arg_info.TensorInfo("float32", [64])] * 2
    futures = runner.run([ms.runner.RunnerInput(str(library), "cpu", shapes) for _ in range(2)])
    for future in futures:
        result = future.result()
        assert result.error_msg is None
        assert all(float(seconds) > 0 for seconds in result.run_secs)
