"""Which described core a CPU is, and which of several kinds of core the threads run on.

The cores' own files say by which key they are recognized; a core needs no line here. Only what no
file claims is compared by its features.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .core import Core, described_cores
from .cpus import Cpu
from .keys import expanded
from .machine import Machine

# The feature of an instruction set that only described cores have.
_TILES = "amx_tile"
# What stands in for a processor that no file claims: the first core whose features, and those of
# whose instruction set, it has. By architecture, or vendor of x86 processors.
_BY_FEATURES: dict[str, tuple[tuple[frozenset[str], str], ...]] = {
    "amd": (
        (frozenset({"avx512vp2intersect"}), "zen5"),
        (frozenset(), "zen4"),
        (frozenset({"vaes"}), "zen3"),
        (frozenset(), "zen2"),
    ),
    "intel": (
        (frozenset({"amxfp16"}), "graniterapids"),
        (frozenset({"amxtile"}), "sapphirerapids"),
        (frozenset({"avx512fp16"}), "sapphirerapids"),
        (frozenset({"avx512vbmi2"}), "icelake-server"),
        (frozenset(), "skylake-avx512"),
        (frozenset({"avxvnni"}), "golden-cove"),
        (frozenset({"clflushopt"}), "skylake"),
        (frozenset(), "haswell"),
    ),
    "apple": ((frozenset(), "apple-m1"),),
    # SVE alone tells nothing: the little Cortex-A510 has it, and so has the wide Neoverse V1.
    "arm": (
        (frozenset({"sve2"}), "neoverse-n2"),
        (frozenset({"asimddp"}), "cortex-a76"),
        (frozenset(), "cortex-a72"),
    ),
}
_PLAIN_X86, _PLAIN_ARM = "x86-64-v3", "cortex-a72"
_APPLE = "0x61:"


@dataclass(frozen=True)
class Recognized:
    """What a CPU was taken for.

    Parameters
    ----------
    name : str
        The core whose file describes it best.
    why : str
        How that was found, in words.
    described : bool
        Whether that file describes just this design, rather than the nearest one.
    """

    name: str
    why: str
    described: bool = False


@dataclass(frozen=True)
class _Claim:
    name: str
    described: bool


@functools.cache
def _claims() -> dict[str, _Claim]:
    """Return which file claims a key; one that describes a design goes before a stand-in."""
    found: dict[str, _Claim] = {}
    for described in (False, True):
        for core in described_cores():
            for entry in core.recognized_by if described else core.stands_for:
                found |= dict.fromkeys(expanded(entry), _Claim(core.name, described))
    return found


def cores_called(llvm: str) -> tuple[Core, ...]:
    """Return the described cores that LLVM's name of a processor means, or that resemble it."""
    cores = described_cores()
    return tuple(core for core in cores if core.mcpu == llvm) or tuple(
        core for core in cores if llvm in (core.name, *core.recognized_by, *core.stands_for)
    )


def recognize(machine: Machine, cpu: Cpu | None = None) -> Recognized:
    """Return what a CPU of a machine is: by its key, by the processor's name, by its features.

    Parameters
    ----------
    cpu : Cpu, optional
        By default one of those that the threads run on.
    """
    cpu = cpu or threads_cpus(machine.cpus)[0]
    if machine.arch in ("aarch64", "arm64"):
        return _claimed(machine, cpu) or nearest_by_features(machine)
    if machine.arch in ("x86_64", "amd64"):
        return _x86(machine, cpu)
    if machine.arch.startswith("arm"):
        return Recognized("cortex-a53", "32-bit Arm; the kernels need a 64-bit system")
    return Recognized(_PLAIN_X86, f"architecture {machine.arch or 'unknown'} has no kernels")


def _x86(machine: Machine, cpu: Cpu) -> Recognized:
    claimed = _claimed(machine, cpu)
    # A virtual machine may mask what the processor has, and some make up its number: tiles are
    # nothing that another design has.
    if claimed and machine.flags >= Core.named(claimed.name).isa.flags:
        core = Core.named(claimed.name)
        if _TILES not in core.isa.found(machine.flags) or _TILES in core.features:
            return claimed
    return nearest_by_features(machine)


