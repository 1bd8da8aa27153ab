"""Which core a machine is taken for, and its target: synthetic flags, and the present machine."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import AVX2, AVX512, ICELAKE, SAPPHIRE, arm, failing, x86

from tvm_blislike.hardware import Core, names, native_core
from tvm_blislike.hardware import machine as machine_module
from tvm_blislike.hardware.corefile import CACHE_POLICIES
from tvm_blislike.hardware.machine import FoundCache, Machine

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
        (arm(0xFFF, {"asimd", "asimddp"}), "cortex-a76"),
        (arm(0xFFF, {"asimd", "sve"}), "neoverse-v1"),
        (arm(None, {"asimd"}), "cortex-a72"),
        (arm(None, {"asimd"}, brand="Cortex-A57"), "cortex-a57"),
        (Machine("Darwin", "arm64", brand="Apple M2"), "apple-m1"),
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
    }
    # A VM that masks BF16 must not get it from the name of the core.
    masked = native_core(x86(SAPPHIRE - {"avx512bf16"}))
    assert masked.name == "native-sapphirerapids" and "+avx512bf16" not in masked.mattr


def test_avx2_target_switches_masked_features_off():
    core = native_core(x86(AVX2 - {"bmi2"}))
    assert (core.mcpu, core.mattr) == ("x86-64-v3", ("-bmi2",))


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


@given(
    arch=st.sampled_from(["x86_64", "amd64", "aarch64", "arm64", "armv7l", "ppc64le", ""]),
    system=st.sampled_from(["Linux", "Darwin", "Windows", "FreeBSD", ""]),
    flags=st.sets(st.sampled_from(sorted(SAPPHIRE | {"sse4a", "asimddp", "sve", "hypervisor"}))),
    midrs=st.lists(st.one_of(st.none(), st.integers(0, 2**32)), max_size=4),
    siblings=st.lists(st.one_of(st.none(), st.sampled_from(["0", "0-1", "x"])), max_size=4),
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
def test_any_machine_gets_a_valid_core(
    tmp_path_factory, arch, system, flags, midrs, siblings, caches
):
    cpus = tuple(range(max(len(midrs), 1)))
    core = native_core(
        Machine(
            system,
            arch,
            frozenset(flags),
            midrs=tuple(midrs),
            cpus=cpus,
            siblings=tuple(siblings),
            caches=tuple(sorted(caches, key=lambda c: c.level)),
        )
    )
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
