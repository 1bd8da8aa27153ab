"""Whole machines as sysfs and cpuinfo show them, in part or not at all."""

import os
import platform
import sys
from pathlib import Path

import pytest
from machines import AVX2, AVX512, SAPPHIRE, cpuinfo, failing, index, write, write_cpu

from tvm_blislike.hardware import Cache, Core
from tvm_blislike.hardware import machine as machine_module
from tvm_blislike.hardware.cpus import arm_key, cpus_in, read_cpus
from tvm_blislike.hardware.machine import Machine
from tvm_blislike.hardware.native import native_core
from tvm_blislike.hardware.recognition import in_order_of_use

NOWHERE = Path("/nonexistent")


def read_machine(*arguments, proc_cpuinfo: Path = NOWHERE) -> Machine:
    """Read a machine of files; never the list of processors of the present one."""
    return machine_module.read_machine(*arguments, proc_cpuinfo=proc_cpuinfo)


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
    assert core.caches[2] == Cache(3, 2**25, 16, 64, 10, shared_by=2, policy="victim")
    assert core.cores == 2


SMALL = [index(1, "Data", "32K", 4), index(2, "Unified", "128K", 4)]
BIG = [index(1, "Data", "64K", 4, "4"), index(2, "Unified", "512K", 8, "4")]


def clusters(devices: Path, *kinds: tuple[int, int, int]) -> tuple[int, ...]:
    """Write CPUs of several kinds, each (how many, part, MHz); return their numbers."""
    first = 0
    for count, part, mhz in kinds:
        for cpu in range(first, first + count):
            midr = {"regs__identification__midr_el1": hex(0x410F0000 | part << 4)}
            caches = SMALL if part in (0xD05, 0xD46, 0xD80) else BIG
            write_cpu(devices, cpu, caches, cpufreq__cpuinfo_max_freq=mhz * 1000, **midr)
        first += count
    return tuple(range(first))


@pytest.mark.parametrize(
    ("kinds", "nearest", "cpus"),
    [
        # Rockchip RK3588: the four big cores do 2.7 times as much as the four small ones.
        (((4, 0xD05, 1800), (4, 0xD0B, 2400)), "cortex-a76", (4, 5, 6, 7)),
        # Snapdragon 888: one Cortex-X1 does less than three Cortex-A78, and joins them.
        (((4, 0xD05, 1800), (3, 0xD41, 2420), (1, 0xD44, 2840)), "cortex-a78", (4, 5, 6, 7)),
        # Snapdragon 8 Gen 1: CPU 0 is a Cortex-A510.
        (((4, 0xD46, 1800), (3, 0xD47, 2500), (1, 0xD48, 3000)), "cortex-a710", (4, 5, 6, 7)),
        # Google Tensor: two Cortex-X1 do more than two Cortex-A76.
        (((4, 0xD05, 1800), (2, 0xD0B, 2250), (2, 0xD44, 2800)), "cortex-x1", (6, 7)),
        # Dimensity 9300: one kind of core at two clocks.
        (((4, 0xD81, 2000), (3, 0xD82, 2850), (1, 0xD82, 3250)), "cortex-x4", (4, 5, 6, 7)),
    ],
)
def test_several_kinds_of_core(tmp_path, kinds, nearest, cpus):
    info = cpuinfo(["asimd", "asimddp", "asimdhp"], "ARM", "aarch64")
    machine = read_machine(tmp_path, info, clusters(tmp_path, *kinds))
    core = native_core(machine)
    assert (core.name, core.cores) == (f"native-{nearest}", len(cpus))
    assert (
        core.ghz
        == min(mhz for _, part, mhz in kinds if arm_key(0x41, part) in core.recognized_by) / 1e3
    )
    assert core.cache(1).bytes == 65536
    listed = ", ".join(map(str, cpus))
    assert any(n.startswith(f"several kinds of core: CPUs {listed} are") for n in core.notes)
    used = [cpu.number for cpu in in_order_of_use(machine.cpus)]
    assert used == [*cpus, *(cpu.number for cpu in machine.cpus if cpu.number not in cpus)]


def test_a_process_bound_to_one_kind_gets_that_one(tmp_path):
    clusters(tmp_path, (4, 0xD46, 1800), (4, 0xD0B, 2400))
    info = cpuinfo(["asimd", "asimddp"], "ARM", "aarch64")
    for cpus, name in (((4, 5), "cortex-a76"), ((0, 1, 2), "cortex-a510")):
        core = native_core(read_machine(tmp_path, info, cpus))
        assert (core.name, core.cores) == (f"native-{name}", len(cpus))
        assert core.in_order == (name == "cortex-a510")
        assert not any("several kinds" in note for note in core.notes)


PI5 = """\
processor\t: {cpu}
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x4
CPU part\t: 0xd0b
CPU revision\t: 1

"""


def test_registers_that_sysfs_hides_are_read_from_the_list_of_processors(tmp_path):
    listed = tmp_path / "cpuinfo"
    listed.write_text("".join(PI5.format(cpu=cpu) for cpu in range(4)) + "Revision\t: d04170\n")
    info = cpuinfo(["asimd", "asimddp"], "ARM", "aarch64")
    core = native_core(read_machine(tmp_path, info, (0, 1, 2, 3), proc_cpuinfo=listed))
    assert (core.name, core.cores) == ("native-cortex-a76", 4)
    listed.write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: many\n")
    core = native_core(read_machine(tmp_path, info, (0,), proc_cpuinfo=listed))
    assert any("no file claims it" in note for note in core.notes)


