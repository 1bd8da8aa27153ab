"""What the rates of the steps say of a core: each measured field as an expression over them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tvm_blislike.probe.compute_kernels import USES
from tvm_blislike.probe.expression import Expression, rate
from tvm_blislike.probe.steps import MEMORY, own_level

if TYPE_CHECKING:
    from tvm_blislike.hardware import Cache, Core

_CLOCK = rate("chain")
# Rounded so that a file reads well, far below what runs differ by.
_HUNDREDTHS, _THOUSANDTHS = 100, 1000
_QUARTERS = 4
# By which a byte from memory takes longer at least: nothing is divided by zero.
_LEAST_SECONDS = 1e-15


def core_facts(core: Core, steps: Collection[str]) -> dict[str, Expression]:
    """Return the measured fields of a `Core`.

    Parameters
    ----------
    core : Core
        As described.
    steps : collection of str
        Names of what was measured (`steps_of`); without threads nothing is handed to them.
    """
    facts = {
        "fma_per_cycle": _fma_per_cycle(),
        "loads_per_cycle": _halves(_loads(core, steps) / _CLOCK),
        "stores_per_cycle": _halves(rate("write") / _CLOCK),
        "memory_gb_per_s": (1e-9 * _together(MEMORY, steps)).nearest(_HUNDREDTHS),
        "memory_core_gb_per_s": (1e-9 * _stream(MEMORY)).nearest(_HUNDREDTHS),
        "element_load_cycles": _beside_fmas("fma_elements"),
        "vector_load_cycles": _beside_fmas("fma_vectors"),
        "lines_in_flight": _lines_in_flight(),
        "ghz": (1e-9 * _hertz()).nearest(_THOUSANDTHS),
    }
    if "bf16" in steps:
        per_cycle = _fma_per_cycle() * (rate("bf16") / rate("fma"))
        facts["bf16_per_cycle"] = per_cycle.nearest(_QUARTERS).at_least(1 / _QUARTERS)
    if "fork all" in steps:
        facts["fork_join_us"] = (1e6 / rate("fork all")).nearest(_HUNDREDTHS)
    if "passed all" in steps:
        facts["passed_bytes_per_cycle"] = _passed(core)
    return facts


def cache_facts(cache: Cache, steps: Collection[str]) -> dict[str, Expression]:
    """Return the measured fields of a `Cache`."""
    level = f"L{cache.level}"
    facts = {"bytes_per_cycle": _stream(level)} if f"stream {level}" in steps else {}
    if f"stream {level} all" in steps:
        facts["all_bytes_per_cycle"] = _together(level, steps)
    found = {name: (fact / _hertz()).nearest(_HUNDREDTHS) for name, fact in facts.items()}
    if f"half {level}" in steps:
        found["kept_of_half"] = _kept(level)
    return found


def peak_gflops(core: Core) -> Expression:
    """Return the fp32 FMA peak of one thread, two operations per lane and FMA."""
    return 2e-9 * core.lanes("float32") * rate("fma")


def _stream(level: str) -> Expression:
    return rate(f"stream {level}")


def _together(level: str, steps: Collection[str]) -> Expression:
    """Return what all threads get, no less than one of them alone."""
    every = f"stream {level} all"
    return rate(every).at_least(_stream(level)) if every in steps else _stream(level)


def _kept(level: str) -> Expression:
    """Return the part of a stream over half of a level that comes from there, not from memory."""
    memory = 1 / _stream(MEMORY)
    spared = (memory - 1 / rate(f"half {level}")).at_least(0.0)
    of_all = (memory - 1 / _stream(level)).at_least(_LEAST_SECONDS)
    return (spared / of_all).nearest(_QUARTERS).at_most(1.0)


def _fma_per_cycle() -> Expression:
    return _halves(rate("fma") / _CLOCK)


def _hertz() -> Expression:
    """Return the clock at which the FMA peak is the measured one."""
    return rate("fma") / _fma_per_cycle()


def _halves(per_cycle: Expression) -> Expression:
    return per_cycle.nearest(2).at_least(0.5)


def _loads(core: Core, steps: Collection[str]) -> Expression:
    """Return the vectors loaded per second, no fewer than those of a stream beside FMAs."""
    if "stream L1" not in steps:
        return rate("read")
    return rate("read").at_least(_stream("L1") / (core.vector_bits // 8))


def _beside_fmas(step: str) -> Expression:
    """Return the cycles by which a load makes its USES FMAs take longer."""
    longer = 1 / rate(step) - USES / rate("fma")
    return (longer * _CLOCK).nearest(_HUNDREDTHS).at_least(0.0)


def _passed(core: Core) -> Expression:
    """Return what a core gets of what another one has written.

    Both runs write, wait and read as much: they differ by where it comes from.
    """
    longer = (1 / rate("passed all") - 1 / rate("kept all")).at_least(0.0)
    seconds = longer + 1 / _stream(own_level(core))
    return (1 / seconds / _hertz()).nearest(_HUNDREDTHS).at_least(1 / _HUNDREDTHS)


def _lines_in_flight() -> Expression:
    """Return how many lines of memory were on their way at a time, by Little's law."""
    latency = 1 / rate(f"walk {MEMORY}") - 1 / rate("walk near")
    return (latency * rate(f"walks {MEMORY}")).nearest(1).at_least(1.0)
