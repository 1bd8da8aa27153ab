"""A page for each file of `benchmarks/results`, as it was measured: a hook of MkDocs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def on_config(config: Any) -> Any:
    """Name the pages in the navigation."""
    (section,) = (part["Benchmarks"] for part in config.nav if "Benchmarks" in part)
    section += [{path.stem: f"benchmarks/{path.stem}.md"} for path in sorted(RESULTS.glob("*.txt"))]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and the pictures as they are."""
    for path in sorted(RESULTS.glob("*.txt")):
        text = f"# {path.stem}\n\n````text\n{path.read_text().rstrip()}\n````\n"
        files.append(File.generated(config, f"benchmarks/{path.stem}.md", content=text))
    for path in sorted(RESULTS.glob("*.png")):
        files.append(File.generated(config, f"benchmarks/{path.name}", abs_src_path=str(path)))
    return files
