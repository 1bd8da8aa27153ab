"""TVMScript, whose parser asks Python for the source line of every frame above a function."""

from __future__ import annotations

import inspect

# Python's import system, whose code lies in no file of a module. For what it does not know,
# `inspect.getmodule` goes through all modules at each frame: 248 functions, as many as the import
# of TVM's tensor intrinsics parses, take 60 s among 2,000 modules, and 10 s once these are known.
_IMPORTERS = ("_bootstrap", "_bootstrap_external")


def know_importers() -> None:
    """Tell `inspect` which modules the import system's frames are of, if it keeps such a table."""
    table = getattr(inspect, "modulesbyfile", {})
    for name in _IMPORTERS:
        table.setdefault(f"<frozen importlib.{name}>", f"importlib.{name}")
