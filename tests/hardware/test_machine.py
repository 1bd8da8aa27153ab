"""Whole machines as sysfs and cpuinfo show them, in part or not at all."""

import os
import platform

import pytest
from machines import AVX2, AVX512, SAPPHIRE, cpuinfo, failing, index, write_cpu

from tvm_blislike.hardware import Cache, Core
from tvm_blislike.hardware.machine import list_length, read_machine
from tvm_blislike.hardware.native import native_core


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


@pytest.mark.parametrize(
    ("text", "length"),
    [("0", 1), ("0-3", 4), ("0-3,8", 5), ("0,4-5,9", 4), ("", None), ("0-", None), ("3-0", None)],
)
def test_list_length(text, length):
    assert list_length(text) == length


# ---------------------------------------------------------------- failures of the sources


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
