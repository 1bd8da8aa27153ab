"""Recognition of the present machine: the nearest TOML, corrected by what the system reports."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from . import probed
from .core import Cache, Core
from .cpus import Cpu, FoundCache, cpus_in
from .keys import is_key
from .machine import Machine, read_machine
from .recognition import cores_of, recognize, slowest_ghz, threads_cpus

# The flag of a CPU that Linux sees inside a virtual machine.
_HYPERVISOR = "hypervisor"


@functools.cache
def _this_machine() -> Machine:
    return read_machine()


def native_core(machine: Machine | None = None) -> Core:
    """Return the core of the present machine; whatever is unknown comes from the nearest TOML.

    What a probe measured on this machine and kept (`probed`) replaces what that file says.

    Parameters
    ----------
    machine : Machine, optional
        Replaces what the operating system reports; nothing measured is used then.

    Returns
    -------
    Core
        Named `native-NAME` after the nearest TOML; `notes` lists every assumption.
    """
    if machine is not None:
        return _described(machine)
    machine = _this_machine()
    return probed.completed(_described(machine), machine)


def native_description() -> tuple[Path, Core]:
    """Return the core of the present machine before measuring, and where facts of it are kept."""
    core = _described(_this_machine())
    return probed.path_of(core, _this_machine()), core


def _described(machine: Machine) -> Core:
    cpus = threads_cpus(machine.cpus)
    found = recognize(machine, cpus[0])
    base = Core.named(found.name)
    caches, cache_notes = _merged_caches(base, machine, cpus[0])
    mcpu, mattr = _target(base, machine)
    ghz = slowest_ghz(cpu for cpu in cpus if cpu.key == cpus[0].key) or machine.ghz
    notes = [f"nearest described core: {found.name} ({found.why})"]
    notes += cache_notes + _cores_notes(machine, cpus) + _assumed(base, ghz)
    return replace(
        base,
        name=f"native-{found.name}",
        source=(*base.source, "the operating system of the present machine"),
        caches=caches,
        ghz=ghz or base.ghz,
        mtriple=_triple(machine, base),
        mcpu=mcpu,
        mattr=mattr,
        features=base.isa.found(machine.flags) if machine.flags else base.features,
        cores=cores_of(cpus),
        notes=(*base.notes, *notes),
        recognized_by=(cpus[0].key,) if is_key(cpus[0].key) else (),
        is_virtual=_HYPERVISOR in machine.flags,
        stands_for=(),
    )


def _merged_caches(base: Core, machine: Machine, cpu: Cpu) -> tuple[tuple[Cache, ...], list[str]]:
    """Return the caches that a CPU reports, completed from `base`, or those of `base`."""
    if not any(c.level == 1 for c in cpu.caches):
        return base.caches, [f"no first-level cache reported; caches are those of {base.name}"]
    notes: list[str] = []
    threads_per_core = len(cpus_in(cpu.siblings or "")) or 1
    caches = tuple(_merged(found, base, threads_per_core, notes) for found in cpu.caches)
    missing = [c.level for c in base.caches if c.level not in {f.level for f in cpu.caches}]
    notes += [f"no level-{n} cache reported, so none is assumed" for n in missing]
    if _HYPERVISOR in machine.flags and (last := caches[-1]).level >= 3:
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
    return replace(like, level=found.level, bytes=found.bytes, **{**reported, **taken})


def _cores_notes(machine: Machine, cpus: Sequence[Cpu]) -> list[str]:
    """Say which CPUs are meant where not all are, and where they are fewer cores."""
    notes = []
    if len(cpus) < len(machine.cpus):
        numbers = ", ".join(str(number) for number in sorted(cpu.number for cpu in cpus))
        notes.append(f"several kinds of core: CPUs {numbers} are meant, which do most together")
    if (cores := cores_of(cpus)) < len(cpus):
        notes.append(f"{len(cpus)} hardware threads are {cores} cores")
    return notes


def _assumed(base: Core, ghz: float | None) -> list[str]:
    notes = []
    if ghz is None:
        notes.append(f"clock unknown: {base.ghz:g} GHz assumed as in {base.name}")
    if base.vector_bits == 512:
        # The number of such units cannot be queried.
        notes.append(f"{base.fma_per_cycle:g} AVX-512 FMA per cycle assumed; `probe` measures it")
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
