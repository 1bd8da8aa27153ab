"""Records and their files: round trips, damage, several writers, a full disk."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import CORE, WORKLOADS, config, record

from tvm_blislike.errors import InputError, OutputError
from tvm_blislike.hardware import Core
from tvm_blislike.model.validity import core_facts
from tvm_blislike.records import files, maintain
from tvm_blislike.records.book import RecordBook, fastest
from tvm_blislike.records.record import BadRecordError, Record

HERE = Path(__file__).parent


@given(
    seconds=st.lists(st.floats(1e-9, 10), max_size=5),
    error=st.none() | st.floats(0, 1),
    reason=st.text(max_size=20),
)
@settings(max_examples=50, deadline=None)
def test_json_and_back(seconds: list[float], error: float | None, reason: str) -> None:
    made = record(seconds=seconds, error=error, reason=reason)
    line = made.to_json()
    assert "\n" not in line
    assert Record.from_json(line) == made


def test_a_line_says_everything_a_reader_needs() -> None:
    fields_ = json.loads(record().to_json())
    wanted = {"target", "core", "threads", "workload", "config", "seconds", "error", "versions"}
    assert wanted | {"date", "predicted_seconds", "context", "status"} <= set(fields_)
    assert fields_["versions"]["tvm-blislike"]


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_no_edited_or_torn_line_is_taken(data: st.DataObject) -> None:
    # The same line in every example: what is drawn depends on it.
    made = record(date="2026-01-01")
    line = made.to_json()
    place = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.characters(codec="ascii", exclude_characters=line[place] + "\n"))
    with pytest.raises(BadRecordError):
        Record.from_json(line[:place])
    try:
        # A space for a space or another spelling of a number changes nothing.
        assert Record.from_json(line[:place] + other + line[place + 1 :]) == made
    except BadRecordError:
        pass


def test_bad_lines_are_named_and_nothing_else_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    files.append(path, [record(place=place) for place in range(4)])
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace('"threads": 1', '"threads": 2')
    path.write_text("\n".join([*lines[:3], "not json", lines[3][:50]]))
    good, bad = files.read(path)
    assert [r.config for r in good] == [config(place=0), config(place=2)]
    assert [line.number for line in bad] == [2, 4, 5]
    assert "edited" in bad[0].reason and "torn" in bad[2].reason
    assert str(bad[0]).startswith(f"{path}, line 2: ")
    with pytest.warns(UserWarning, match=r"skipped 3 lines.*line 2: .*; .*line 4: "):
        RecordBook.open(path)


def test_appending_mends_a_torn_last_line(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    files.append(path, [record()])
    path.write_bytes(path.read_bytes() + b'{"half": ')
    files.append(path, [record(place=1)])
    good, bad = files.read(path)
    assert len(good) == 2 and [line.number for line in bad] == [2]


def test_folders_are_made_and_a_missing_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "records.jsonl"
    with pytest.raises(InputError, match="cannot read"):
        files.read(path)
    files.append(path, [record()])
    assert len(files.read(path)[0]) == 1
    with pytest.raises(OutputError, match="cannot write"):
        files.append(tmp_path, [record()])


def _python(code: str, *arguments: object, **options: object) -> subprocess.Popen[bytes]:
    text = f"import sys; sys.path.insert(0, {str(HERE)!r})\n" + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", text, *map(str, arguments)], **options)


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    code = """
        from made import record
        from tvm_blislike.records import files
        made = record()
        for number in range(60):
            files.append(sys.argv[1], [made] * (number % 3 + 1))
    """
    writers = [_python(code, path) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    good, bad = files.read(path)
    assert not bad
    assert len(good) == 3 * sum(number % 3 + 1 for number in range(60))


def test_a_full_disk_costs_only_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    files.append(path, [record()] * 3)
    size = path.stat().st_size
    code = """
        import resource
        from made import record
        from tvm_blislike.errors import OutputError
        from tvm_blislike.records import files
        limit = int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            files.append(sys.argv[1], [record()] * 2)
        except OutputError as error:
            sys.exit(7)
    """
    # One of the two records would fit, and half of the other.
    assert _python(code, path, size + size // 2).wait() == 7
    assert path.stat().st_size == size
    good, bad = files.read(path)
    assert len(good) == 3 and not bad
    files.append(path, [record()])
    assert len(files.read(path)[0]) == 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_without_space_is_an_error() -> None:
    with pytest.raises(OutputError, match="cannot write"):
        files.append("/dev/full", [record()])


def test_killed_writers_leave_a_file_others_can_use(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    code = """
        import os
        from made import record
        from tvm_blislike.records import files
        made = record()
        print("ready", flush=True)
        while True:
            files.append(sys.argv[1], [made])
            os.write(1, b"+")
    """
    for pause in (0.01, 0.05, 0.1):
        before = len(files.read(path)[0]) if path.exists() else 0
        writer = _python(code, path, stdout=subprocess.PIPE)
        writer.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(pause)
        writer.kill()
        confirmed = len(writer.stdout.read())
        writer.wait()
        good, _ = files.read(path)
        # What was reported written is there.
        assert len(good) >= before + confirmed
        files.append(path, [record()])
        assert len(files.read(path)[0]) == len(good) + 1


def test_default_file_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVM_BLISLIKE_RECORDS", str(tmp_path / "other.jsonl"))
    assert files.default_path() == tmp_path / "other.jsonl"
    monkeypatch.delenv("TVM_BLISLIKE_RECORDS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert files.default_path() == tmp_path / "tvm-blislike" / "records.jsonl"
    assert not RecordBook.open(None).of(WORKLOADS[0], CORE, 1)


def test_a_record_counts_for_the_same_core_threads_workload_and_version_only() -> None:
    made = record()
    book = RecordBook([made, record(place=1, versions={"tvm-blislike": "99.0", "apache-tvm": "0"})])
    assert book.usable(WORKLOADS[0], CORE, 1) == (made,)
    assert not book.usable(WORKLOADS[0], CORE, 2)
    assert not book.usable(WORKLOADS[1], CORE, 1)
    assert not book.usable(WORKLOADS[0], Core.named("haswell"), 1)
    renamed = replace(CORE, name="mine", source=("elsewhere",), notes=("assumed",))
    assert book.usable(WORKLOADS[0], renamed, 1) == (made,)


def test_facts_of_every_described_core_differ_where_kernels_do() -> None:
    from tvm_blislike.hardware import names

    cores = [Core.named(name) for name in names()]
    caches = {core_facts(core): [(c.bytes, c.ways) for c in core.caches] for core in cores}
    assert all(caches[core_facts(c)] == [(x.bytes, x.ways) for x in c.caches] for c in cores)
    assert core_facts(CORE) != core_facts(replace(CORE, mattr=()))


def test_the_latest_record_of_a_configuration_counts() -> None:
    old, new = record(date="2026-01-01"), record(date="2026-01-02", seconds=(5e-3,))
    for order in ([old, new], [new, old]):
        assert RecordBook(order).usable(WORKLOADS[0], CORE, 1) == (new,)
    dropped = replace(new, status="dropped", date="2026-01-03", context="cold")
    inside = record(date="2026-01-02", context="model")
    assert not RecordBook([dropped, inside, old]).usable(WORKLOADS[0], CORE, 1)
    again = replace(inside, date="2026-01-04")
    assert RecordBook([dropped, again]).usable(WORKLOADS[0], CORE, 1) == (again,)


def test_times_of_emulators_are_kept_apart() -> None:
    real = record()
    emulated = record(seconds=[1e-9] * 3, context="emulated", date="2999-01-01T00:00:00.000+00:00")
    book = RecordBook([real, emulated])
    assert book.usable(WORKLOADS[0], CORE, 1) == (real,)
    assert book.usable(WORKLOADS[0], CORE, 1, emulated=True) == (emulated,)
    assert maintain.best([real, emulated]) == [real] and not maintain.best([emulated])
    # What an emulator finds wrong says nothing of a board.
    assert RecordBook([real, replace(emulated, status="wrong")]).usable(WORKLOADS[0], CORE, 1)


def test_wrong_and_failed_are_never_usable() -> None:
    bad = [record(status="wrong"), record(place=1, status="failed", seconds=())]
    assert not RecordBook(bad).usable(WORKLOADS[0], CORE, 1)
    assert len(RecordBook(bad).of(WORKLOADS[0], CORE, 1)) == 2


def test_ties_within_the_spread_go_to_the_models_choice() -> None:
    choice = record(seconds=(1.00e-3, 1.02e-3, 1.04e-3))
    other = record(place=5, seconds=(0.99e-3, 1.01e-3, 1.03e-3))
    clearly = record(place=5, seconds=(0.90e-3, 0.91e-3, 0.92e-3))
    predicted = {choice.config: 1.0, other.config: 2.0}
    assert fastest([other, choice], predicted.__getitem__) is choice
    assert fastest([clearly, choice], predicted.__getitem__) is clearly
    inside = replace(choice, context="model", seconds=(5e-3,))
    assert fastest([clearly, inside], predicted.__getitem__) is inside


def test_merge_adds_each_record_once(tmp_path: Path) -> None:
    one, two, target = (tmp_path / name for name in ("one", "two", "target"))
    files.append(one, [record(), record(place=1)])
    files.append(two, [record(place=1, date="2026-01-01"), record(place=2)])
    two.write_text(two.read_text() + "torn")
    added, bad = maintain.merge(target, [one, two, one])
    assert added == 4 and len(bad) == 1
    assert maintain.merge(target, [one, two])[0] == 0
    assert len(files.read(target)[0]) == 4


def test_prune_keeps_what_counts(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    old = {"tvm-blislike": "99.0", "apache-tvm": "0"}
    kept = [
        record(seconds=(1e-3,), date="2026-01-02"),
        record(place=1, seconds=(2e-3,)),
        record(place=2, status="failed", seconds=()),
        record(WORKLOADS[1], seconds=(9e-3,)),
    ]
    files.append(path, [record(date="2026-01-01"), *kept, record(place=3, versions=old)])
    path.write_text(path.read_text() + "damaged\n")
    assert maintain.prune(path) == (4, 3)
    assert files.read(path) == (kept, [])
    assert maintain.prune(path, keep=1) == (3, 1)
    assert files.read(path)[0] == [kept[0], *kept[2:]]
    assert maintain.best(kept) == [kept[0], kept[3]]


def test_rewriting_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "records.jsonl"
    files.append(path, [record(), record(place=1)])
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OutputError):
            files.rewrite(path, [record(place=2)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".lock"] == [path.name]


def test_every_field_is_written() -> None:
    written = set(json.loads(record().to_json()))
    assert {f.name for f in fields(Record)} | {"format", "check"} == written


def test_files_survive_an_unreadable_byte(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    files.append(path, [record()])
    with open(path, "ab") as file:
        file.write(b"\xff\xfe\n" + os.urandom(100).replace(b"\n", b"") + b"\n")
    good, bad = files.read(path)
    assert len(good) == 1 and [line.number for line in bad] == [2, 3]
