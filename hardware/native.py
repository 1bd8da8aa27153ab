"""Recognition of the present machine: the nearest TOML, corrected by what the system reports."""

from __future__ import annotations

import functools
from dataclasses import replace

from . import avx2, avx512
from .core import Cache, Core
from .machine import FoundCache, Machine, list_length, read_machine

# Arm Main ID Register: (implementer, part) -> described core with the nearest pipeline.
_ARM_PARTS = {
    (0x41, 0xD03): "cortex-a53",
    (0x41, 0xD04): "cortex-a53",  # Cortex-A35
    (0x41, 0xD05): "cortex-a55",
    (0x41, 0xD07): "cortex-a57",
    (0x41, 0xD08): "cortex-a72",
    (0x41, 0xD09): "cortex-a73",
    (0x41, 0xD0A): "cortex-a73",  # Cortex-A75
    (0x41, 0xD0B): "cortex-a76",
    (0x41, 0xD0E): "cortex-a76",  # Cortex-A76AE
    (0x41, 0xD0D): "cortex-a78",  # Cortex-A77
    (0x41, 0xD41): "cortex-a78",
    (0x41, 0xD42): "cortex-a78",  # Cortex-A78AE
    (0x41, 0xD4B): "cortex-a78",  # Cortex-A78C
    (0x41, 0xD44): "neoverse-v1",  # Cortex-X1, same pipeline without SVE
    (0x41, 0xD0C): "neoverse-n1",
    (0x41, 0xD40): "neoverse-v1",
    (0x41, 0xD49): "neoverse-n1",  # Neoverse N2: two 128-bit pipes as N1
    (0x41, 0xD4F): "neoverse-v1",  # Neoverse V2
    (0x4E, 0x004): "carmel",
}
_APPLE = 0x61


@functools.cache
def _this_machine() -> Machine:
    return read_machine()


def native_core(machine: Machine | None = None) -> Core:
    """Return the core of the present machine; whatever is unknown comes from the nearest TOML.

    Parameters
    ----------
    machine : Machine, optional
        Replaces what the operating system reports.

    Returns
    -------
    Core
        Named `native-NAME` after the nearest TOML; `notes` lists every assumption.
    """
    machine = machine or _this_machine()
    name, why = _nearest(machine)
    base = Core.named(name)
    caches, cache_notes = _merged_caches(base, machine)
    cores, cores_notes = _cores(machine)
    mcpu, mattr = _target(base, machine)
    notes = [f"nearest described core: {name} ({why})"]
    notes += cache_notes + cores_notes + _assumed(base, machine)
    return replace(
        base,
        name=f"native-{name}",
        source=(*base.source, "the operating system of the present machine"),
        caches=caches,
        ghz=machine.ghz or base.ghz,
        mtriple=_triple(machine, base),
        mcpu=mcpu,
        mattr=mattr,
        features=base.isa.found(machine.flags) if machine.flags else base.features,
        cores=cores,
        notes=(*base.notes, *notes),
    )


def _nearest(machine: Machine) -> tuple[str, str]:
    """Return the name of the nearest TOML and the reason, in words."""
    if machine.arch in ("aarch64", "arm64"):
        return _nearest_arm(machine)
    if machine.arch in ("x86_64", "amd64"):
        return _nearest_x86(machine)
    if machine.arch.startswith("arm"):
        return "cortex-a53", "32-bit Arm; the kernels need a 64-bit system"
    return "x86-64-v3", f"architecture {machine.arch or 'unknown'} has no kernels"


def _nearest_x86(machine: Machine) -> tuple[str, str]:
    """Return the nearest x86 core by features: model numbers are not to be trusted in a VM."""
    flags = machine.flags
    amd = "AMD" in machine.vendor or "Hygon" in machine.vendor or "sse4a" in flags
    if not flags:
        return "x86-64-v3", "no feature flags could be read"
    if not flags >= avx2.ISA.flags:
        return "x86-64-v3", "neither AVX-512 nor AVX2 with FMA; the kernels cannot run here"
    if flags >= avx512.ISA.flags:
        if amd:
            return "zen4", "AVX-512 of AMD"
        if "amxtile" in flags or "avx512fp16" in flags:
            return "sapphirerapids", "AVX-512 with AMX or FP16"
        if "avx512vbmi2" in flags:
            return "icelake-server", "AVX-512 with VBMI2"
        return "skylake-avx512", "AVX-512 without VBMI2"
    if amd:
        return ("zen3", "AVX2 with VAES") if "vaes" in flags else ("zen2", "AVX2 of AMD")
    if "Intel" in machine.vendor:
        return "haswell", "AVX2 of Intel"
    return "x86-64-v3", "AVX2 of an unknown vendor"


