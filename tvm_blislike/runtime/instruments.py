"""Instruments of TVM's virtual machine: functions it calls before and after each of its calls."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

# Takes the function, its name, whether it is before the call, the result, and the arguments;
# returns 0 for TVM to go on.
Instrument = Callable[..., int]


@contextlib.contextmanager
def attached(machine: Any, *instruments: Instrument) -> Iterator[None]:
    """Let instruments watch a virtual machine inside this context.

    Parameters
    ----------
    machine : tvm.relax.VirtualMachine
        Without an instrument: it can have one only.
    *instruments : callable
        As above; what they return is of no account where they are several.
    """

    def all_of_them(*call: Any) -> int:
        for each in instruments:
            each(*call)
        return 0

    machine.set_instrument(instruments[0] if len(instruments) == 1 else all_of_them)
    try:
        yield
    finally:
        machine.set_instrument(None)


class KernelClock:
    """Times the calls of kernels.

    Attributes
    ----------
    runs : list of dict
        For each run the seconds of each call of each kernel, by its name.
    """

    def __init__(self) -> None:
        from tvm_blislike.tvm_seams.runtime import is_kernel

        self._is_kernel = is_kernel
        self.runs: list[dict[str, list[float]]] = []
        self._started = 0.0

    def start_run(self) -> None:
        """Count what follows as another run."""
        self.runs.append(defaultdict(list))

    def __call__(self, func: Any, name: str, before: bool, result: Any, *args: Any) -> int:
        """Note the time."""
        now = time.perf_counter()
        if before:
            self._started = time.perf_counter()
        elif self._is_kernel(name):
            self.runs[-1][name].append(now - self._started)
        return 0
