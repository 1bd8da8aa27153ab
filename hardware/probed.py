"""What a probe of the present machine found, kept in a file of the user's cache directory.

Clock, bandwidths and FMA units differ from part to part of one micro-architecture, and a virtual
machine has a share of them: no data sheet tells. So what was measured here replaces what a core's
file says. This module names that file and reads it; `tvm_blislike.probe` measures and writes it.

`TVM_BLISLIKE_PROBE=0` in the environment leaves everything as described.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import replace
from pathlib import Path

import platformdirs

from .core import Cache, Core
from .corefile import HardwareError
from .machine import Machine
from .switches import is_on

# Counts up when the probe measures something else, so that older files are not read.
_VERSION = 4
# Fields of a core and of its caches that a probe measures.
FACTS = (
    *("fma_per_cycle", "loads_per_cycle", "stores_per_cycle", "ghz"),
    *("memory_gb_per_s", "memory_core_gb_per_s", "element_load_cycles", "vector_load_cycles"),
    *("lines_in_flight", "fork_join_us", "bf16_per_cycle", "passed_bytes_per_cycle"),
)
CACHE_FACTS = ("bytes_per_cycle", "all_bytes_per_cycle", "kept_of_half")
# How far two probes of one machine may lie apart, as shares; cycles beside a multiply-add absolute.
# What differs less from the description says nothing against it, and equal machines choose equally.
# Probes of one Emerald Rapids say 0.00 to 0.03 cycles an element where its description says 0.09,
# which its layers want believed (benchmarks/results/choices-emerald-rapids.txt).
_SPREAD = {
    **dict.fromkeys(("ghz", "fma_per_cycle", "loads_per_cycle", "stores_per_cycle"), 0.03),
    "bf16_per_cycle": 0.03,
    **dict.fromkeys(("element_load_cycles", "vector_load_cycles"), 0.04),
    **dict.fromkeys(("memory_core_gb_per_s", "bytes_per_cycle"), 0.15),
    **dict.fromkeys(("memory_gb_per_s", "all_bytes_per_cycle", "lines_in_flight"), 0.3),
    **dict.fromkeys(("fork_join_us", "passed_bytes_per_cycle"), 0.5),
    "kept_of_half": 0.25,
}
_ABSOLUTE = ("element_load_cycles", "vector_load_cycles", "kept_of_half")
# How notes begin or read that say of such facts that they were assumed.
SETTLED = (
    *("clock unknown", "FMA per cycle assumed", "memory bandwidth assumed"),
    "estimates: bytes a cycle of caches",
)
# Of a machine that did something else while it was measured: how much, and how often that was so.
_BUSY = re.compile(r"measured on a busy machine \((\d+\.\d)\), (\d+) of (\d+) times")
_MOST_TIMES = 5
# Until it is measured again, in seconds.
_REST_SECONDS = 60.0
# What was read or measured in this process, by path: one answer from then on.
_held: dict[Path, Core] = {}
_failed: dict[Path, str] = {}


def is_wanted() -> bool:
    """Return whether the user did not turn the probe off."""
    return is_on("TVM_BLISLIKE_PROBE")


def path_of(core: Core, machine: Machine) -> Path:
    """Return where the facts of a machine are kept, named after what identifies it.

    Parameters
    ----------
    core : Core
        The machine as described: its micro-architecture, features, caches and number of cores.
    machine : Machine
        What the operating system tells: model and whether it is a virtual machine.
    """
    # The clock that some systems tell is the present one.
    what = replace(core, ghz=1.0, notes=(), source=("",)).to_toml()
    seen = (_VERSION, what, machine.vendor, machine.brand, "hypervisor" in machine.flags)
    name = hashlib.sha256(repr(seen).encode()).hexdigest()[:16]
    folder = platformdirs.user_cache_path("tvm-blislike", appauthor=False) / "probed"
    return folder / f"{core.name}-{name}.toml"


def known(path: Path) -> Core | None:
    """Return what was measured, None where that is not known (yet) or not readable."""
    if path not in _held:
        try:
            _held[path] = Core.from_toml(path)
        except HardwareError:
            return None
    return _held[path]


def hold(path: Path, measured: Core) -> None:
    """Use what was measured from now on in this process, kept in a file or not."""
    _held[path] = measured


def give_up(path: Path, reason: str) -> None:
    """Note why nothing could be measured."""
    _failed[path] = reason


def is_settled(path: Path) -> bool:
    """Return whether there is nothing to measure: it was, it failed, or it is not wanted."""
    if not is_wanted() or path in _failed or path in _held:
        return True
    return known(path) is not None and not is_due(path)


def on_busy_machine(core: Core, disturbance: float, times: int) -> Core:
    """Return a core with the note that it was measured on a busy machine, so many times by now."""
    again = "it is measured again at a later use" if times < _MOST_TIMES else "it stays so"
    note = (
        f"measured on a busy machine ({disturbance:.1f}), {times} of {_MOST_TIMES} times: {again}"
    )
    return replace(core, notes=(*(n for n in core.notes if not _BUSY.match(n)), note))


def busy(core: Core) -> tuple[float, int]:
    """Return what `on_busy_machine` was given; nothing of either for a core without that note."""
    found = [match for note in core.notes if (match := _BUSY.match(note))]
    return (float(found[0][1]), int(found[0][2])) if found else (0.0, 0)


def is_due(path: Path) -> bool:
    """Return whether what is kept was measured on a busy machine, and may be tried again now."""
    kept = known(path)
    times = busy(kept)[1] if kept is not None else 0
    return 0 < times < _MOST_TIMES and time.time() - path.stat().st_mtime > _REST_SECONDS


def completed(core: Core, machine: Machine) -> Core:
    """Return the core with what was measured on this machine, or with a note why it was not."""
    path = path_of(core, machine)
    if not is_wanted():
        return core
    if path in _failed:
        return replace(core, notes=(*core.notes, f"not measured: {_failed[path]}"))
    measured = known(path)
    return core if measured is None else with_facts(core, measured)


def with_facts(core: Core, measured: Core) -> Core:
    """Return a core with the measured facts of another description of the same machine.

    A fact stays as described where two probes may differ by as much (`_SPREAD`).
    """
    found = {cache.level: cache for cache in measured.caches}
    kept = [n for n in core.notes if not any(phrase in n for phrase in SETTLED)]
    told = [n for n in measured.notes if n not in core.notes]
    return replace(
        core,
        **{fact: _of_two(fact, core, measured) for fact in FACTS},
        caches=tuple(_with_facts(c, found.get(c.level, c)) for c in core.caches),
        notes=(*kept, *told),
    )


def _with_facts(cache: Cache, measured: Cache) -> Cache:
    return replace(cache, **{fact: _of_two(fact, cache, measured) for fact in CACHE_FACTS})


def _of_two(fact: str, described: Core | Cache, measured: Core | Cache) -> float | None:
    """Return a fact as described if what was measured does not contradict it, else as measured."""
    before, now = getattr(described, fact), getattr(measured, fact)
    if before is None or now is None:
        return now
    scale = 1.0 if fact in _ABSOLUTE else abs(before)
    return before if abs(now - before) <= _SPREAD[fact] * scale else now
