"""The core of the present machine, measured at its first use."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from tvm_blislike import hardware
from tvm_blislike.errors import BlislikeError
from tvm_blislike.files import write_text
from tvm_blislike.hardware import Core, probed

if TYPE_CHECKING:
    import tvm

    from tvm_blislike.probe.result import ProbeResult

# Time that another process may take to measure the same machine.
_PATIENCE_SECONDS = 60.0
_log = logging.getLogger("tvm_blislike")


def native_core() -> Core:
    """Return the core of the present machine with measured facts; see `hardware.native_core`.

    At the first use on a machine a quick probe measures it, in about a second; one that was
    disturbed is made again at once, and at a few later uses, and the least disturbed one counts.
    What it found is kept in a file of the user's cache directory; where none can be written, in
    this process.
    `TVM_BLISLIKE_PROBE=0` in the environment turns that off. A probe that fails leaves the facts
    of the nearest described core, and a note why.
    """
    path, described = hardware.native_description()
    if not probed.is_settled(path):
        try:
            _measure_once(path, described)
        except Exception as error:  # whatever it is: a machine that is not measured still works
            probed.give_up(path, str(error).strip().splitlines()[-1:][0] or type(error).__name__)
            _log.warning("this machine could not be measured: %s", error)
    return hardware.native_core()


def core_of(target: tvm.target.Target) -> Core:
    """Return the core that fits a target, measured where it is the present machine."""
    from tvm_blislike.choose import targets

    core = targets.core_of(target)
    if core.name != hardware.native_core().name:
        return core
    native_core()
    return targets.core_of(target)


def keep(measured: ProbeResult, times: int = 0) -> Path | None:
    """Use what a probe of this machine found from now on; return where it is kept, if anywhere.

    What was found with fewer threads than there are cores is for this process alone.

    Parameters
    ----------
    measured : ProbeResult
        What it found.
    times : int
        How often the machine was found busy by now; 0 for facts that stay as they are.
    """
    path, described = hardware.native_description()
    core = measured.to_core()
    if times:
        core = probed.on_busy_machine(core, measured.disturbance, times)
    probed.hold(path, core)
    if measured.threads < described.cores:
        _log.info("measured with %d threads, for this process alone", measured.threads)
        return None
    return _write(path, core)


def _write(path: Path, core: Core) -> Path | None:
    """Keep what was measured; return where, if anywhere."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, core.to_toml())
    except (OSError, BlislikeError) as error:
        _log.info("what was measured is not kept: %s", error)
        return None
    return path


def _measure_once(path: Path, described: Core) -> None:
    """Measure, or wait for the process that does."""
    lock = _lock(path)
    try:
        before = probed.known(path)
        if before is None:
            _log.info("first use on this machine: measuring it, about a second")
            kept = _measure(described)
            if kept:
                _log.info("measured; kept in %s", kept)
        elif probed.is_due(path):
            _log.info("this machine was busy when it was measured: measuring it again")
            _measure_again(path, before, described)
    finally:
        lock()


def _measure(described: Core) -> Path | None:
    """Measure, once more when something disturbed it, and keep what was disturbed less."""
    from tvm_blislike.probe.measure import probe

    found = probe(described, quick=True)
    if found.disturbance > 1:
        found = min(found, probe(described, quick=True), key=lambda each: each.disturbance)
    return keep(found, times=1 if found.disturbance > 1 else 0)


def _measure_again(path: Path, before: Core, described: Core) -> None:
    """Measure, and keep what is there where this was disturbed more."""
    from tvm_blislike.probe.measure import probe

    disturbance, times = probed.busy(before)
    found = probe(described, quick=True)
    if found.disturbance <= 1:
        keep(found)
    elif found.disturbance < disturbance:
        keep(found, times + 1)
    else:
        probed.hold(path, before)
        _write(path, probed.on_busy_machine(before, disturbance, times + 1))


def _lock(path: Path) -> Callable[[], Any]:
    """Take the lock beside a file and return what releases it; without a folder there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{path}.lock", timeout=_PATIENCE_SECONDS)
        lock.acquire()
    except OSError:
        return lambda: None
    return lock.release
