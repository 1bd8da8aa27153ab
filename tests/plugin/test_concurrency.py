"""Several threads that compile, run and print at once; interrupts; libraries that come and go."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import helper, numpy_helper
from small_models import float_input, make_model, small_network, two_convolutions
from tvm import relax

import tvm_blislike
from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.errors import ChoiceError, UnsupportedOperatorError
from tvm_blislike.onnx.inputs import random_inputs
from tvm_blislike.runtime import library

THREADS, COMPILATIONS = 4, 20


def _not_importable() -> onnx.ModelProto:
    shape = numpy_helper.from_array(np.array([7], "int64"), "shape")
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], "reshape0")
    return make_model([node], [float_input("x", [2, 3])], [float_input("y", [7])], [shape])


def _compiled(proto: onnx.ModelProto, threads: int = 1) -> tvm_blislike.CompiledModel:
    return tvm_blislike.compile(proto, threads=threads)


def _outputs(model: tvm_blislike.CompiledModel, seed: int = 0) -> list[np.ndarray]:
    return list(model.run(random_inputs(model.inputs, seed)).values())


def _equal(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


@contextmanager
def _chatter() -> Iterator[list[int]]:
    """Print numbers to stdout and stderr from another thread, and collect them."""
    printed, over = [0], threading.Event()

    def talk() -> None:
        while not over.wait(0.0005):
            printed.append(printed[-1] + 1)
            sys.stdout.write(f"out {printed[-1]}\n")
            sys.stderr.write(f"err {printed[-1]}\n")

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield printed
    finally:
        over.set()
        thread.join()


def test_threads_compile_what_one_thread_compiles(capfd: pytest.CaptureFixture[str]) -> None:
    """Also beside models that cannot be compiled, and beside a thread that prints."""
    protos = [small_network(), two_convolutions(), _not_importable(), small_network(batch=3)]
    expected = [None if i == 2 else _outputs(_compiled(p)) for i, p in enumerate(protos)]
    capfd.readouterr()

    def job(number: int) -> bool:
        kind = number % len(protos)
        if expected[kind] is not None:
            return _equal(_outputs(_compiled(protos[kind])), expected[kind])
        with pytest.raises(UnsupportedOperatorError, match="'reshape0'"):
            _compiled(protos[kind])
        return True

    streams, filters = (sys.stdout, sys.stderr), list(warnings.filters)
    with _chatter() as printed, ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(job, range(COMPILATIONS)))
    assert (sys.stdout, sys.stderr) == streams
    assert warnings.filters == filters
    assert relax.BlockBuilder.current() is None
    out, err = capfd.readouterr()
    assert out.splitlines() == [f"out {n}" for n in printed[1:]]
    assert err.splitlines() == [f"err {n}" for n in printed[1:]]


def test_compilations_wait_for_one_another() -> None:
    inside, most = [0], [0]
    guard, both = threading.Lock(), threading.Event()

    def override(_workload: object) -> None:
        with guard:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        both.wait(0.1)
        with guard:
            inside[0] -= 1

    def compile_one(_number: int) -> None:
        tvm_blislike.compile(small_network(), threads=1, override=override)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, range(2)))
    assert most == [1]


def test_output_is_not_redirected_while_a_library_is_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor does TVM say anything, though the model ran before."""
    model = _compiled(small_network())
    expected = _outputs(model)
    capfd.readouterr()
    before, during, link = os.fstat(2).st_ino, [], library.link

    def linking(*arguments: object, **options: object) -> None:
        during.append(os.fstat(2).st_ino)
        link(*arguments, **options)

    monkeypatch.setattr(library, "link", linking)
    model.export(tmp_path / "net.so")
    assert during == [before]
    assert _equal(_outputs(tvm_blislike.CompiledModel.load(tmp_path / "net.so")), expected)
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_in_a_compilation_stays_ctrl_c() -> None:
    def interrupted(_workload: object) -> None:
        signal.raise_signal(signal.SIGINT)

    expected = _outputs(_compiled(small_network()))
    streams, filters = (sys.stdout, sys.stderr), list(warnings.filters)
    with pytest.raises(KeyboardInterrupt):
        tvm_blislike.compile(small_network(), threads=1, override=interrupted)
    assert (sys.stdout, sys.stderr) == streams
    assert warnings.filters == filters
    assert relax.BlockBuilder.current() is None
    with ThreadPoolExecutor(1) as pool:  # another thread, which a lock that was kept would stop
        assert _equal(pool.submit(lambda: _outputs(_compiled(small_network()))).result(), expected)


def test_ctrl_c_in_an_export_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        signal.raise_signal(signal.SIGINT)

    model = _compiled(small_network())
    with monkeypatch.context() as patch:
        patch.setattr(library, "link", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.export(tmp_path / "net.so")
    assert not list(tmp_path.iterdir())
    model.export(tmp_path / "net.so")
    assert _equal(_outputs(tvm_blislike.CompiledModel.load(tmp_path / "net.so")), _outputs(model))


def test_errors_of_this_package_keep_their_kind_across_tvm() -> None:
    def override(_workload: object) -> None:
        raise ChoiceError("nothing suits", "use another")

    with pytest.raises(ChoiceError, match="nothing suits\nuse another"):
        tvm_blislike.compile(small_network(), threads=1, override=override)


def _run_often(model: tvm_blislike.CompiledModel, seed: int) -> bool:
    inputs = random_inputs(model.inputs, seed)
    first = model.run(inputs)
    return all(_equal([*model.run(inputs).values()], [*first.values()]) for _ in range(20))


def _at_once(jobs: list[Callable[[], bool]]) -> bool:
    start = threading.Barrier(len(jobs))

    def job(function: Callable[[], bool]) -> bool:
        start.wait()
        return function()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return all(pool.map(job, jobs))


@pytest.mark.filterwarnings("ignore:1 instead of 2 threads")
def test_two_models_run_at_once() -> None:
    models = [_compiled(two_convolutions(batch), threads=2) for batch in (1, 2)]
    expected = [_outputs(model) for model in models]
    assert _at_once([lambda m=m: _run_often(m, 0) for m in models])
    assert all(_equal(_outputs(m), e) for m, e in zip(models, expected, strict=True))


@pytest.mark.filterwarnings("ignore:1 instead of 2 threads")
def test_one_model_runs_in_two_threads_with_the_inputs_of_each() -> None:
    model = _compiled(two_convolutions(), threads=2)
    expected = [_outputs(model, seed) for seed in (1, 2)]
    fresh = _compiled(two_convolutions(), threads=2)  # both threads want to start its machine
    assert _at_once([lambda s=s: _run_often(fresh, s) for s in (1, 2)])
    assert all(_equal(_outputs(fresh, seed), e) for seed, e in zip((1, 2), expected, strict=True))


def test_a_library_that_is_gone_takes_its_memory_along(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((512, 1024)).astype("float32")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    tensors = [numpy_helper.from_array(weights, "w")]
    proto = make_model([node], [float_input("x", [1, 512])], [float_input("y", [1, 1024])], tensors)
    model = _compiled(proto)
    expected = _outputs(model)
    model.export(tmp_path / "net.so")

    def use() -> int:
        assert _equal(_outputs(tvm_blislike.CompiledModel.load(tmp_path / "net.so")), expected)
        return psutil.Process().memory_info().rss

    before = [use() for _ in range(5)][-1]
    after = [use() for _ in range(50)][-1]
    assert after - before < 10 * weights.nbytes


def test_the_lock_may_be_nested() -> None:
    with compiler_lock(), compiler_lock():
        assert _outputs(_compiled(small_network()))
