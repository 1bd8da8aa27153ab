"""Which core a machine is taken for, and its target: synthetic flags, and the present machine."""

import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from machines import AVX2, AVX512, ICELAKE, SAPPHIRE, arm, failing, x86
from tvm.target import codegen

from tvm_blislike.hardware import Core, described_cores, names, native_core, recognition
from tvm_blislike.hardware import core as core_module
from tvm_blislike.hardware import machine as machine_module
from tvm_blislike.hardware.corefile import CACHE_POLICIES
from tvm_blislike.hardware.cpus import Cpu, FoundCache
from tvm_blislike.hardware.keys import expanded
from tvm_blislike.hardware.machine import Machine
from tvm_blislike.hardware.recognition import recognize

# ---------------------------------------------------------------- which core is nearest


@pytest.mark.parametrize(
    ("machine", "nearest"),
    [
        (x86(SAPPHIRE), "sapphirerapids"),
        (x86(ICELAKE), "icelake-server"),
        (x86(AVX512), "skylake-avx512"),
        (x86(ICELAKE, "AuthenticAMD"), "zen4"),
        (x86(ICELAKE | {"sse4a"}, "hidden"), "zen4"),
        (x86(AVX2), "haswell"),
        (x86(AVX2 | {"avx512f", "avx512cd"}), "haswell"),  # Knights Landing
        (x86(ICELAKE | {"avx512vp2intersect"}, "AuthenticAMD"), "zen5"),
        (x86(SAPPHIRE | {"amxfp16"}), "graniterapids"),
        (x86(AVX2 | {"clflushopt"}), "skylake"),
        (x86(AVX2 | {"clflushopt", "avxvnni"}), "golden-cove"),
        (x86(AVX2 | {"vaes"}, "AuthenticAMD"), "zen3"),
        (x86(AVX2, "AuthenticAMD"), "zen2"),
        (x86(AVX2, "KVMKVMKVM"), "x86-64-v3"),
        (x86({"avx", "sse4_2"}), "x86-64-v3"),
        (x86(set()), "x86-64-v3"),
        (arm(0xD08, {"asimd"}), "cortex-a72"),
        (arm(0xD03, {"asimd"}), "cortex-a53"),
        (arm(0xD0B, {"asimd", "asimddp"}), "cortex-a76"),
        (arm(0xD0C, {"asimd", "asimddp"}), "neoverse-n1"),
        (arm(0xD40, {"asimd", "sve"}), "neoverse-v1"),
        (arm(0x004, {"asimd"}, implementer=0x4E), "carmel"),
        (arm(0x023, {"asimd"}, implementer=0x61), "apple-m1"),
        (arm(0x029, {"asimd"}, implementer=0x61), "apple-m1"),
        (arm(0xFFF, {"asimd"}, implementer=0x61), "apple-m1"),
        (arm(0xFFF, {"asimd", "asimddp"}), "cortex-a76"),
        # SVE does not make it wide: it may be a little core, or have vectors of any length.
        (arm(0xFFF, {"asimd", "asimddp", "sve"}), "cortex-a76"),
        (arm(0xFFF, {"asimd", "asimddp", "sve", "sve2"}), "neoverse-n2"),
        (arm(None, {"asimd"}), "cortex-a72"),
        (arm(None, {"asimd"}, brand="Cortex-A57"), "cortex-a57"),
        (Machine("Darwin", "arm64", brand="Apple M2 Pro"), "apple-m2"),
        (Machine("Darwin", "arm64", brand="Apple M42"), "apple-m1"),
        (Machine("Darwin", "arm64"), "apple-m1"),
        (Machine("Linux", "armv7l"), "cortex-a53"),
        (Machine("Linux", "riscv64"), "x86-64-v3"),
        (Machine("", ""), "x86-64-v3"),
    ],
)
def test_nearest_core(machine, nearest):
    core = native_core(machine)
    assert core.name == f"native-{nearest}"
    assert core.isa.name == Core.named(nearest).isa.name
    assert any(f"nearest described core: {nearest}" in note for note in core.notes)