I7_12700 = """\
processor\t: {cpu}
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 151
model name\t: 12th Gen Intel(R) Core(TM) i7-12700

"""
PERFORMANCE = [index(1, "Data", "48K", 12, "0-1"), index(2, "Unified", "1280K", 10, "0-1")]
EFFICIENCY = [index(1, "Data", "32K", 8, "16"), index(2, "Unified", "2M", 16, "16-19")]


def hybrid(devices: Path) -> Path:
    """Write eight performance cores of two threads, CPUs 0 to 15, and four others."""
    for cpu in range(20):
        first = cpu - cpu % 2
        siblings = f"{first}-{first + 1}" if cpu < 16 else str(cpu)
        caches = PERFORMANCE if cpu < 16 else EFFICIENCY
        files = {"topology__thread_siblings_list": siblings}
        write_cpu(devices, cpu, caches, cpufreq__cpuinfo_max_freq=4900000, **files)
    write(devices / "cpu_core/cpus", "0-15")
    write(devices / "cpu_atom/cpus", "16-19")
    write(devices / "cpuinfo", "\n".join(I7_12700.format(cpu=cpu) for cpu in range(20)))
    return devices / "cpuinfo"


def test_hybrid_processor(tmp_path):
    listed, info = hybrid(tmp_path), cpuinfo(AVX2 | {"avx_vnni", "vaes"}, "GenuineIntel")
    core = native_core(read_machine(tmp_path, info, tuple(range(20)), proc_cpuinfo=listed))
    assert (core.name, core.cores) == ("native-golden-cove", 8)
    assert core.cache(2) == Cache(2, 1280 * 1024, 10, 64, 36, 1, "non-inclusive")
    assert "16 hardware threads are 8 cores" in core.notes
    # A thread for each performance core, then for their second ones, then for the others.
    used = [cpu.number for cpu in in_order_of_use(read_cpus(tuple(range(20)), tmp_path, listed))]
    assert used == [*range(0, 16, 2), *range(1, 16, 2), *range(16, 20)]
    bound = native_core(read_machine(tmp_path, info, (16, 17, 18, 19), proc_cpuinfo=listed))
    assert (bound.name, bound.cores) == ("native-gracemont", 4)
    assert bound.cache(2).shared_by == 4


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
    assert core.cache(3) == Cache(3, 480 * 2**20, 16, 64, 19.2, shared_by=2, policy="victim")
    assert any("480 MiB may be shared with other guests" in n for n in core.notes)
    assert core.is_virtual
    flags.remove("hypervisor")
    assert not native_core(
        read_machine(tmp_path, cpuinfo(flags, "GenuineIntel"), (0, 1))
    ).is_virtual


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


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("0-2,8", (0, 1, 2, 8)),
        ("0,4-5,9", (0, 4, 5, 9)),
        ("", ()),
        ("0-", ()),
        ("3-0", ()),
    ],
)
def test_lists_of_cpus(text, cpus):
    assert cpus_in(text) == cpus


# ---------------------------------------------------------------- failures of the sources


def test_failing_cpuinfo(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    core = native_core(read_machine(tmp_path, failing, (0,)))
    assert core.name == "native-x86-64-v3"
    assert any("no feature flags could be read" in note for note in core.notes)
    assert any("clock unknown: 3 GHz assumed" in note for note in core.notes)


def numbers(machine: Machine) -> tuple[int, ...]:
    return tuple(cpu.number for cpu in machine.cpus)


def test_no_affinity(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert numbers(read_machine(tmp_path, failing)) == (0, 1, 2)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert numbers(read_machine(tmp_path, failing)) == (0,)


def test_affinity_limits_the_cores(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 3}, raising=False)
    machine = read_machine(tmp_path, cpuinfo(AVX2, "GenuineIntel"))
    assert numbers(machine) == (3, 5)
    assert native_core(machine).cores == 2


# ---------------------------------------------------------------- Linux's list of processors


@pytest.mark.parametrize(
    "lines, vendor, flags, ghz",
    [
        (
            "vendor_id: GenuineIntel\nmodel name: Intel(R) Xeon(R) @ 2.70GHz\ncpu MHz: 3100.5\n"
            "flags: fma avx512_vnni",
            "GenuineIntel",
            {"fma", "avx512vnni"},
            2.7,
        ),
        (
            "vendor_id: AuthenticAMD\ncpu MHz: 2596.148\nflags: avx2",
            "AuthenticAMD",
            {"avx2"},
            2.596,
        ),
        ("Features: asimd asimddp\nCPU part: 0xd0b", "", {"asimd", "asimddp"}, None),
    ],
    ids=["advertised", "measured", "arm"],
)
def test_the_list_of_processors_spares_py_cpuinfo(tmp_path, monkeypatch, lines, vendor, flags, ghz):
    monkeypatch.setitem(sys.modules, "cpuinfo", None)
    listing = tmp_path / "cpuinfo"
    write(listing, f"processor: 0\n{lines}\n\nprocessor: 1\n{lines}")
    machine = read_machine(tmp_path, None, (0,), proc_cpuinfo=listing)
    assert (machine.vendor, machine.flags, machine.ghz) == (vendor, flags, ghz)


def test_the_list_of_this_machine_says_what_py_cpuinfo_says():
    listed = machine_module.listed_info()
    if not listed:
        pytest.skip("no /proc/cpuinfo with flags")
    asked = pytest.importorskip("cpuinfo").get_cpu_info()
    assert set(listed["flags"]) <= set(asked["flags"])
    native = machine_module.read_machine()
    assert native_core(native) == native_core(machine_module.read_machine(cpuinfo=lambda: asked))
