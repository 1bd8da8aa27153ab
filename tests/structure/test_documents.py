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


_DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
_DOCUMENTS += [str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md"))]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_paths_in_documents_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    if document.startswith("docs/"):
        # Of pages, which MkDocs checks.
        text = re.sub(r"\]\([^)]*\)", "]", text)
    named = _named(text)
    assert named or document not in ("README.md", "ARCHITECTURE.md")
    missing = [
        p for p in sorted(named) if not any((b / p).exists() for b in (ROOT, ROOT / PACKAGE))
    ]
    assert not missing


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / document).read_text())
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert not missing


def test_every_room_is_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    unnamed = [room for room in (*ROOMS_BESIDE, *_ROOMS) if f"{room}/`" not in text]
    assert not unnamed