def nearest_by_features(machine: Machine) -> Recognized:
    """Return the core that resembles a machine most whose processor no file claims."""
    if machine.arch in ("aarch64", "arm64"):
        apple = machine.system == "Darwin" or machine.cpus[0].key.startswith(_APPLE)
        return _first(machine, "apple" if apple else "arm")
    if not machine.flags:
        return Recognized(_PLAIN_X86, "no feature flags could be read")
    if not machine.flags >= Core.named(_PLAIN_X86).isa.flags:
        why = "neither AVX-512 nor AVX2 with FMA; the kernels cannot run here"
        return Recognized(_PLAIN_X86, why)
    vendors = {"amd": ("AMD", "Hygon"), "intel": ("Intel",)}
    for vendor, spellings in vendors.items():
        if any(spelling in machine.vendor for spelling in spellings):
            return _first(machine, vendor)
    # Only AMD's processors have SSE4a.
    return _first(machine, "amd" if "sse4a" in machine.flags else "")


def _claimed(machine: Machine, cpu: Cpu) -> Recognized | None:
    """Return the core whose file claims the CPU's key, else the processor's name."""
    # Virtual machines do not tell the kinds of core of a hybrid processor apart.
    for key in (cpu.key, f"{cpu.key}:core"):
        if claim := _claims().get(key):
            return Recognized(claim.name, f"it calls itself {cpu.key}", claim.described)
    brand = machine.brand.lower()
    for key, claim in _claims().items():
        if ":" not in key and (brand + " ").startswith(key.lower() + " "):
            why = f"processor name {machine.brand!r}"
            return Recognized(claim.name, why, claim.described)
    for core in reversed(described_cores()):  # cortex-a78 before cortex-a7
        if not cpu.key and core.name in brand:
            return Recognized(core.name, f"processor name {machine.brand!r}", True)
    return None


def _first(machine: Machine, table: str) -> Recognized:
    """Return the first core of a table of `_BY_FEATURES` all of whose features are there."""
    for needed, name in _BY_FEATURES.get(table, ()):
        if machine.flags >= needed | Core.named(name).isa.flags:
            shown = f"{Core.named(name).isa.name} {' '.join(sorted(needed))}".strip()
            return Recognized(name, f"nearest by its features ({shown}); no file claims it")
    return Recognized(_PLAIN_X86, f"processor of an unknown vendor {machine.vendor!r}")


def threads_cpus(cpus: Sequence[Cpu]) -> tuple[Cpu, ...]:
    """Return the CPUs that threads run on: those of the kind of core that does most together.

    Each thread gets an equal part of the work, so kinds of core are not mixed; but faster cores
    join slower ones if these do more. The kind that decides comes first.
    """
    kinds: dict[str, list[Cpu]] = {}
    for cpu in cpus:
        kinds.setdefault(cpu.key, []).append(cpu)
    if len(kinds) == 1:
        return tuple(cpus)
    peaks = {key: _core_peak(alike) for key, alike in kinds.items()}
    main = max(kinds, key=lambda key: (peaks[key] * cores_of(kinds[key]), peaks[key]))
    faster = [key for key in kinds if peaks[key] > peaks[main]]
    return tuple(cpu for key in (main, *faster) for cpu in kinds[key])


def in_order_of_use(cpus: Sequence[Cpu]) -> tuple[Cpu, ...]:
    """Return CPUs in the order in which threads take them.

    One of each core that threads are meant for, then the other hardware threads of these cores,
    then the cores of other kinds.
    """
    meant = threads_cpus(cpus)
    firsts = {cpu.siblings or cpu.number: cpu for cpu in reversed(meant)}.values()
    return tuple(sorted(cpus, key=lambda cpu: (cpu not in meant, cpu not in firsts)))


def _core_peak(cpus: Sequence[Cpu]) -> float:
    """Return the FMA peak of a core of one kind, GFLOPS at the slowest clock of its CPUs."""
    claim = _claims().get(cpus[0].key)
    core = Core.named(claim.name if claim else _PLAIN_ARM)
    return core.peak_gflops() * (slowest_ghz(cpus) or core.ghz) / core.ghz


def slowest_ghz(cpus: Iterable[Cpu]) -> float | None:
    """Return the least of the highest clocks of CPUs, None where none is known."""
    return min((cpu.ghz for cpu in cpus if cpu.ghz), default=None)


def cores_of(cpus: Iterable[Cpu]) -> int:
    """Return how many cores CPUs make up: hardware threads of one core add no FMA units."""
    listed = [(cpu.siblings or cpu.number) for cpu in cpus]
    return len(set(listed))
