"""Facts measured on this machine: their file, what they replace, and what is left alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from machines import AVX2, SAPPHIRE, x86

from tvm_blislike.hardware import Core, native_core, native_description, probed
from tvm_blislike.hardware.native import _described


@pytest.fixture(autouse=True)
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe is wanted, its folder empty, and nothing is known yet."""
    monkeypatch.setenv("TVM_BLISLIKE_PROBE", "1")
    monkeypatch.setattr(probed.platformdirs, "user_cache_path", lambda *_, **__: tmp_path / "cache")
    monkeypatch.setattr(probed, "_held", {})
    monkeypatch.setattr(probed, "_failed", {})


def measured_core(described: Core) -> Core:
    """The same machine with other facts throughout."""
    facts = {name: 2 * (getattr(described, name) or 1) + 1 for name in probed.FACTS}
    caches = [
        dataclasses.replace(
            cache, bytes_per_cycle=3.5 + cache.level, all_bytes_per_cycle=7.0, kept_of_half=0.25
        )
        for cache in described.caches
    ]
    return dataclasses.replace(
        described, **facts, name="probed-x", caches=tuple(caches), notes=("measured: today",)
    )


def test_nothing_kept_leaves_the_description() -> None:
    path, described = native_description()
    assert native_core() == described and not path.exists()


def test_kept_facts_are_those_of_the_present_machine() -> None:
    path, described = native_description()
    measured = measured_core(described)
    path.parent.mkdir(parents=True)
    path.write_text(measured.to_toml())
    core = native_core()
    assert core.name == described.name
    for name in probed.FACTS:
        assert getattr(core, name) == getattr(measured, name) != getattr(described, name)
    for cache, found, before in zip(core.caches, measured.caches, described.caches, strict=True):
        assert cache.bytes_per_cycle == found.bytes_per_cycle
        assert cache.all_bytes_per_cycle == found.all_bytes_per_cycle
        assert cache.kept_of_half == found.kept_of_half == 0.25
        assert (cache.bytes, cache.ways, cache.policy) == (before.bytes, before.ways, before.policy)
    assert core.target_config() == described.target_config()
    assert "measured: today" in core.notes
    assert not [n for n in core.notes if any(phrase in n for phrase in probed.SETTLED)]
    path.unlink()
    assert native_core() == core  # one answer in a process


def test_what_contradicts_nothing_leaves_the_description() -> None:
    _, described = native_description()
    known = {name: getattr(described, name) for name in probed.FACTS}
    near = {name: 1.02 * fact for name, fact in known.items() if fact is not None}
    near |= {name: known[name] + 0.03 for name in probed._ABSOLUTE if name in known}
    caches = [
        dataclasses.replace(c, bytes_per_cycle=1.1 * c.bytes_per_cycle, kept_of_half=0.75)
        for c in described.caches
    ]
    measured = dataclasses.replace(described, **near, caches=tuple(caches))
    told = probed.with_facts(described, measured).notes
    assert probed.with_facts(described, measured) == dataclasses.replace(described, notes=told)
    slower = dataclasses.replace(measured, ghz=0.9 * described.ghz)
    expected = dataclasses.replace(described, ghz=slower.ghz, notes=told)
    assert probed.with_facts(described, slower) == expected


def test_other_machines_are_described_only() -> None:
    machine = x86(SAPPHIRE)
    described = _described(machine)
    probed.hold(probed.path_of(described, machine), measured_core(described))
    assert native_core(machine) == described


def test_turned_off_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    path, described = native_description()
    probed.hold(path, measured_core(described))
    assert native_core() != described
    for value in ("0", "off", "No"):
        monkeypatch.setenv("TVM_BLISLIKE_PROBE", value)
        assert native_core() == described and probed.is_settled(path)


def test_a_broken_file_is_none() -> None:
    path, described = native_description()
    path.parent.mkdir(parents=True)
    for text in ("", "name = ", "name = 'x'"):
        path.write_text(text)
        assert native_core() == described and not probed.is_settled(path)


def test_what_failed_is_told() -> None:
    path, described = native_description()
    probed.give_up(path, "no such instruction")
    assert probed.is_settled(path)
    assert native_core().notes == (*described.notes, "not measured: no such instruction")
    assert dataclasses.replace(native_core(), notes=described.notes) == described


def test_files_are_of_one_kind_of_machine() -> None:
    one = x86(SAPPHIRE)
    others = [
        dataclasses.replace(one, brand="another"),
        dataclasses.replace(one, flags=one.flags | {"hypervisor"}),
        x86(SAPPHIRE - {"avx512vnni"}),
        x86(AVX2),
    ]
    paths = [probed.path_of(_described(m), m) for m in (one, *others)]
    assert len(set(paths)) == len(paths)
    core = _described(one)
    assert probed.path_of(dataclasses.replace(core, ghz=1.23, notes=("now",)), one) == paths[0]
