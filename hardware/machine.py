"""What the operating system tells of the present machine. Nothing here raises or decides.

A value that cannot be read is None or empty; `native` replaces it and says so.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SYSFS_CPUS = Path("/sys/devices/system/cpu")
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class FoundCache:
    """A data or unified cache as reported; None for each number that was not."""

    level: int
    bytes: int
    ways: int | None
    line_bytes: int | None
    shared_by: int | None  # CPUs, so hardware threads count one by one


@dataclass(frozen=True)
class Machine:
    """Raw facts about the present machine.

    Parameters
    ----------
    system, arch : str
        As `platform.system()` and `platform.machine()` spell them.
    flags : frozenset of str
        CPU feature flags in lower case without underscores and dots.
    vendor, brand : str
        As `py-cpuinfo` reports them; empty when unknown.
    midrs : tuple of (int or None)
        The Arm identification register (MIDR_EL1) of each usable CPU.
    cpus : tuple of int
        Usable CPUs of this process, by number.
    siblings : tuple of (str or None)
        For each usable CPU the list of CPUs that are hardware threads of the same core.
    caches : tuple of FoundCache
        Caches of the first usable CPU.
    ghz : float or None
        Highest, else advertised clock.
    """

    system: str
    arch: str
    flags: frozenset[str] = frozenset()
    vendor: str = ""
    brand: str = ""
    midrs: tuple[int | None, ...] = ()
    cpus: tuple[int, ...] = (0,)
    siblings: tuple[str | None, ...] = ()
    caches: tuple[FoundCache, ...] = ()
    ghz: float | None = None


def read_machine(
    sysfs_cpus: Path = _SYSFS_CPUS,
    cpuinfo: Callable[[], dict[str, Any]] | None = None,
    cpus: tuple[int, ...] | None = None,
) -> Machine:
    """Return what is known of the present machine.

    Parameters
    ----------
    sysfs_cpus : Path
        Folder with one `cpuN` folder per CPU, as Linux keeps in sysfs.
    cpuinfo : callable, optional
        Replaces `py-cpuinfo`'s `get_cpu_info`.
    cpus : tuple of int, optional
        Replaces the CPUs that this process may use.
    """
    info = _cpu_info(cpuinfo)
    cpus = cpus or _usable_cpus()
    first = sysfs_cpus / f"cpu{cpus[0]}"
    return Machine(
        system=platform.system(),
        arch=str(info.get("arch_string_raw") or platform.machine()).lower(),
        flags=frozenset(f.lower().replace("_", "").replace(".", "") for f in _flags(info)),
        vendor=str(info.get("vendor_id_raw") or ""),
        brand=str(info.get("brand_raw") or ""),
        midrs=tuple(_midr(sysfs_cpus / f"cpu{c}") for c in cpus),
        cpus=cpus,
        siblings=tuple(_siblings(sysfs_cpus / f"cpu{c}") for c in cpus),
        caches=_caches(first / "cache"),
        ghz=_max_ghz(first) or _advertised_ghz(info),
    )


def _cpu_info(cpuinfo: Callable[[], dict[str, Any]] | None) -> dict[str, Any]:
    try:
        if cpuinfo is None:
            from cpuinfo import get_cpu_info as cpuinfo  # slow to import and to run: about 1 s
        return dict(cpuinfo())
    except Exception:  # py-cpuinfo raises a bare Exception on processors it does not know
        return {}


def _flags(info: dict[str, Any]) -> list[str]:
    flags = info.get("flags")
    return [str(f) for f in flags] if isinstance(flags, (list, tuple)) else []


def _usable_cpus() -> tuple[int, ...]:
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except (AttributeError, OSError):  # only Linux has it
        return tuple(range(os.cpu_count() or 1))


def _midr(cpu: Path) -> int | None:
    return _number(cpu / "regs/identification/midr_el1", 16)


def _siblings(cpu: Path) -> str | None:
    return _text(cpu / "topology/thread_siblings_list") or None


def _max_ghz(cpu: Path) -> float | None:
    khz = _number(cpu / "cpufreq/cpuinfo_max_freq")
    return khz / 1e6 if khz else None


def _advertised_ghz(info: dict[str, Any]) -> float | None:
    hz = info.get("hz_advertised")
    known = isinstance(hz, (list, tuple)) and hz and isinstance(hz[0], int) and hz[0] > 0
    return round(hz[0] / 1e9, 3) if known else None


def _caches(folder: Path) -> tuple[FoundCache, ...]:
    """Return the data and unified caches listed in a sysfs `cache` folder, by rising level."""
    found: dict[int, FoundCache] = {}
    for index in sorted(folder.glob("index[0-9]*")):
        level, size = _number(index / "level"), _size(index / "size")
        if level and size and _text(index / "type").lower() in ("data", "unified"):
            found[level] = FoundCache(
                level,
                size,
                _number(index / "ways_of_associativity") or None,  # 0 stands for unknown
                _number(index / "coherency_line_size") or None,
                list_length(_text(index / "shared_cpu_list")),
            )
    return tuple(found[level] for level in sorted(found))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path, base: int = 10) -> int | None:
    try:
        return max(int(_text(path), base), 0)
    except ValueError:
        return None


def _size(path: Path) -> int | None:
    """Return bytes of a sysfs size such as `48K`; None when absent, zero or unreadable."""
    text = _text(path).upper()
    unit = {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
    digits = text.rstrip("KM")
    return int(digits) * unit or None if digits.isdecimal() else None


def list_length(text: str) -> int | None:
    """Return how many CPUs a list such as `0-3,8` names; None when it is not one."""
    try:
        ends = [tuple(map(int, part.split("-"))) for part in text.split(",")]
    except ValueError:
        return None
    return max(sum(e[-1] - e[0] + 1 for e in ends), 0) or None


def architecture(name: str) -> str:
    """Return one spelling for the names that systems give an architecture: x86_64, aarch64."""
    return _ARCHITECTURES.get(name.lower(), name.lower())
