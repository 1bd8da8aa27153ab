"""Which phase a compilation is in, told to whoever listens in the thread that compiles."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

# In the order in which they begin; the last one where the compiled model is kept.
PHASES = ("import", "choice", "lowering", "code", "link")
_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Have a function called with the name of each phase that begins inside this context."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def begin(phase: str) -> None:
    """Say that a phase begins, one of `PHASES`."""
    listener = _listener.get()
    if listener is not None:
        listener(phase)
