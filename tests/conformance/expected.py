"""What `refusals.toml` says of each case: that it passes, or how it is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from conformance.cases import Case
from tvm_blislike.hardware import Core

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = Path(__file__).with_name("refusals.toml")


@dataclass(frozen=True)
class Refusal:
    """How a case is refused: by which class of error, with what message (a pattern)."""

    error: str
    message: str

    def describes(self, said: str) -> bool:
        """Whether an error, "CLASS: text", is this one."""
        kind, _, text = said.partition(": ")
        return kind == self.error and re.search(self.message, text) is not None


@dataclass(frozen=True)
class Group:
    """An entry of the table: cases by their names, in which `*` stands for anything."""

    cases: tuple[str, ...]
    refusal: Refusal
    reason: str
    misread: tuple[str, ...]  # those that TVM's importer takes, without a word, for something else

    def has(self, name: str) -> bool:
        """Whether a case belongs here."""
        return _is_any(name, self.cases)

    def unused(self, names: Mapping[str, Case]) -> list[str]:
        """Return the patterns that no case has."""
        patterns = (*self.cases, *self.misread)
        return [p for p in patterns if not any(fnmatchcase(name, p) for name in names)]


class Table:
    """The file, read."""

    def __init__(self) -> None:
        table = tomllib.loads(TABLE.read_text())
        self.without_converter = frozenset(table["without_converter"])
        self.wider: list[dict] = table["wider"]
        self.groups = [
            Group(
                tuple(g["cases"]),
                Refusal(g["error"], g["message"]),
                g["reason"],
                tuple(g.get("misread", ())),
            )
            for g in table["refused"]
        ]

    def refusals(self, case: Case) -> list[Refusal]:
        """Return what is said of a case; more than one entry is a fault of the table."""
        found = [group.refusal for group in self.groups if group.has(case.name)]
        lacking = sorted(case.operators & self.without_converter)
        if lacking and not found:
            pattern = rf"unsupported operator: .*\b({'|'.join(lacking)}) \(node"
            found = [Refusal("UnsupportedOperatorError", pattern)]
        return found

    def is_misread(self, name: str) -> bool:
        """Whether TVM's importer would take a case for something else."""
        return any(_is_any(name, group.misread) for group in self.groups)

    def widened(self, case: Case) -> Case:
        """Return a case that needs wider tolerances than its own with those; any other itself."""
        found = self._wider(case)
        given = {key: found[key] for key in ("rtol", "atol") if key in found}
        return replace(case, **given) if given else case

    def is_wider_needed(self, case: Case, core: Core) -> bool:
        """Whether a case fails on a core without its wider tolerance."""
        found = self._wider(case)
        return bool(found) and core.computes(found.get("computed_in", "float32"))

    def _wider(self, case: Case) -> dict[str, Any]:
        found = [w for w in self.wider if _is_any(case.name, w["cases"])]
        assert len(found) < 2, f"two tolerances of {case.name}"
        return found[0] if found else {}


def _is_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
