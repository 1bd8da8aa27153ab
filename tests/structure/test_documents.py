"""The documents name files and folders that exist."""

from __future__ import annotations

import re

import pytest
from imports import PACKAGE, ROOMS_BESIDE, ROOT

_TOPS = (*ROOMS_BESIDE, PACKAGE, "tests", "benchmarks", "examples")
_ROOMS = sorted(p.name for p in (ROOT / PACKAGE).iterdir() if (p / "__init__.py").exists())


def _named(text: str) -> set[str]:
    """Return the paths in `text`, those within the package relative to it."""
    words = re.findall(r"[\w./-]+", text)
    return {w.rstrip(".") for w in words if "/" in w and w.split("/")[0] in {*_TOPS, *_ROOMS}}


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md"])
def test_paths_in_documents_exist(document: str) -> None:
    named = _named((ROOT / document).read_text())
    assert named
    missing = [
        p for p in sorted(named) if not any((b / p).exists() for b in (ROOT, ROOT / PACKAGE))
    ]
    assert not missing


def test_every_room_is_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    unnamed = [room for room in (*ROOMS_BESIDE, *_ROOMS) if f"{room}/`" not in text]
    assert not unnamed
