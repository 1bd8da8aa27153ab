"""The CPUs that this process may use, as Linux tells of them. Nothing here raises or decides.

What cannot be read is None or empty.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DEVICES = Path("/sys/devices")
PROC_CPUINFO = Path("/proc/cpuinfo")
# Folders of `/sys/devices` that list the CPUs of each kind on Intel's hybrid processors.
_KINDS = {"core": "cpu_core", "atom": "cpu_atom", "lowpower": "cpu_lowpower"}


@dataclass(frozen=True)
class FoundCache:
    """A data or unified cache as reported; None for each number that was not."""

    level: int
    bytes: int
    ways: int | None
    line_bytes: int | None
    shared_by: int | None  # CPUs, so hardware threads count one by one


@dataclass(frozen=True)
class Cpu:
    """One usable CPU, which is a core or a hardware thread of one.

    Parameters
    ----------
    number : int
        As the operating system counts.
    key : str
        What the processor calls itself, in the form of `keys.expanded`; empty when unknown.
    siblings : str or None
        List of the CPUs that are hardware threads of the same core.
    ghz : float or None
        Its highest clock.
    caches : tuple of FoundCache
        The caches it sees, by rising level.
    """

    number: int
    key: str = ""
    siblings: str | None = None
    ghz: float | None = None
    caches: tuple[FoundCache, ...] = ()


def usable_cpus() -> tuple[int, ...]:
    """Return the numbers of the CPUs that the calling thread may run on, ascending."""
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except (AttributeError, OSError):  # only Linux has it
        return tuple(range(os.cpu_count() or 1))


def read_cpus(
    numbers: tuple[int, ...] | None = None,
    devices: Path = DEVICES,
    proc_cpuinfo: Path = PROC_CPUINFO,
    with_caches: bool = True,
) -> tuple[Cpu, ...]:
    """Return what is known of each CPU.

    Parameters
    ----------
    numbers : tuple of int, optional
        Replaces the CPUs that this process may use.
    devices : Path
        Folder with `system/cpu/cpuN` for each CPU, as Linux keeps in sysfs.
    proc_cpuinfo : Path
        Linux's list of processors; it stands in for MIDR registers that sysfs does not show.
    with_caches : bool
        Whether to read these, 20 files for a CPU.
    """
    entries, kinds = listed(proc_cpuinfo), _kinds(devices)
    found = []
    for n in numbers or usable_cpus():
        folder = devices / f"system/cpu/cpu{n}"
        khz = number_in(folder / "cpufreq/cpuinfo_max_freq")
        found.append(
            Cpu(
                n,
                _midr_key(folder) or _listed_key(entries.get(n, {}), kinds.get(n, "")),
                text_in(folder / "topology/thread_siblings_list") or None,
                khz / 1e6 if khz else None,
                _caches(folder / "cache") if with_caches else (),
            )
        )
    return tuple(found)


def _midr_key(folder: Path) -> str:
    """Return the key of the Arm identification register (MIDR_EL1) that sysfs shows, or ""."""
    midr = number_in(folder / "regs/identification/midr_el1", 16)
    return arm_key(midr >> 24 & 0xFF, midr >> 4 & 0xFFF) if midr else ""


def arm_key(implementer: int, part: int) -> str:
    """Return the key of an Arm core."""
    return f"0x{implementer:02x}:0x{part:03x}"


def x86_key(vendor: str, family: int, model: int, kind: str = "") -> str:
    """Return the key of an x86 core; `kind` tells those of a hybrid processor apart."""
    return f"{vendor}:{family}:0x{model:02x}" + (f":{kind}" if kind else "")


def _listed_key(entry: dict[str, str], kind: str) -> str:
    """Return the key of an entry of `/proc/cpuinfo`, "" where it says too little."""
    try:
        if "CPU part" in entry:
            return arm_key(int(entry["CPU implementer"], 16), int(entry["CPU part"], 16))
        family, model = int(entry["cpu family"]), int(entry["model"])
        return x86_key(entry["vendor_id"], family, model, kind)
    except (KeyError, ValueError):
        return ""


def listed(proc_cpuinfo: Path = PROC_CPUINFO) -> dict[int, dict[str, str]]:
    """Return the fields of each processor in `/proc/cpuinfo` by its number."""
    found = {}
    for block in text_in(proc_cpuinfo).split("\n\n"):
        pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
        fields = {name.strip(): value.strip() for name, value in pairs}
        if fields.get("processor", "").isdecimal():
            found[int(fields["processor"])] = fields
    return found


def _kinds(devices: Path) -> dict[int, str]:
    """Return the kind of each CPU of a hybrid processor; empty on any other."""
    lists = {kind: cpus_in(text_in(devices / d / "cpus")) for kind, d in _KINDS.items()}
    return {cpu: kind for kind, cpus in lists.items() for cpu in cpus}


def _caches(folder: Path) -> tuple[FoundCache, ...]:
    """Return the data and unified caches listed in a sysfs `cache` folder, by rising level."""
    found: dict[int, FoundCache] = {}
    for index in sorted(folder.glob("index[0-9]*")):
        level, size = number_in(index / "level"), _size(index / "size")
        if level and size and text_in(index / "type").lower() in ("data", "unified"):
            found[level] = FoundCache(
                level,
                size,
                number_in(index / "ways_of_associativity") or None,  # 0 stands for unknown
                number_in(index / "coherency_line_size") or None,
                len(cpus_in(text_in(index / "shared_cpu_list"))) or None,
            )
    return tuple(found[level] for level in sorted(found))


def text_in(path: Path) -> str:
    """Return the text of a file, "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def number_in(path: Path, base: int = 10) -> int | None:
    """Return the number in a file, 0 for a negative one, None where there is none."""
    try:
        return max(int(text_in(path), base), 0)
    except ValueError:
        return None


def _size(path: Path) -> int | None:
    """Return bytes of a sysfs size such as `48K`; None when absent, zero or unreadable."""
    text = text_in(path).upper()
    unit = {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
    digits = text.rstrip("KM")
    return int(digits) * unit or None if digits.isdecimal() else None


def cpus_in(text: str) -> tuple[int, ...]:
    """Return the CPUs that a list such as `0-3,8` names; none when it is not one."""
    try:
        ends = [tuple(map(int, part.split("-"))) for part in text.split(",")]
    except ValueError:
        return ()
    return tuple(cpu for end in ends for cpu in range(end[0], end[-1] + 1))