def _nearest_arm(machine: Machine) -> tuple[str, str]:
    midr = machine.midrs[0] if machine.midrs else None
    if midr is not None:
        implementer, part = midr >> 24 & 0xFF, midr >> 4 & 0xFFF
        if (implementer, part) in _ARM_PARTS:
            return _ARM_PARTS[implementer, part], f"part 0x{part:03x} of vendor 0x{implementer:02x}"
        if implementer == _APPLE:
            return "apple-m1", f"Apple part 0x{part:03x}"
    if machine.system == "Darwin":
        return "apple-m1", "Apple silicon"
    brand = machine.brand.lower()
    for name in _ARM_PARTS.values():
        if name in brand:
            return name, f"processor name {machine.brand!r}"
    return _nearest_arm_by_features(machine.flags)


def _nearest_arm_by_features(flags: frozenset[str]) -> tuple[str, str]:
    if "sve" in flags:
        return "neoverse-v1", "unknown part with SVE"
    if "asimddp" in flags:
        return "cortex-a76", "unknown part with dot products"
    return "cortex-a72", "unknown part without dot products"


def _merged_caches(base: Core, machine: Machine) -> tuple[tuple[Cache, ...], list[str]]:
    """Return the reported caches completed from `base`, or those of `base` when none are."""
    if not any(c.level == 1 for c in machine.caches):
        return base.caches, [f"no first-level cache reported; caches are those of {base.name}"]
    notes: list[str] = []
    caches = tuple(
        _merged(found, base, _threads_per_core(machine), notes) for found in machine.caches
    )
    missing = [c.level for c in base.caches if c.level not in {f.level for f in machine.caches}]
    notes += [f"no level-{n} cache reported, so none is assumed" for n in missing]
    if "hypervisor" in machine.flags and (last := caches[-1]).level >= 3:
        notes.append(
            f"virtual machine: the level-{last.level} cache of {last.bytes >> 20} MiB"
            " may be shared with other guests"
        )
    return caches, notes


def _merged(found: FoundCache, base: Core, threads_per_core: int, notes: list[str]) -> Cache:
    """Return one reported cache; what was not reported comes from the same level of `base`."""
    like = base.cache(found.level) or base.caches[-1]
    shared_by = found.shared_by and max(found.shared_by // threads_per_core, 1)
    reported = {"ways": found.ways, "line_bytes": found.line_bytes, "shared_by": shared_by}
    taken = {field: getattr(like, field) for field, value in reported.items() if value is None}
    if taken:
        values = ", ".join(f"{k} {v}" for k, v in taken.items())
        notes.append(f"level-{found.level} cache: {values} assumed as in {base.name}")
    return Cache(found.level, found.bytes, **{**reported, **taken}, policy=like.policy)


def _threads_per_core(machine: Machine) -> int:
    first = machine.siblings[0] if machine.siblings else None
    return (list_length(first) if first else None) or 1


def _cores(machine: Machine) -> tuple[int, list[str]]:
    """Return how many cores like the first one the usable CPUs make up.

    Hardware threads of one core add no FMA units, and a big.LITTLE chip has two kinds of core.
    """
    notes = []
    midrs = machine.midrs or (None,) * len(machine.cpus)
    alike = [i for i, midr in enumerate(midrs) if midr == midrs[0]]
    if len(alike) < len(machine.cpus):
        notes.append(f"several kinds of core: the {len(alike)} like cpu{machine.cpus[0]} are meant")
    if len(machine.siblings) == len(machine.cpus) and all(machine.siblings):
        cores = len({machine.siblings[i] for i in alike})
        if cores < len(alike):
            notes.append(f"{len(alike)} hardware threads are {cores} cores")
        return cores, notes
    return len(alike), notes


def _assumed(base: Core, machine: Machine) -> list[str]:
    notes = []
    if machine.ghz is None:
        clock = f"{base.ghz:g} GHz assumed as in {base.name}" if base.ghz else "no peak is stated"
        notes.append(f"clock unknown: {clock}")
    if base.vector_bits == 512:
        # The number of such units cannot be queried.
        notes.append(f"{base.fma_per_cycle:g} AVX-512 FMA per cycle assumed; `probe` measures it")
    if base.memory_gb_per_s:
        notes.append(f"memory bandwidth assumed as in {base.name}")
    return notes


def _triple(machine: Machine, base: Core) -> str:
    arch = base.mtriple.split("-")[0]
    arch = "aarch64" if arch == "arm64" else arch
    systems = {
        "Linux": f"{arch}-unknown-linux-gnu",
        "Windows": f"{arch}-pc-windows-msvc",
        "Darwin": f"{arch.replace('aarch64', 'arm64')}-apple-darwin",
    }
    return systems.get(machine.system, base.mtriple)


def _target(base: Core, machine: Machine) -> tuple[str, tuple[str, ...]]:
    """Return (mcpu, mattr) from the feature flags, so that a VM's masked features stay unused."""
    if not machine.flags:
        return base.mcpu, base.mattr
    return base.isa.mcpu or base.mcpu, base.isa.target(machine.flags)
