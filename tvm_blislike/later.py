"""Doing something once a module has been imported, whoever imports it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call a function once a module that is not imported yet has been."""
    sys.meta_path.insert(0, _Listener(name, then))


class _Listener:
    """A finder of modules: finds one as all others would, and calls a function behind its code."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return where the module is found; None for all other modules."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                execute(module)
                self.then()

            spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec
