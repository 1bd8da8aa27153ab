"""The pages are built without a warning, from all documents, docstrings and results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fences import ROOT

pytest.importorskip("mkdocs", reason="needs the extra docs")


def test_the_site(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING -" not in done.stderr
    for result in (ROOT / "benchmarks" / "results").glob("*.txt"):
        assert (tmp_path / "benchmarks" / result.stem / "index.html").is_file()
    api = (tmp_path / "reference" / "api" / "index.html").read_text()
    for name in ("compile", "explain", "CompiledModel", "Constraints", "tune", "ModelError"):
        assert f">{name}<" in api or f".{name}" in api
