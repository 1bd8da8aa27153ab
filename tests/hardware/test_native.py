"""Recognition of machines that are not here: synthetic flags and sysfs trees."""

import os
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_blislike.hardware import Cache, Core, names
from tvm_blislike.hardware import machine as machine_module
from tvm_blislike.hardware.core import CACHE_POLICIES
from tvm_blislike.hardware.machine import FoundCache, Machine, list_length, read_machine
from tvm_blislike.hardware.native import native_core

AVX2 = {"avx", "avx2", "fma", "f16c", "movbe", "bmi1", "bmi2"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
ICELAKE = AVX512 | {"avx512vbmi2", "avx512vnni", "avx512ifma", "vaes"}
SAPPHIRE = ICELAKE | {"amxtile", "avx512fp16", "avx512bf16", "avxvnni"}


def x86(flags: set[str], vendor: str = "GenuineIntel", **more) -> Machine:
    return Machine("Linux", "x86_64", frozenset(flags), vendor, **more)


def arm(part: int | None, flags: set[str], implementer: int = 0x41, **more) -> Machine:
    midr = None if part is None else implementer << 24 | part << 4
    cpus = more.get("cpus", (0,))
    fields = {"midrs": (midr,) * len(cpus), **more}
    return Machine("Linux", "aarch64", frozenset(flags), **fields)


def write_cpu(sysfs: Path, cpu: int, caches: list[dict], **files: str) -> None:
    """Write one cpuN folder: a list of cache indices, and further files by path."""
    for i, cache in enumerate(caches):
        for field, value in cache.items():
            path = sysfs / f"cpu{cpu}/cache/index{i}/{field}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
    for name, value in files.items():
        path = sysfs / f"cpu{cpu}" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")


def index(level, kind, size, ways=None, shared="0", line=64) -> dict:
    entry = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
    numbers = {"ways_of_associativity": ways, "coherency_line_size": line}
    return entry | {k: v for k, v in numbers.items() if v is not None}


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
    assert core.isa == Core.named(nearest).isa
    assert any(f"nearest described core: {nearest}" in note for note in core.notes)


def test_every_arm_part_has_a_file():
    for part in range(0x1000):
        for implementer in (0x41, 0x4E):
            assert native_core(arm(part, {"asimd"}, implementer)).isa == "neon"


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


# ---------------------------------------------------------------- whole machines


def cpuinfo(flags=(), vendor="", arch="x86_64", ghz=None, brand=""):
    info = {
        "arch_string_raw": arch,
        "vendor_id_raw": vendor,
        "brand_raw": brand,
        "flags": list(flags),
    }
    if ghz:
        info["hz_advertised"] = [int(ghz * 1e9), 0]
    return lambda: info


def test_zen4(tmp_path):
    flags = ["avx512_vbmi2", "avx512_vnni", "avx512_bf16", "avx512vbmi", "avx512ifma", "sse4a"]
    caches = [
        index(1, "Data", "32K", 8, "0,8"),
        index(1, "Instruction", "32K", 8, "0,8"),
        index(2, "Unified", "1024K", 8, "0,8"),
        index(3, "Unified", "32768K", 16, "0-15"),
    ]
    for cpu in range(16):
        siblings = {"topology__thread_siblings_list": f"{cpu % 8},{cpu % 8 + 8}"}
        write_cpu(tmp_path, cpu, caches, cpufreq__cpuinfo_max_freq="5573000", **siblings)
    machine = read_machine(
        tmp_path, cpuinfo(sorted(AVX512) + flags, "AuthenticAMD"), tuple(range(16))
    )
    core = native_core(machine)
    assert core.name == "native-zen4"
    assert core.caches == Core.named("zen4").caches  # shared by 8 cores, not by 16 threads
    assert core.cores == 8 and "16 hardware threads are 8 cores" in core.notes
    assert core.ghz == 5.573
    assert core.fma_per_cycle == 1
    assert "+avx512bf16" in core.mattr and "+avx512vbmi2" in core.mattr


def test_raspberry_pi_4_without_associativity(tmp_path):
    # Its device tree gives sizes; the kernel leaves ways_of_associativity out or zero.
    caches = [
        index(1, "Data", "32K", 0),
        index(1, "Instruction", "48K", 0),
        index(2, "Unified", "1024K", None, "0-3"),
    ]
    for cpu in range(4):
        write_cpu(tmp_path, cpu, caches, regs__identification__midr_el1="0x00000000410fd083")
    info = cpuinfo(["asimd", "fp"], "ARM", "aarch64", brand="Cortex-A72")
    core = native_core(read_machine(tmp_path, info, (0, 1, 2, 3)))
    assert core.name == "native-cortex-a72"
    assert core.caches == Core.named("cortex-a72").caches
    assert (core.cores, core.ghz) == (4, 1.5)
    assert "level-1 cache: ways 2 assumed as in cortex-a72" in core.notes
    assert "level-2 cache: ways 16 assumed as in cortex-a72" in core.notes
    assert "clock unknown: 1.5 GHz assumed as in cortex-a72" in core.notes
    assert "-dotprod" in core.mattr


def test_graviton2_slice(tmp_path):
    # Two of 64 cores: the L3 is shared by those two only as far as the guest can see.
    caches = [
        index(1, "Data", "64K", 4),
        index(2, "Unified", "1024K", 8),
        index(3, "Unified", "32768K", 16, "0-1"),
    ]
    for cpu in (0, 1):
        write_cpu(tmp_path, cpu, caches, regs__identification__midr_el1="0x413fd0c1")
    info = cpuinfo(["asimd", "asimddp", "asimdhp"], "ARM", "aarch64")
    core = native_core(read_machine(tmp_path, info, (0, 1)))
    assert core.name == "native-neoverse-n1"
    assert core.caches[2] == Cache(3, 2**25, 16, 64, shared_by=2, policy="victim")
    assert core.cores == 2


def test_big_little_describes_the_first_usable_kind(tmp_path):
    small = [index(1, "Data", "32K", 4), index(2, "Unified", "128K", 4)]
    big = [index(1, "Data", "64K", 4, "4"), index(2, "Unified", "512K", 8, "4")]
    for cpu in range(4):
        write_cpu(tmp_path, cpu, small, regs__identification__midr_el1="0x412fd050")
    for cpu in range(4, 8):
        write_cpu(tmp_path, cpu, big, regs__identification__midr_el1="0x414fd0b0")
    info = cpuinfo(["asimd", "asimddp"], "ARM", "aarch64")
    core = native_core(read_machine(tmp_path, info, tuple(range(8))))
    assert (core.name, core.cores) == ("native-cortex-a55", 4)
    assert "several kinds of core: the 4 like cpu0 are meant" in core.notes
    # A process bound to the big cores gets those.
    core = native_core(read_machine(tmp_path, info, (4, 5, 6, 7)))
    assert (core.name, core.cores) == ("native-cortex-a76", 4)
    assert core.cache(1).bytes == 65536


def test_virtual_machine_with_hidden_caches(tmp_path):
    flags = [*AVX512, "hypervisor"]
    machine = read_machine(tmp_path / "absent", cpuinfo(flags, "GenuineIntel", ghz=2.7), (0, 1))
    core = native_core(machine)
    assert core.caches == Core.named("skylake-avx512").caches
    assert "no first-level cache reported; caches are those of skylake-avx512" in core.notes
    assert (core.ghz, core.cores) == (2.7, 2)


def test_virtual_machine_with_the_l3_of_a_whole_socket(tmp_path):
    caches = [
        index(1, "Data", "48K", 12),
        index(2, "Unified", "2048K", 16),
        index(3, "Unified", "491520K", 16, "0-1"),
    ]
    write_cpu(tmp_path, 0, caches)
    flags = [*SAPPHIRE, "hypervisor"]
    core = native_core(read_machine(tmp_path, cpuinfo(flags, "GenuineIntel"), (0, 1)))
    assert core.cache(3) == Cache(3, 480 * 2**20, 16, 64, shared_by=2, policy="victim")
    assert any("480 MiB may be shared with other guests" in n for n in core.notes)


def test_two_levels_where_the_file_has_three(tmp_path):
    write_cpu(tmp_path, 0, [index(1, "Data", "32K", 8), index(2, "Unified", "4M", 16)])
    core = native_core(read_machine(tmp_path, cpuinfo(AVX2, "GenuineIntel"), (0,)))
    assert [c.level for c in core.caches] == [1, 2]
    assert core.cache(2).bytes == 4 * 2**20
    assert "no level-3 cache reported, so none is assumed" in core.notes


@pytest.mark.parametrize("size", ["0K", "", "K", "many", "-32K"])
def test_senseless_sizes_count_as_not_reported(tmp_path, size):
    write_cpu(tmp_path, 0, [index(1, "Data", size, 8), index(2, "Unified", "1M", 8)])
    core = native_core(read_machine(tmp_path, cpuinfo(AVX2, "GenuineIntel"), (0,)))
    assert core.caches == Core.named("haswell").caches


def test_avx512_units_are_an_assumption():
    assert any("2 AVX-512 FMA per cycle assumed" in n for n in native_core(x86(ICELAKE)).notes)


# ---------------------------------------------------------------- failures of the sources


def failing():
    raise Exception("unknown processor")


def test_failing_cpuinfo(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    core = native_core(read_machine(tmp_path, failing, (0,)))
    assert core.name == "native-x86-64-v3"
    assert any("no feature flags could be read" in note for note in core.notes)
    assert "clock unknown: no peak is stated" in core.notes


def test_no_affinity(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert read_machine(tmp_path, failing).cpus == (0, 1, 2)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert read_machine(tmp_path, failing).cpus == (0,)


def test_affinity_limits_the_cores(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 3}, raising=False)
    machine = read_machine(tmp_path, cpuinfo(AVX2, "GenuineIntel"))
    assert machine.cpus == (3, 5)
    assert native_core(machine).cores == 2


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
    core = Core.native()
    assert core.name.startswith("native-") and core.notes
    assert 1 <= core.cores <= (os.cpu_count() or 1)
    assert core == Core.native()  # the same answer every time


def test_cpuinfo_is_asked_once(monkeypatch):
    Core.native()
    monkeypatch.setattr(machine_module, "_cpu_info", failing)
    assert Core.native().notes


@pytest.mark.parametrize(
    ("text", "length"),
    [("0", 1), ("0-3", 4), ("0-3,8", 5), ("0,4-5,9", 4), ("", None), ("0-", None), ("3-0", None)],
)
def test_list_length(text, length):
    assert list_length(text) == length