# What processors say of themselves: family and model, or implementer and part, of real ones.
RECORDED = {
    "zen1": [(AVX2, "AuthenticAMD", (23, 1)), (AVX2, "HygonGenuine", (24, 0))],
    "zen2": [(AVX2, "AuthenticAMD", (23, m)) for m in (0x31, 0x60, 0x71)],
    "zen3": [(AVX2, "AuthenticAMD", (25, m)) for m in (0x01, 0x21, 0x50)],
    "zen4": [(ICELAKE, "AuthenticAMD", (25, m)) for m in (0x11, 0x61, 0x74, 0xA0)],
    "zen5": [(ICELAKE, "AuthenticAMD", (26, m)) for m in (0x02, 0x11, 0x44, 0x70)],
    "zen5-mobile": [(ICELAKE, "AuthenticAMD", (26, m)) for m in (0x24, 0x60)],
    "haswell": [(AVX2, "GenuineIntel", (6, m)) for m in (0x3C, 0x3F, 0x4F)],
    "skylake": [(AVX2, "GenuineIntel", (6, m)) for m in (0x5E, 0x8E, 0x9E, 0xA5)],
    "skylake-avx512": [(AVX512, "GenuineIntel", (6, 0x55))],
    "icelake-server": [(ICELAKE, "GenuineIntel", (6, 0x6A))],
    "icelake-client": [(ICELAKE, "GenuineIntel", (6, m)) for m in (0x7E, 0x8C, 0xA7)],
    "sapphirerapids": [(SAPPHIRE, "GenuineIntel", (6, 0x8F))],
    "emeraldrapids": [(SAPPHIRE, "GenuineIntel", (6, 0xCF))],
    "graniterapids": [(SAPPHIRE, "GenuineIntel", (6, 0xAD))],
    # A virtual machine does not say which kind of core it runs on.
    "golden-cove": [(AVX2, "GenuineIntel", (6, m, k)) for m in (0x97, 0xBA) for k in ("core", "")],
    "gracemont": [(AVX2, "GenuineIntel", (6, m, "atom")) for m in (0x97, 0xB7, 0xAA)],
    "lion-cove": [(AVX2, "GenuineIntel", (6, m, "core")) for m in (0xBD, 0xC6)],
    "skymont": [(AVX2, "GenuineIntel", (6, m, "atom")) for m in (0xBD, 0xC5)],
}
PARTS = {
    "cortex-a53": [0xD03, 0xD04],
    "cortex-a55": [0xD05],
    "cortex-a57": [0xD07],
    "cortex-a72": [0xD08],
    "cortex-a73": [0xD09, 0xD0A],
    "cortex-a76": [0xD0B, 0xD0E],
    "cortex-a78": [0xD41, 0xD42, 0xD4B, 0xD0D],
    "cortex-a510": [0xD46],
    "cortex-a520": [0xD80],
    "cortex-a710": [0xD47],
    "cortex-a715": [0xD4D],
    "cortex-a720": [0xD81],
    "cortex-a725": [0xD87],
    "cortex-x1": [0xD44, 0xD4C],
    "cortex-x2": [0xD48],
    "cortex-x3": [0xD4E],
    "cortex-x4": [0xD82],
    "neoverse-n1": [0xD0C],
    "neoverse-n2": [0xD49],
    "neoverse-n3": [0xD8E],
    "neoverse-v1": [0xD40],
    "neoverse-v2": [0xD4F],
    "neoverse-v3": [0xD84, 0xD83],
}
APPLE = {"apple-m1": 0x023, "apple-m2": 0x033, "apple-m3": 0x043, "apple-m4": 0x053}
SVE = {"asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2"}


def test_recorded_processors():
    for name, machines in RECORDED.items():
        for flags, vendor, model in machines:
            assert native_core(x86(flags, vendor, model)).name == f"native-{name}", model
    for name, parts in PARTS.items():
        for part in parts:
            assert native_core(arm(part, SVE)).name == f"native-{name}", hex(part)
    for name, part in APPLE.items():
        assert native_core(arm(part, SVE, implementer=0x61)).name == f"native-{name}"


def test_every_core_is_recorded_or_new():
    assert {*RECORDED, *PARTS, *APPLE} <= {*names()}


@pytest.mark.parametrize("core", described_cores(), ids=lambda core: core.name)
def test_every_key_of_a_file_leads_to_it(core):
    """A core needs nothing but its file: whatever it claims is recognized."""
    arch = "aarch64" if core.isa.name == "neon" else "x86_64"
    flags = core.isa.flags | {"asimd"}
    for entry in (*core.recognized_by, *core.stands_for):
        for key in expanded(entry):
            has_key = ":" in key
            cpu, brand = Cpu(0, key if has_key else ""), "" if has_key else key
            found = recognize(Machine("Linux", arch, flags, brand=brand, cpus=(cpu,)))
            assert (found.name, found.described) == (core.name, entry in core.recognized_by)


