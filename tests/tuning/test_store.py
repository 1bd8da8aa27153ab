"""Records that machines share: folders, object stores, web servers; failures lose nothing."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from made import CORE, WORKLOADS, MadeRunner, config, record
from small import run_command, small_model
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike.cli.app import app
from tvm_blislike.errors import OutputError, StoreWarning, ToolchainError, UsageError
from tvm_blislike.model.validity import core_facts, versions
from tvm_blislike.records import files, maintain, store
from tvm_blislike.records.book import RecordBook
from tvm_blislike.records.place import is_store, local_file
from tvm_blislike.records.record import Record
from tvm_blislike.records.store import Store, opened, up_to_date
from tvm_blislike.tuning.tune import tune

# Calls what follows it as another machine: with another folder for the user's data.
Machine = Callable[[str], None]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Let this process be one machine or another; it begins as "one"."""

    def become(name: str) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "machines" / name))
        monkeypatch.setattr(store, "_failed", {})

    become("one")
    return become


@pytest.fixture(params=["folder", "url of a folder", "objects"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return an empty store of each kind that can be written."""
    if request.param == "objects":
        pytest.importorskip("fsspec", reason="it is part of the extra `store`")
        return f"memory://{tmp_path.name}/records"
    folder = str(tmp_path / "shared") + "/"
    return folder if request.param == "folder" else f"file://{folder}"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serve the folder `shared` as web servers do: with pages that list it, and read only."""
    pytest.importorskip("aiohttp", reason="it is part of the extra `store`")
    (tmp_path / "shared").mkdir(exist_ok=True)
    handler = partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def _shared(place: str, *records: Record) -> None:
    kept = Store(place)
    kept.put(records)
    kept.send_or_raise()


def _read(place: str, threads: int | None = None) -> list[Record]:
    kept = opened(place)
    kept.get(CORE, threads)
    return files.read(kept.path)[0] if kept.path.exists() else []


def _objects(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jsonl"))


@pytest.mark.parametrize(
    "text, expected",
    [("a.jsonl", False), ("none", False), ("a/", True), ("s3://a/b", True), (".", True)],
)
def test_urls_and_folders_are_stores(text: str, expected: bool) -> None:
    assert is_store(text) == expected
    assert (local_file(text) == Path(text)) != expected


def test_each_store_has_a_local_copy_of_its_own(tmp_path: Path) -> None:
    places = ["s3://a/b", "s3://a/c", "s3://a-b", f"{tmp_path}/", f"{tmp_path / 'a'}/"]
    assert len({local_file(place) for place in places}) == len(places)
    assert local_file(f"{tmp_path}/") == local_file(str(tmp_path))
    assert local_file("s3://a/b") == local_file("s3://a/b/")


def test_what_one_machine_puts_another_gets(place: str, machine: Machine) -> None:
    written = [record(w, place=i) for w in WORKLOADS for i in range(2)]
    _shared(place, *written)
    machine("other")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sorted(r.to_json() for r in _read(place)) == sorted(r.to_json() for r in written)
    book = RecordBook.open(place, CORE, 1)
    assert len(book.usable(WORKLOADS[0], CORE, 1)) == 2


def test_what_is_read_is_of_the_core_the_threads_and_the_versions(
    place: str, machine: Machine
) -> None:
    old = {"tvm-blislike": "0.1.0", "apache-tvm": "0.20.0"}
    two, other = record(threads=2), record(facts="another")
    _shared(place, record(), two, other, record(versions=old))
    machine("other")
    assert [r.threads for r in _read(place, 1)] == [1]
    assert {r.threads for r in _read(place)} == {1, 2}
    kept = opened(place)
    kept.get()
    assert len(files.read(kept.path)[0]) == 3  # those of other versions are not even read


def test_an_object_is_taken_once_and_by_any_name(tmp_path: Path, machine: Machine) -> None:
    shared = tmp_path / "shared"
    _shared(f"{shared}/", record())
    _shared(f"{shared}/", record(place=1))
    first, second = _objects(shared)
    joined = first.with_name("all.jsonl")
    joined.write_bytes(second.read_bytes() + first.read_bytes())
    machine("other")
    assert len(_read(f"{shared}/")) == 2
    for path in (first, second, joined):
        path.unlink()
    assert len(_read(f"{shared}/")) == 2
    local_file(f"{shared}/").unlink()
    joined.write_bytes(record().to_json().encode())
    # Who removes the local copy reads everything again.
    assert len(_read(f"{shared}/")) == 1


def test_writers_at_once_overwrite_nothing(tmp_path: Path, machine: Machine) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from made import record\n"
        "from tvm_blislike.records.store import Store\n"
        "for number in range(10):\n"
        "    kept = Store(sys.argv[2])\n"
        "    kept.put([record(seconds=[(int(sys.argv[3]) * 10 + number + 1) * 1e-3])])\n"
        "    kept.send_or_raise()\n"
    )
    arguments = [sys.executable, "-c", code, str(Path(__file__).parent), f"{tmp_path}/shared/"]
    # Two on this machine, with one local copy.
    writers = [subprocess.Popen([*arguments, str(number)]) for number in range(2)]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    machine("other")
    assert len({r.seconds for r in _read(f"{tmp_path}/shared/")}) == 20
    machine("one")
    assert len({r.seconds for r in _read(f"{tmp_path}/shared/")}) == 20


def test_a_writer_that_waited_finds_its_records_sent(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two on this machine send what both put; one waits for the lock while the other sends all."""
    place, lock = f"{tmp_path}/shared/", files.locked
    kept = Store(place)
    kept.put([record()])

    def after_the_other(path: Path) -> AbstractContextManager[None]:
        monkeypatch.setattr(files, "locked", lock)
        Store(place).send_or_raise()
        return lock(path)

    monkeypatch.setattr(files, "locked", after_the_other)
    kept.send_or_raise()
    assert files.locked is lock  # It was asked for.
    machine("other")
    assert len(_read(place)) == 1


def test_without_the_store_nothing_is_lost(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{tmp_path}/shared/"
    (tmp_path / "shared").write_text("no folder")
    kept = Store(place)
    kept.put([record()])
    with pytest.warns(StoreWarning, match="cannot write records to .*shared/.*kept in .*unsent"):
        kept.send()
    with pytest.raises(OutputError, match="cannot write records"):
        kept.send_or_raise()
    assert len(files.read(kept.path)[0]) == 1
    (tmp_path / "shared").unlink()
    # Another process, later, measures something else.
    _shared(place, record(place=1))
    machine("other")
    assert len(_read(place)) == 2


def test_a_killed_writer_costs_nothing(tmp_path: Path, machine: Machine) -> None:
    place = f"{tmp_path}/shared/"
    Store(place).put([record()])  # ends before it sends
    _shared(place, record(place=1))
    machine("other")
    assert len(_read(place)) == 2


def test_records_are_sent_while_measuring_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Store(f"{tmp_path}/shared/")
    kept.put([record()])
    assert not _objects(tmp_path / "shared")
    monkeypatch.setattr(store, "_SEND_SECONDS", 0.0)
    kept.put([record(place=1)])
    (made,) = _objects(tmp_path / "shared")
    assert len(made.read_text().splitlines()) == 2
    folder = made.relative_to(tmp_path / "shared").parts[:-1]
    assert folder[1:] == (core_facts(CORE), "1") and folder[0].startswith("0.")


def test_a_web_server_is_read(server: str, tmp_path: Path, machine: Machine) -> None:
    _shared(f"{tmp_path}/shared/", record(), record(WORKLOADS[1]))
    machine("ci")
    url = f"{server}/shared"
    assert len(_read(url, 1)) == 2
    kept = Store(url)
    kept.put([record(place=1)])
    with pytest.warns(StoreWarning, match="cannot write records to http"):
        kept.send()
    assert len(files.read(kept.path)[0]) == 3


def test_one_file_on_a_web_server_is_read_whenever_it_changes(
    server: str, tmp_path: Path, machine: Machine
) -> None:
    url, file = f"{server}/all.jsonl", tmp_path / "all.jsonl"
    files.append(file, [record()])
    assert len(_read(url)) == 1
    files.append(file, [record(place=1)])
    assert len(_read(url)) == 2 and len(_read(url)) == 2


@pytest.mark.parametrize("kind", ["refused", "hangs", "page"])
def test_what_does_not_answer_as_a_store_leaves_the_local_copy(
    kind: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server}/all.jsonl"
    files.append(tmp_path / "all.jsonl", [record()])
    assert len(_read(url)) == 1

    def answer(*_: object) -> None:
        time.sleep(60)

    if kind == "page":  # of a hotel
        (tmp_path / "all.jsonl").write_text("<html>\n<p>Room number?\n</html>\n")
    elif kind == "hangs":
        monkeypatch.setattr(store, "ANSWER_SECONDS", 0.3)
        monkeypatch.setattr(_Quiet, "do_GET", answer)
    else:
        url = "http://127.0.0.1:1/all.jsonl"
        files.append(local_file(url), [record()])
    started = time.monotonic()
    with pytest.warns(StoreWarning) as caught:
        assert len(_read(url)) == 1
    (told,) = [str(w.message) for w in caught if w.category is StoreWarning]
    assert url in told or "all.jsonl" in told
    with warnings.catch_warnings():  # said once, and not tried again soon
        warnings.simplefilter("error")
        assert len(_read(url)) == 1
    assert time.monotonic() - started < 50


def test_damaged_objects_are_named(tmp_path: Path, machine: Machine) -> None:
    shared = tmp_path / "shared"
    _shared(f"{shared}/", record(), record(place=1))
    (made,) = _objects(shared)
    whole = made.read_bytes()
    made.write_bytes(whole[:-30])  # it is still being written
    machine("other")
    with pytest.warns(StoreWarning, match=f"not complete or changed: .*{made.name}"):
        assert not _read(f"{shared}/")
    made.write_bytes(whole)
    assert len(_read(f"{shared}/")) == 2
    edited = whole.replace(b'"threads": 1', b'"threads": 1 ', 1).replace(b"1e-07", b"1e-08", 1)
    made.with_name("edited.jsonl").write_bytes(edited)
    machine("third")
    with pytest.warns(StoreWarning, match=r"1 damaged lines .*edited\.jsonl"):
        assert len(_read(f"{shared}/")) == 2


@pytest.mark.parametrize("place", ["s4://bucket/records", "htp://host/records"])
def test_urls_that_nothing_knows_are_refused(place: str) -> None:
    pytest.importorskip("fsspec", reason="it is part of the extra `store`")
    with pytest.raises(UsageError, match="Protocol not known") as caught:
        Store(place)
    assert "s3://BUCKET/records" in caught.value.hint
    result = CliRunner().invoke(app, ["records", "show", "--records", place])
    assert result.exit_code == 2 and place in result.stderr


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ToolchainError, match="need fsspec") as caught:
        Store("https://host/records")
    assert "tvm-blislike[store]" in caught.value.hint
    _shared(f"{tmp_path}/shared/", record())  # a folder needs nothing


def test_a_store_without_records_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.warns(StoreWarning, match=f"no records .* for {CORE.name} with 1 threads in "):
        assert up_to_date(f"{tmp_path}/typo/", CORE, 1) == "none"


def test_merging_into_a_store_and_out_of_it(tmp_path: Path, machine: Machine) -> None:
    place, own, there = f"{tmp_path}/shared/", tmp_path / "own.jsonl", tmp_path / "there.jsonl"
    files.append(own, [record(), record(place=1)])
    assert maintain.merge(place, [own]) == (2, [])
    assert maintain.merge(place, [own]) == (0, [])
    machine("other")
    run_command("records", "merge", there, place)
    assert len(files.read(there)[0]) == 2
    assert run_command("records", "best", "--records", place).stdout.count("gemm") >= 1
    run_command("records", "prune", "--keep", 1, "--records", place)
    assert len(files.read(local_file(place))[0]) == 1
    assert len(_objects(tmp_path / "shared")) == 1


def test_a_sweep_goes_on_from_what_others_measured(tmp_path: Path, machine: Machine) -> None:
    model, place = small_model(tmp_path / "small.onnx"), f"{tmp_path}/shared/"
    measured = []
    for index in range(2):
        machine(f"node {index}")
        runner = MadeRunner()
        done = tune(model, CORE, threads=1, records=place, runner=runner, shard=f"{index}/2")
        measured.append(done.measured)
        assert done.records == local_file(place)
    assert all(measured)
    machine("last")
    last = tune(model, CORE, threads=1, records=place, runner=MadeRunner())
    assert last.measured == 0 and all(layer.measured for layer in last.layers)


def test_compilations_follow_a_store(
    tuned: tuple[Path, Path, object],
    tmp_path: Path,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, records, _ = tuned
    place = f"{tmp_path}/shared/"
    maintain.merge(place, [records])

    def followed(**options: object) -> bool:
        report = tvm_blislike.explain(model, threads=1, **options)
        return any(layer.measured_ms for layer in report.layers)

    machine("ci")
    assert followed(records=place)
    monkeypatch.setenv("TVM_BLISLIKE_RECORDS", place)
    machine("another")
    assert followed() and not followed(records="none")
    result = run_command("explain", model, "--threads", 1, "--json")
    assert '"measured_ms": 0' in result.stdout
    run_command("compile", model, "--threads", 1, "-o", tmp_path / "out.so")


def test_a_kept_model_is_compiled_again_for_new_records(tmp_path: Path) -> None:
    from tvm_blislike.api import _up_to_date
    from tvm_blislike.cache.key import Content, key_of

    model, place = small_model(tmp_path / "small.onnx"), f"{tmp_path}/shared/"

    def key() -> str:
        return key_of(Content.of_file(model), CORE, 1, records=_up_to_date(place, CORE, 1))

    _shared(place, record())
    first = key()
    assert key() == first
    made = record(place=1)
    folder = _objects(tmp_path / "shared")[0].parent
    (folder / "theirs.jsonl").write_text(made.to_json() + "\n")
    assert key() != first


def test_objects_are_named_after_compatible_versions() -> None:
    patched = replace(record(), versions={**versions(), "apache-tvm": "0.27.9"})
    assert store._folder(patched.versions) == store._folder(versions())
    assert config() == record().config
