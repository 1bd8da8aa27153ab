"""Test files have names of their own: pytest imports those outside packages by name alone."""

from __future__ import annotations

from collections import Counter

from imports import ROOT


def test_names_of_modules_outside_packages_are_unique() -> None:
    folders = [f for f in (ROOT / "tests").rglob("*") if f.is_dir()]
    alone = [f for f in (ROOT / "tests", *folders) if not (f / "__init__.py").exists()]
    names = Counter(p.name for f in alone for p in f.glob("*.py") if p.name != "conftest.py")
    assert names["test_test_files.py"] == 1
    assert not [name for name, times in names.items() if times > 1]