def test_one_file_adds_a_core(tmp_path, monkeypatch):
    """In a copy of the folder, so that no other test sees it."""
    cached = (
        core_module.names,
        core_module._described,
        core_module.described_cores,
        recognition._claims,
    )
    for path in Path(core_module.__file__).parent.glob("*.toml"):
        shutil.copy(path, tmp_path)
    made = replace(
        Core.named("cortex-x4"), name="cortex-z9", recognized_by=("0x41:0xabc",), stands_for=()
    )
    (tmp_path / "cortex-z9.toml").write_text(made.to_toml())
    with monkeypatch.context() as patched:
        patched.setattr(core_module, "_FOLDER", tmp_path)
        for function in cached:
            function.cache_clear()
        assert native_core(arm(0xABC, SVE)).name == "native-cortex-z9"
    for function in cached:
        function.cache_clear()
    assert native_core(arm(0xABC, SVE)).name == "native-neoverse-n2"


def test_no_two_files_claim_the_same_key():
    claims = Counter(
        key
        for core in described_cores()
        for entry in (*core.recognized_by, *core.stands_for)
        for key in expanded(entry)
    )
    assert claims and [key for key, count in claims.items() if count > 1] == []


def test_a_core_is_described_or_stands_in():
    assert recognize(arm(0xD03, {"asimd"})).described
    assert not recognize(arm(0xD04, {"asimd"})).described  # Cortex-A35, taken for an A53
    assert not recognize(arm(0xFFF, {"asimd"})).described
    assert recognize(x86(ICELAKE, "AuthenticAMD", (26, 0x44))).described
    assert not recognize(x86(ICELAKE, "AuthenticAMD", (27, 0x44))).described


def test_a_masked_instruction_set_is_not_used():
    """Zen 4 in a virtual machine without AVX-512: the nearest core that has none."""
    core = native_core(x86(AVX2 | {"vaes"}, "AuthenticAMD", (25, 0x11)))
    assert core.name == "native-zen3" and core.isa.name == "avx2"


def test_the_native_core_says_how_to_recognize_it():
    assert native_core(x86(ICELAKE, "AuthenticAMD", (26, 0x44))).recognized_by == (
        "AuthenticAMD:26:0x44",
    )
    assert native_core(arm(0xD04, {"asimd"})).recognized_by == ("0x41:0xd04",)
    assert native_core(x86(AVX2)).recognized_by == ()


def test_every_arm_part_has_a_file():
    for part in range(0x1000):
        for implementer in (0x41, 0x4E):
            assert native_core(arm(part, {"asimd"}, implementer)).isa.name == "neon"


def test_machines_that_run_no_kernel_say_so():
    assert any("cannot run here" in n for n in native_core(x86({"sse4_2"})).notes)
    assert any("32-bit" in n for n in native_core(Machine("Linux", "armv7l")).notes)
    assert any("riscv64" in n for n in native_core(Machine("Linux", "riscv64")).notes)


# ---------------------------------------------------------------- the target


def test_avx512_target_follows_the_flags():
    config = native_core(x86(SAPPHIRE)).target_config()
    assert config["mcpu"] == "x86-64-v4"
    assert config["mattr"][0] == "-prefer-256-bit"
    assert set(config["mattr"][1:]) == {
        "+avx512vnni",
        "+avx512bf16",
        "+avx512fp16",
        "+avx512vbmi2",
        "+avx512ifma",
        "+avxvnni",
        "+amx-tile",
    }
    # A VM that masks BF16 must not get it from the name of the core.
    masked = native_core(x86(SAPPHIRE - {"avx512bf16"}))
    assert masked.name == "native-sapphirerapids" and "+avx512bf16" not in masked.mattr


def test_a_processor_with_tiles_is_none_of_a_design_without_them():
    """Virtual machines make up numbers: this one is that of a Rocket Lake."""
    assert native_core(x86(SAPPHIRE, model=(6, 0xA7))).name == "native-sapphirerapids"
    assert native_core(x86(ICELAKE, model=(6, 0xA7))).name == "native-icelake-client"


def test_tiles_that_the_system_refuses_are_no_feature(monkeypatch):
    from tvm_blislike.hardware import machine

    flags = frozenset({"avx512f", "amxtile", "amxint8"})
    for permitted in (True, False):
        monkeypatch.setattr(machine, "_tiles_permitted", lambda permitted=permitted: permitted)
        assert machine._usable(flags) == (flags if permitted else {"avx512f"})


