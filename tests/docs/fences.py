"""Fenced blocks of the documents, and what the text above them says of running them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
_REMARK = re.compile(r"<!-- (not run: [^>]*?|run by [^>]*?) -->\n*\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Parameters
    ----------
    language : str
        What stands behind its fence.
    text : str
        Its lines.
    remark : str
        "not run: reason" or "run by FILE, ..." from the comment above it, else empty.
    """

    language: str
    text: str
    remark: str


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page; a remark below its title holds for all of it."""
    text = page.read_text()
    whole = re.match(r"# .*\n+<!-- (run by .*?) -->", text)
    found = []
    for match in _BLOCK.finditer(text):
        remark = _REMARK.search(text[: match.start()])
        said = remark or whole
        found.append(Block(match[1], match[2], said[1] if said else ""))
    return found


def lines_of(block: Block) -> list[str]:
    """Return the commands of a block, without comments and joined where they go on."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    return [line for line in (re.sub(r"\s+# .*", "", x).strip() for x in text.splitlines()) if line]
