"""What the operating system tells of the present machine. Nothing here raises or decides.

A value that cannot be read is None or empty; `native` replaces it and says so.
"""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .cpus import DEVICES, PROC_CPUINFO, Cpu, listed, read_cpus, x86_key

_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


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
    cpus : tuple of Cpu
        Usable CPUs of this process.
    ghz : float or None
        The clock that the processor's name advertises.
    """

    system: str
    arch: str
    flags: frozenset[str] = frozenset()
    vendor: str = ""
    brand: str = ""
    cpus: tuple[Cpu, ...] = (Cpu(0),)
    ghz: float | None = None


def read_machine(
    devices: Path = DEVICES,
    cpuinfo: Callable[[], dict[str, Any]] | None = None,
    cpus: tuple[int, ...] | None = None,
    proc_cpuinfo: Path = PROC_CPUINFO,
) -> Machine:
    """Return what is known of the present machine.

    Parameters
    ----------
    cpuinfo : callable, optional
        Replaces `listed_info`, and `py-cpuinfo`'s `get_cpu_info` where that finds nothing.
    devices, cpus, proc_cpuinfo
        As `read_cpus` takes them.
    """
    info = _cpu_info(cpuinfo, proc_cpuinfo)
    key = _key(info)
    found = read_cpus(cpus, devices, proc_cpuinfo)
    flags = frozenset(f.lower().replace("_", "").replace(".", "") for f in _flags(info))
    return Machine(
        system=platform.system(),
        arch=str(info.get("arch_string_raw") or platform.machine()).lower(),
        flags=flags if cpuinfo is not None else _usable(flags),
        vendor=str(info.get("vendor_id_raw") or ""),
        brand=str(info.get("brand_raw") or ""),
        cpus=tuple(replace(cpu, key=cpu.key or key) for cpu in found),
        ghz=_advertised_ghz(info),
    )


def _cpu_info(cpuinfo: Callable[[], dict[str, Any]] | None, proc_cpuinfo: Path) -> dict[str, Any]:
    try:
        if cpuinfo is None:
            if found := listed_info(proc_cpuinfo):
                return found
            from cpuinfo import get_cpu_info as cpuinfo
        return dict(cpuinfo())
    except Exception:  # py-cpuinfo raises a bare Exception on processors it does not know
        return {}


def listed_info(proc_cpuinfo: Path = PROC_CPUINFO) -> dict[str, Any]:
    """Return what `py-cpuinfo` says, from Linux's list of processors; {} without flags there.

    That takes a millisecond; `py-cpuinfo` runs half a dozen programs, for about a second.
    """
    fields = next(iter(listed(proc_cpuinfo).values()), {})
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    if not flags:
        return {}
    brand = fields.get("model name", "")
    advertised = re.search(r"([\d.]+) *GHz", brand)
    ghz = float(advertised[1]) if advertised else float(fields.get("cpu MHz", 0.0)) / 1e3
    return {
        "arch_string_raw": platform.machine(),
        "vendor_id_raw": fields.get("vendor_id", ""),
        "brand_raw": brand,
        "flags": flags,
        "hz_advertised": [round(1e9 * ghz), 0],
    }


def _key(info: dict[str, Any]) -> str:
    """Return the key of an x86 processor on systems without `/proc/cpuinfo`, "" otherwise."""
    parts = [info.get(name) for name in ("vendor_id_raw", "family", "model")]
    return x86_key(*parts) if all(parts) else ""


def _flags(info: dict[str, Any]) -> list[str]:
    flags = info.get("flags")
    return [str(f) for f in flags] if isinstance(flags, (list, tuple)) else []


def _usable(flags: frozenset[str]) -> frozenset[str]:
    """Return the flags of what this process may use: tile registers are for those who ask."""
    tiles = {flag for flag in flags if flag.startswith("amx")}
    return flags - tiles if tiles and not _tiles_permitted() else flags


def _tiles_permitted() -> bool:
    """Ask Linux for tile registers: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    try:
        return ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0
    except (OSError, AttributeError):
        return False


def _advertised_ghz(info: dict[str, Any]) -> float | None:
    hz = info.get("hz_advertised")
    known = isinstance(hz, (list, tuple)) and hz and isinstance(hz[0], int) and hz[0] > 0
    return round(hz[0] / 1e9, 3) if known else None


def architecture(name: str) -> str:
    """Return one spelling for the names that systems give an architecture: x86_64, aarch64."""
    return _ARCHITECTURES.get(name.lower(), name.lower())
