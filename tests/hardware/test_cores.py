"""Every TOML of the package, and the reading and writing of TOML in general."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_blislike.hardware import (
    Cache,
    Core,
    CoreFileError,
    UnknownCoreError,
    described_cores,
    names,
)
from tvm_blislike.hardware.core import dtype_bits
from tvm_blislike.hardware.corefile import CACHE_POLICIES
from tvm_blislike.hardware.keys import expanded

X86 = {
    *("haswell", "skylake", "skylake-avx512", "icelake-server", "icelake-client"),
    *("sapphirerapids", "emeraldrapids", "graniterapids"),
    *("golden-cove", "gracemont", "lion-cove", "skymont"),
    *("zen1", "zen2", "zen3", "zen4", "zen5", "zen5-mobile", "x86-64-v3"),
}
ARM = {
    *("cortex-a53", "cortex-a55", "cortex-a57", "cortex-a72", "cortex-a73", "cortex-a76"),
    *("cortex-a78", "cortex-a510", "cortex-a520", "cortex-a710", "cortex-a715", "cortex-a720"),
    *("cortex-a725", "cortex-x1", "cortex-x2", "cortex-x3", "cortex-x4"),
    *("neoverse-n1", "neoverse-n2", "neoverse-n3", "neoverse-v1", "neoverse-v2", "neoverse-v3"),
    *("carmel", "apple-m1", "apple-m2", "apple-m3", "apple-m4"),
}


def test_the_promised_cores_are_described():
    assert set(names()) >= X86 | ARM
    assert all(core.recognized_by for core in described_cores() if core.name != "x86-64-v3")
    assert list(names()) == sorted(names())


@pytest.mark.parametrize("name", names())
def test_described_core_is_sane(name):
    core = Core.named(name)
    assert core.name == name
    assert len(core.source) >= 2 and all(len(s) > 10 for s in core.source)
    bits, registers = {"avx512": (512, 32), "avx2": (256, 16), "neon": (128, 32)}[core.isa.name]
    assert (core.vector_bits, core.vector_registers) == (bits, registers)
    assert core.fma_per_cycle in (1, 2, 4) and 2 <= core.fma_latency <= 10
    assert 0.5 <= core.stores_per_cycle <= core.loads_per_cycle <= 3
    assert 1 <= core.ghz <= 6
    assert 1 <= core.memory_core_gb_per_s <= core.memory_gb_per_s <= 1000
    assert (core.reorder_window is None) == core.in_order
    rates = [cache.bytes_per_cycle for cache in core.caches]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > core.memory_core_gb_per_s / core.ghz
    assert rates[0] <= core.loads_per_cycle * core.vector_bits / 8  # all that loads can take
    assert 0 <= core.element_load_cycles <= core.vector_load_cycles <= 0.5
    assert 256 <= core.ahead_bytes <= 16384
    assert 2 <= core.lines_in_flight <= 64 and 1 <= core.fork_join_us <= 50
    assert core.reorder_window is None or 32 <= core.reorder_window <= 1024
    assert core.loads_in_flight is None or 16 <= core.loads_in_flight <= core.reorder_window
    assert core.memory_ns is None or 20 <= core.memory_ns <= 300
    assert (core.loads_in_flight is None) == (core.memory_ns is None)
    if core.isa.name == "neon":
        assert core.mtriple.startswith(("aarch64-", "arm64-"))
    else:
        assert core.mtriple.startswith("x86_64-")
    # What was not measured is said to be an estimate.
    assert core.name == "sapphirerapids" or any("estimate" in n or "assum" in n for n in core.notes)
    assert 1 <= core.cores <= 128


@pytest.mark.parametrize("name", names())
def test_described_caches_are_sane(name):
    caches = Core.named(name).caches
    assert [c.level for c in caches] == [1, 2, 3][: len(caches)] and len(caches) >= 2
    for cache in caches:
        assert cache.line_bytes in (64, 128)
        assert cache.sets * cache.ways * cache.line_bytes == cache.bytes  # nothing rounded off
        assert cache.shared_by <= 128
    assert caches[0].shared_by == 1 and 32 * 1024 <= caches[0].bytes <= 128 * 1024
    assert [c.bytes for c in caches] == sorted(c.bytes for c in caches)
    assert [c.shared_by for c in caches] == sorted(c.shared_by for c in caches)


@pytest.mark.parametrize("name", names())
def test_round_trip(name, tmp_path):
    core = Core.named(name)
    path = tmp_path / "core.toml"
    path.write_text(core.to_toml(), encoding="utf-8")
    assert Core.from_toml(path) == core
    assert hash(Core.from_toml(str(path))) == hash(core)


@given(
    text=st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip),
    number=st.floats(1e-6, 1e8),
    levels=st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from(CACHE_POLICIES)), min_size=0, max_size=4
    ),
)
def test_round_trip_of_any_text_and_number(tmp_path_factory, text, number, levels):
    core = replace(
        Core.named("haswell"),
        name=text,
        notes=(text, "plain"),
        ghz=number,
        memory_gb_per_s=number,
        reorder_window=None,
        caches=tuple(
            Cache(i + 1, 640 * ways, ways, 64, 16, shared_by=ways, policy=policy)
            for i, (ways, policy) in enumerate(levels)
        ),
    )
    path = tmp_path_factory.mktemp("round") / "core.toml"
    path.write_bytes(core.to_toml().encode())
    assert Core.from_toml(path) == core


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("hasswell", "haswell"),
        ("cortex_a72", "cortex-a72"),
        ("a72", "cortex-a72"),
        ("SapphireRapids", "sapphirerapids"),
    ],
)
def test_unknown_name_suggests_the_nearest(wrong, near):
    with pytest.raises(UnknownCoreError, match=rf"Did you mean [^?]*{near}") as caught:
        Core.named(wrong)
    assert isinstance(caught.value, ValueError)


def test_unknown_name_without_a_near_one_lists_all():
    with pytest.raises(UnknownCoreError) as caught:
        Core.named("../secret")
    assert "Did you mean" not in str(caught.value)
    assert all(name in str(caught.value) for name in names())


def broken(tmp_path: Path, pattern: str, replacement: str) -> str:
    """Return the message of the error when haswell's TOML is changed so."""
    text, changed = re.subn(pattern, replacement, Core.named("haswell").to_toml(), flags=re.M)
    assert changed
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(CoreFileError) as caught:
        Core.from_toml(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "replacement", "field", "remedy"),
    [
        (r"^mcpu = .*\n", "", "'mcpu' missing", "non-empty string"),
        (r'^isa = "avx2"', 'isa = "sse2"', "'isa' is 'sse2'", "one of avx512, avx2, neon"),
        (r"^fma_latency = 5", "fma_latency = 4.5", "'fma_latency' is 4.5", "whole number above 0"),
        (r"^fma_per_cycle = 2", "fma_per_cycle = true", "'fma_per_cycle'", "number above 0"),
        (r"^ghz = .*", "ghz = -1", "'ghz' is -1", "number above 0"),
        (r"^cores = 4", "cores = true", "'cores' is True", "whole number above 0"),
        (r"^ghz = .*", "ghz = inf", "'ghz' is inf", "number above 0"),
        (r"^ghz = .*", "ghz = nan", "'ghz' is nan", "number above 0"),
        (r"^vector_bits = 256", "vector_bits = 64", "'vector_bits' is 64", "128, 256 or 512"),
        (r"^mattr = \[\]", 'mattr = ["avx2"]', "'mattr'", '"+name" or "-name"'),
        (r"^source = \[[^]]*\]", "source = []", "'source' is []", "at least one document"),
        (r"^cores = ", "kores = ", "'kores' unknown", "known fields: name, source"),
        (r"^level = 2", "level = 7", "'caches'", "levels [1, 7, 3] are not rising"),
        (r"^bytes = 262144", "bytes = 256", "'caches[1].bytes'", "ways * line_bytes"),
        (r"^ways = 16", "ways = 0", "'caches[2].ways' is 0", "whole number above 0"),
        (r"^ways = 16", "associativity = 16", "'caches[2].associativity' unknown", "ways"),
        (r'^policy = "non-inclusive"', 'policy = "none"', "'caches[1].policy'", "victim"),
        (r"^\[\[caches\]\]\nlevel = 1\n(.+\n)*", "caches = [1]\n", "not a TOML", ""),
        (r"^(\[\[caches\]\](\n.+)*\n*)+", "[caches]\n", "'caches'", "one [[caches]] per level"),
        (r"^ghz = ", "ghz == ", "not a TOML file", "line"),
    ],
)
def test_malformed_toml_names_file_field_and_remedy(tmp_path, pattern, replacement, field, remedy):
    message = broken(tmp_path, pattern, replacement)
    assert field in message and remedy in message


