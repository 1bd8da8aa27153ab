"""Compiled models are kept for their next start: when they are found, and when they are not."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.text import Text
from small_models import small_network, small_reference, two_convolutions
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike import api, progress
from tvm_blislike.cache import store
from tvm_blislike.cache.key import Content, key_of
from tvm_blislike.cli import terminal
from tvm_blislike.cli.app import app
from tvm_blislike.errors import UsageError
from tvm_blislike.records.book import RecordBook

IMAGE = np.random.default_rng(3).standard_normal((1, 3, 8, 8)).astype("float32")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for kept models, of this test alone."""
    monkeypatch.setenv("TVM_BLISLIKE_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(small_network(), tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was compiled, and not found."""
    seen: list[object] = []
    compile_with = api.compile_with

    def counted(strategy: object, model: object, shapes: object) -> object:
        seen.append(model)
        return compile_with(strategy, model, shapes)

    monkeypatch.setattr(api, "compile_with", counted)
    return seen


def test_the_second_start_compiles_nothing(model: Path, compilations: list[object]) -> None:
    first, second = (tvm_blislike.compile(model, threads=1) for _ in range(2))
    assert len(compilations) == 1
    np.testing.assert_allclose(first.run([IMAGE])["scores"], small_reference(IMAGE), rtol=1e-4)
    np.testing.assert_array_equal(first.run([IMAGE])["scores"], second.run([IMAGE])["scores"])
    assert second.explain() == first.explain()
    assert (second.inputs, second.outputs, second.threads, second.core) == (
        (first.inputs, first.outputs, first.threads, first.core)
    )
    assert [t.name for t in second.profile([IMAGE], 1)] == [
        t.name for t in first.profile([IMAGE], 1)
    ]


def test_what_needs_its_code_compiles_a_kept_model_again(
    model: Path, compilations: list[object], tmp_path: Path
) -> None:
    tvm_blislike.compile(model, threads=1)
    kept = tvm_blislike.compile(model, threads=1)
    kept.run([IMAGE])
    kept.export(tmp_path / "small.so")
    assert "ret" in kept.assembly()
    assert len(compilations) == 2
    loaded = tvm_blislike.CompiledModel.load(tmp_path / "small.so")
    np.testing.assert_array_equal(loaded.run([IMAGE])["scores"], kept.run([IMAGE])["scores"])


def test_another_question_has_another_key(model: Path, tmp_path: Path) -> None:
    core = tvm_blislike.native_core()
    other = tmp_path / "other.onnx"
    onnx.save(two_convolutions(), other)
    content = Content.of_file(model)
    records = tmp_path / "records.jsonl"
    records.write_text("{}\n")
    limits = tvm_blislike.Constraints(max_error=1e-7)
    keys = [
        key_of(content, core, 1),
        key_of(Content.of_file(other), core, 1),
        key_of(content, core, 2),
        key_of(content, tvm_blislike.Core.named("haswell"), 1),
        key_of(content, core, 1, {"image": (1, 3, 8, 8)}),
        key_of(content, core, 1, constraints=limits),
        key_of(content, core, 1, records=records),
        key_of(content, core, 1, learned=records),
    ]
    assert len(set(keys)) == len(keys)
    assert key_of(content, core, 1, constraints=tvm_blislike.Constraints()) == keys[0]
    assert key_of(content, core, 1, {}, None, RecordBook()) == keys[0]
    assert key_of(content, core, 1, records="none") == keys[0]


def test_what_is_asked_for_by_a_function_or_turned_off_is_not_kept(
    model: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tvm_blislike.compile(model, threads=1, override=lambda workload: None)
    tvm_blislike.compile(model, threads=1, cache=False)
    tvm_blislike.compile(small_network(), threads=1)
    assert not place.exists()
    monkeypatch.setenv("TVM_BLISLIKE_CACHE", "0")
    assert store.folder() is None
    tvm_blislike.compile(model, threads=1)
    assert store.entries() == [] and store.clear() == []


@pytest.mark.parametrize("name", ["kernels.so", "machine.bin", "weights.bin", "about.json"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_entry_is_compiled_again(
    model: Path,
    compilations: list[object],
    name: str,
    damage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tvm_blislike.tvm_seams.weights._LEAST_BYTES", 1)
    tvm_blislike.compile(model, threads=1)
    file = store.entries()[0].path / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        file.unlink()
    else:
        # Not in place: this process runs the library.
        file.unlink()
        file.write_bytes(content[: len(content) // 3] if damage == "cut" else content)
    again = tvm_blislike.compile(model, threads=1)
    assert len(compilations) == 2
    np.testing.assert_allclose(again.run([IMAGE])["scores"], small_reference(IMAGE), rtol=1e-4)
    tvm_blislike.compile(model, threads=1)
    assert len(compilations) == 2


@pytest.mark.parametrize("least", [1, 1 << 30])
def test_kept_sizes_share_weights(
    tmp_path: Path, compilations: list[object], least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_blislike.tvm_seams.weights._LEAST_BYTES", least)
    path, sizes = tmp_path / "open.onnx", {"N": range(1, 4)}
    onnx.save(small_network(batch="N"), path)
    tvm_blislike.compile(path, threads=1, shapes=sizes)
    kept = tvm_blislike.compile(path, threads=1, shapes=sizes)
    assert len(compilations) == 1
    bytes_of_one = 4 * (8 * 3 * 9 + 8 + 8 * 5)
    weights = (store.entries()[0].path / "weights.bin").stat().st_size
    # Blocks of kernels end with zeros.
    assert (bytes_of_one <= weights < 6 * bytes_of_one) if least == 1 else weights == 0
    for batch in (3, 1, 2):
        images = np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype("float32")
        for run in (kept.run, kept.runner(sizes={"image": images.shape}).run):
            expected = small_reference(images)
            np.testing.assert_allclose(run([images])["scores"], expected, rtol=1e-4)


def test_data_beside_a_model_counts(tmp_path: Path, compilations: list[object]) -> None:
    path = tmp_path / "outside.onnx"
    onnx.save(
        small_network(), path, save_as_external_data=True, location="data.bin", size_threshold=0
    )
    first = tvm_blislike.compile(path, threads=1).run([IMAGE])["scores"]
    tvm_blislike.compile(path, threads=1)
    assert len(compilations) == 1
    data = np.fromfile(tmp_path / "data.bin", "float32") * 2
    data.tofile(tmp_path / "data.bin")
    second = tvm_blislike.compile(path, threads=1).run([IMAGE])["scores"]
    assert len(compilations) == 2
    assert np.abs(first - second).max() > 1e-3


def test_warnings_of_the_compiler_are_given_again(
    tmp_path: Path, compilations: list[object]
) -> None:
    path = tmp_path / "open.onnx"
    onnx.save(small_network(batch="N"), path)
    for _ in range(2):
        with pytest.warns(UserWarning, match="compiled for 1"):
            tvm_blislike.compile(path, threads=1)
    assert len(compilations) == 1


def _write(text: str):
    return lambda folder: (folder / "file").write_text(text) and None


def test_those_not_used_for_longest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_BLISLIKE_CACHE_SIZE", "2K")
    for number in range(3):
        store.put(f"k{number}", _write("x" * 600))
        os.utime(store.find(f"k{number}"), (number, number))
    assert store.find("k0") is not None
    store.put("k3", _write("x" * 600))
    assert {kept.path.name for kept in store.entries()} == {"k0", "k2", "k3"}
    assert store.put("large", _write("x" * 3000)) is None
    assert len(store.entries()) == 3
    monkeypatch.setenv("TVM_BLISLIKE_CACHE_SIZE", "much")
    with pytest.raises(UsageError, match="is no size"):
        store.most_bytes()


def test_writers_and_readers_at_the_same_time(place: Path) -> None:
    seen: list[str] = []

    def work(text: str) -> None:
        for _ in range(20):
            store.put("key", _write(text * 1000))
            found = store.find("key")
            try:
                seen.append((found / "file").read_text() if found else "")
            except FileNotFoundError:
                seen.append("")

    threads = [threading.Thread(target=work, args=(text,)) for text in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) <= {"", "a" * 1000, "b" * 1000} and len(seen) == 40
    assert [path.name for path in place.iterdir() if path.is_dir()] == ["key"]


def test_a_writer_that_fails_leaves_nothing(place: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "part").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        store.put("key", fails)
    assert store.entries() == [] and not list(place.glob(".new-*"))


def test_a_folder_that_cannot_be_written_is_no_failure(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TVM_BLISLIKE_CACHE", str(tmp_path / "file" / "kept"))
    compiled = tvm_blislike.compile(model, threads=1)
    np.testing.assert_allclose(compiled.run([IMAGE])["scores"], small_reference(IMAGE), rtol=1e-4)
    assert "cannot be kept" in caplog.text


def test_commands(model: Path, compilations: list[object]) -> None:
    def invoke(*arguments: object) -> str:
        done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    for _ in range(2):
        invoke("run", model, "--threads", 1)
    assert len(compilations) == 1
    invoke("run", model, "--threads", 1, "--no-cache")
    assert len(compilations) == 2
    assert "gemm" in invoke("explain", model, "--threads", 1)
    assert len(compilations) == 2
    assert "small.onnx" in invoke("cache", "show")
    assert '"most_bytes"' in invoke("cache", "show", "--json")
    assert "removed 1 models" in invoke("cache", "clear")
    assert store.entries() == []


def test_a_compilation_tells_its_phases(model: Path) -> None:
    seen: list[str] = []
    with progress.listening(seen.append):
        tvm_blislike.compile(model, threads=1)
        assert seen == list(progress.PHASES)
        tvm_blislike.compile(model, threads=1)
    tvm_blislike.compile(model, threads=1, cache=False)
    assert seen == list(progress.PHASES)
    for phase in progress.PHASES:
        assert Text.from_markup(terminal._bar_of(phase)).plain == "━" * 10 + f" {phase}"
