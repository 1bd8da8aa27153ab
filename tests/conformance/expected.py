"""What `refusals.toml` says of each case: that it passes, or how it is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from conformance.cases import Case

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
    misread: bool  # TVM's importer takes them, without a word, for something else

    def has(self, name: str) -> bool:
        """Whether a case belongs here."""
        return any(fnmatchcase(name, pattern) for pattern in self.cases)

    def unused(self, names: Mapping[str, Case]) -> list[str]:
        """Return the patterns that no case has."""
        return [p for p in self.cases if not any(fnmatchcase(name, p) for name in names)]


class Table:
    """The file, read."""

    def __init__(self) -> None:
        table = tomllib.loads(TABLE.read_text())
        self.without_converter: dict[str, str] = table["without_converter"]
        self.wider: list[dict] = table["wider"]
        self.groups = [
            Group(tuple(g["cases"]), Refusal(g["error"], g["message"]), g["reason"], g["misread"])
            for g in table["refused"]
        ]

    def refusals(self, case: Case) -> list[Refusal]:
        """Return what is said of a case; more than one entry is a fault of the table."""
        found = [group.refusal for group in self.groups if group.has(case.name)]
        lacking = sorted(case.operators & self.without_converter.keys())
        if lacking and not found:
            pattern = rf"unsupported operator: .*\b({'|'.join(lacking)}) \(node"
            found = [Refusal("UnsupportedOperatorError", pattern)]
        return found

    def is_misread(self, name: str) -> bool:
        """Whether TVM's importer would take a case for something else."""
        return any(group.misread and group.has(name) for group in self.groups)

    def tolerance(self, name: str) -> float | None:
        """Return the relative tolerance of a case that needs a wider one than its own."""
        found = [w["rtol"] for w in self.wider if any(fnmatchcase(name, p) for p in w["cases"])]
        assert len(found) < 2, f"two tolerances of {name}"
        return found[0] if found else None