def test_unreadable_files(tmp_path):
    with pytest.raises(CoreFileError, match="No such file"):
        Core.from_toml(tmp_path / "absent.toml")
    with pytest.raises(CoreFileError, match="directory"):
        Core.from_toml(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(CoreFileError, match="not a TOML file"):
        Core.from_toml(tmp_path / "latin.toml")


def test_optional_fields_may_be_absent():
    generic = Core.named("x86-64-v3")
    assert generic.issue_per_cycle is None and generic.features == ()
    assert generic.caches[0].shared_by == 1 and generic.caches[0].all_bytes_per_cycle is None


def test_lanes():
    assert [Core.named(n).lanes() for n in ("zen4", "zen3", "cortex-a53")] == [16, 8, 4]
    assert Core.named("zen4").lanes("int8") == 64
    assert Core.named("cortex-a53").lanes("float64") == 2


@pytest.mark.parametrize("key", ["0x41:d0b", "0X41:0xd0b", "AMD:25", "Intel:6:97", "a:6:0x97:big"])
def test_senseless_keys_are_refused(tmp_path, key):
    message = broken(tmp_path, r"^recognized_by = \[[^]]*\]", f'recognized_by = ["{key}"]')
    assert "'recognized_by'" in message and "AuthenticAMD:25:0x10-0x1f" in message


def test_keys_stand_for_every_model_they_name():
    assert expanded("0x41:0xd0b") == ("0x41:0xd0b",)
    assert expanded("GenuineIntel:6:0xad-0xae") == ("GenuineIntel:6:0xad", "GenuineIntel:6:0xae")
    assert expanded("GenuineIntel:6:0x97:atom") == ("GenuineIntel:6:0x97:atom",)
    assert len(expanded("AuthenticAMD:26:0x00-0x1f")) == 32
    assert expanded("Apple M2") == ("Apple M2",)


def test_dtype_bits():
    bits = {"float32": 32, "bfloat16": 16, "int8": 8, "float8_e4m3fn": 8, "bool": 8}
    assert {dtype: dtype_bits(dtype) for dtype in bits} == bits
    with pytest.raises(ValueError, match="'handle'"):
        dtype_bits("handle")


def test_peak_by_hand():
    # 8 lanes * 2 operations * 2 FMA per cycle * 3.4 GHz = 108.8 GFLOP/s a core
    haswell = Core.named("haswell")
    assert haswell.peak_gflops() == pytest.approx(108.8)
    assert haswell.peak_gflops(2) == pytest.approx(217.6)
    assert haswell.peak_gflops(64) == pytest.approx(4 * 108.8)  # it has four cores
    assert haswell.peak_gflops(dtype="float64") == pytest.approx(54.4)
    # one FMA a cycle for 512 bits: 16 * 2 * 4.5
    assert Core.named("zen4").peak_gflops() == pytest.approx(144)


def test_cache_geometry():
    l1, l2 = Core.named("cortex-a72").caches
    assert (l1.sets, l2.sets) == (256, 1024)
    assert Core.named("cortex-a72").cache(2) is not None
    assert Core.named("cortex-a72").cache(3) is None


def test_target_config():
    assert Core.named("cortex-a72").target_config(threads=2) == {
        "kind": "llvm",
        "mtriple": "aarch64-unknown-linux-gnu",
        "mcpu": "cortex-a72",
        "num-cores": 2,
    }
    skx = Core.named("skylake-avx512").target_config()
    assert skx["mattr"] == ["-prefer-256-bit"] and skx["num-cores"] == 20


def test_import_is_light():
    # py-cpuinfo costs a second, TVM several: neither belongs to reading a TOML.
    script = (
        "import sys; from tvm_blislike import hardware; hardware.Core.named('haswell');"
        "print({'cpuinfo', 'tvm', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


@pytest.mark.parametrize("name", names())
def test_llvm_knows_the_target(name):
    """TVM accepts the configuration, and vectors come out as wide as the core's registers."""
    tvm = pytest.importorskip("tvm")
    from tvm.script import tirx as T

    lanes = Core.named(name).lanes()

    @T.prim_func
    def twice(a: T.handle, b: T.handle):
        source = T.match_buffer(a, (lanes,), "float32")
        result = T.match_buffer(b, (lanes,), "float32")
        result[T.ramp(0, 1, lanes)] = source[T.ramp(0, 1, lanes)] * T.broadcast(T.float32(3), lanes)

    target = tvm.target.Target(Core.named(name).target_config(1))
    assembly = tvm.compile(tvm.IRModule({"main": twice}), target).mod.inspect_source("asm")
    register = {"avx512": "zmm", "avx2": "ymm", "neon": r"fmul(\.4s\s|.*\.4s)"}
    assert re.search(register[Core.named(name).isa.name], assembly)
    assert "is not a recognized" not in assembly
    if Core.named(name).isa.name == "neon":
        assert bool(target.attrs["feature.has_fp16_simd"]) == Core.named(name).computes("float16")