def test_avx2_target_switches_masked_features_off():
    core = native_core(x86(AVX2 - {"bmi2"}))
    assert (core.mcpu, core.mattr) == (
        "haswell",
        ("-sse4a", "-bmi2", "-gfni", "-prfchw", "-avxvnni"),
    )


def test_avx2_code_is_ordered_for_the_core_and_runs_on_others_of_the_level():
    core = native_core(x86(AVX2 | {"sse4a", "gfni"}, "AuthenticAMD", (25, 0x01)))
    assert core.mcpu == Core.named("zen3").mcpu
    with tvm.target.Target(core.target_config(1)):
        assert codegen.llvm_cpu_has_features("avx2")
        assert not codegen.llvm_cpu_has_features("sse4a")


def test_neon_target_follows_the_flags():
    core = native_core(arm(0xD40, {"asimd", "asimdhp", "asimddp", "i8mm", "bf16"}))  # no SVE
    assert core.mcpu == "neoverse-v1"
    assert core.mattr == ("+dotprod", "+fullfp16", "+i8mm", "+bf16", "-sve")
    assert core.computes("float16")
    assert not native_core(arm(0xD40, {"asimd", "asimddp"})).computes("float16")


@pytest.mark.parametrize(
    ("system", "arch", "triple"),
    [
        ("Linux", "x86_64", "x86_64-unknown-linux-gnu"),
        ("Windows", "amd64", "x86_64-pc-windows-msvc"),
        ("Darwin", "x86_64", "x86_64-apple-darwin"),
        ("Darwin", "arm64", "arm64-apple-darwin"),
        ("Linux", "aarch64", "aarch64-unknown-linux-gnu"),
    ],
)
def test_triple(system, arch, triple):
    assert native_core(Machine(system, arch, frozenset(AVX2))).mtriple == triple


def test_apple_core_under_linux_is_linked_for_linux():
    machine = arm(0x023, {"asimd"}, implementer=0x61)
    assert native_core(machine).mtriple == "aarch64-unknown-linux-gnu"


def test_avx512_units_are_an_assumption():
    assert any("2 AVX-512 FMA per cycle assumed" in n for n in native_core(x86(ICELAKE)).notes)


# ---------------------------------------------------------------- any machine, and this one


KEYS = [key for core in described_cores() for e in core.recognized_by for key in expanded(e)]


@given(
    arch=st.sampled_from(["x86_64", "amd64", "aarch64", "arm64", "armv7l", "ppc64le", ""]),
    system=st.sampled_from(["Linux", "Darwin", "Windows", "FreeBSD", ""]),
    flags=st.sets(st.sampled_from(sorted(SAPPHIRE | {"sse4a", "asimddp", "sve", "hypervisor"}))),
    cpus=st.lists(
        st.builds(
            Cpu,
            number=st.integers(0, 8),
            key=st.sampled_from(KEYS) | st.text(max_size=9),
            siblings=st.sampled_from([None, "0", "0-1", "x"]),
            ghz=st.none() | st.floats(0.1, 9),
        ),
        min_size=1,
        max_size=4,
    ),
    caches=st.lists(
        st.builds(
            FoundCache,
            level=st.integers(1, 5),
            bytes=st.integers(2**16, 2**30),
            ways=st.one_of(st.none(), st.integers(1, 20)),
            line_bytes=st.one_of(st.none(), st.sampled_from([32, 64, 128])),
            shared_by=st.one_of(st.none(), st.integers(1, 256)),
        ),
        max_size=5,
        unique_by=lambda c: c.level,
    ),
)
def test_any_machine_gets_a_valid_core(tmp_path_factory, arch, system, flags, cpus, caches):
    found = tuple(sorted(caches, key=lambda c: c.level))
    cpus = tuple(replace(cpu, caches=found) for cpu in cpus)
    core = native_core(Machine(system, arch, frozenset(flags), cpus=cpus))
    assert core.name.removeprefix("native-") in names()
    assert 1 <= core.cores <= len(cpus)
    assert all(c.policy in CACHE_POLICIES and c.shared_by >= 1 for c in core.caches)
    path = tmp_path_factory.mktemp("native") / "core.toml"
    path.write_text(core.to_toml())
    assert Core.from_toml(path) == core


def test_this_machine():
    core = native_core()
    assert core.name.startswith("native-") and core.notes
    assert 1 <= core.cores <= (os.cpu_count() or 1)
    assert core == native_core()  # the same answer every time


def test_cpuinfo_is_asked_once(monkeypatch):
    native_core()
    monkeypatch.setattr(machine_module, "_cpu_info", failing)
    assert native_core().notes
