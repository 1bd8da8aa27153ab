"""What is known of register spills: true of today's compiler, found where it is asked for."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import EFFORT

from tvm_blislike.hardware import Core, names
from tvm_blislike.microkernels import TYPES, get_kernel, kernels_for, spills
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.passes import spills as counting

SAMPLED = ("x86-64-v3", "sapphirerapids", "zen4", "cortex-a72", "cortex-a53")
SAMPLE = 12


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache; what was read of the user's is forgotten, before and behind."""
    path = tmp_path / "cache" / "spills.json"
    monkeypatch.setattr(spills, "cache_path", lambda: path)
    forget()
    yield path
    monkeypatch.undo()
    forget()


def forget() -> None:
    spills.forget()
    counting.ensure.cache_clear()
    counting._unknown.clear()


def unknown(core: Core) -> Core:
    """The same core with a feature that nobody has asked about, but LLVM knows."""
    return dataclasses.replace(core, mattr=(*core.mattr, "+slow-3ops-lea"))


@pytest.mark.parametrize("name", SAMPLED)
def test_what_is_shipped_is_what_the_compiler_does(name: str) -> None:
    """A sample, half of it of blocks with accesses; with more effort other ones each time."""
    core, rng = Core.named(name), random.Random(name if EFFORT == 1 else None)
    found, nests = spills.found_for(core, FLOAT32), counting.nests_of(core, FLOAT32)
    spilled = [n for n in nests if found[n.name].get(n.block)]
    sample = rng.sample(nests, SAMPLE) + rng.sample(spilled, min(len(spilled), SAMPLE // 2))
    # All nests of the name and block: the largest count was kept.
    named = {(n.name, n.block) for n in sample}
    counted = counting.counted(core, [n for n in nests if (n.name, n.block) in named])
    for nest, block in sorted(named):
        assert counted[nest][block] == pytest.approx(found[nest].get(block, 0.0), abs=1e-3), (
            f"{nest} {block} of {name}: run `python -m tvm_blislike.passes.spills` anew"
        )


@pytest.mark.parametrize("name", names())
def test_every_described_core_is_known_or_has_its_like(name: str) -> None:
    core = Core.named(name)
    for types in (t for t in TYPES if kernels_for(core, t)):
        wanted = {nest.name for nest in counting.nests_of(core, types)}
        found = [spills.found_for(core, types), *spills.alike(core, types)]
        assert any(wanted <= set(blocks) for blocks in found), types


@pytest.mark.parametrize("name", names())
def test_what_is_shipped_lacks_nothing(own_cache: Path, name: str) -> None:
    core = Core.named(name)
    for types in (t for t in TYPES if spills.is_shipped(core, t)):
        assert not counting._missing(core, types), types


@pytest.mark.parametrize("own", [False, True])
def test_nests_are_built_where_more_may_be_wanted_than_is_shipped(
    own_cache: Path, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, built = Core.named("zen4"), []
    monkeypatch.setattr(counting, "nests_of", lambda *about: built.append(about) or [])
    monkeypatch.setattr(counting, "user_implementations", lambda: (object(),) * own)
    counting.ensure(core, FLOAT32)
    assert built == [(core, FLOAT32)] * own
    counting.ensure(unknown(core), FLOAT32)
    assert (unknown(core), FLOAT32) in built


def test_features_of_other_kernels_and_missing_ones_are_no_key() -> None:
    core = Core.named("sapphirerapids")
    bare = dataclasses.replace(core, mattr=("-prefer-256-bit", "-avx512fp16", "+avx512vnni"))
    assert spills.key_of(core, FLOAT32) == spills.key_of(bare, FLOAT32)
    other = dataclasses.replace(core, mattr=("+some-tuning",))
    assert spills.key_of(core, FLOAT32) != spills.key_of(other, FLOAT32)


def test_blocks_that_avx2_holds_are_offered() -> None:
    """15 and 16 of 16 registers, as BLIS has them."""
    core = Core.named("x86-64-v3")
    for name in ("avx2_f32_6x16", "avx2_f32_4x24"):
        for nest in ("gemm", "winograd", "im2col pixels across", "im2col filters across"):
            assert spills.keeps_registers(core, get_kernel(name), nest), (name, nest)
    assert not spills.keeps_registers(core, get_kernel("avx2_f32_6x16"), "direct window 3/1")


def test_another_processor_is_counted_once_where_its_like_disagree(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = unknown(Core.named("zen4"))
    compiled = []
    count = counting.counted
    monkeypatch.setattr(counting, "counted", lambda c, n: compiled.extend(n) or count(c, n))
    assert not spills.found_for(core, FLOAT32)
    counting.ensure(core, FLOAT32)
    found = spills.found_for(core, FLOAT32)
    assert {nest.name for nest in counting.nests_of(core, FLOAT32)} == set(found)
    assert 0 < len(compiled) < len(counting.nests_of(core, FLOAT32)) / 4
    # Another process reads the file.
    del compiled[:]
    forget()
    counting.ensure(core, FLOAT32)
    assert (compiled, spills.found_for(core, FLOAT32)) == ([], found)


def test_another_llvm_has_facts_of_its_own(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing shipped holds for it: all is counted, in processes of their own, and kept."""
    core, versions = Core.named("x86-64-v3"), spills.versions()
    shipped = spills.found_for(core, FLOAT32)
    nests = [n for n in counting.nests_of(core, FLOAT32) if n.name in ("gemm", "direct")]
    monkeypatch.setattr(counting, "nests_of", lambda *_: nests)
    monkeypatch.setattr(counting, "_BATCH", 4)
    monkeypatch.setattr(counting, "code_threads", lambda: 2)
    monkeypatch.setattr(spills, "versions", lambda: {**versions, "llvm": "99"})
    forget()
    assert not spills.found_for(core, FLOAT32)
    counting.ensure(core, FLOAT32)
    assert spills.found_for(core, FLOAT32) == {n.name: shipped[n.name] for n in nests}


def test_without_facts_two_registers_are_left_over(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spills, "versions", lambda: {"llvm": "99"})
    forget()
    core = Core.named("x86-64-v3")
    assert not spills.keeps_registers(core, get_kernel("avx2_f32_6x16"), "gemm")
    assert spills.keeps_registers(core, get_kernel("avx2_f32_5x16"), "gemm")
    assert not spills.keeps_registers(core, get_kernel("avx2_f32_5x16"), "direct window 9/1", False)


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"versions": {}, "found": {}})])
def test_a_torn_or_old_file_is_no_file(own_cache: Path, content: str) -> None:
    own_cache.parent.mkdir()
    own_cache.write_text(content)
    assert not spills.found_for(unknown(Core.named("x86-64-v3")), FLOAT32)


def test_a_cache_that_cannot_be_written_is_a_note(own_cache: Path) -> None:
    own_cache.parent.write_text("a file where the folder should be")
    core = unknown(Core.named("x86-64-v3"))
    counting.ensure(core, FLOAT32)
    (note,) = counting.notes(core)
    assert "float32" in note and "a rule stands in" in note
    assert spills.keeps_registers(core, get_kernel("avx2_f32_6x16"), "gemm")
