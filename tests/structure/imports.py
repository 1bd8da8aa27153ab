"""Who imports whom: the modules of the library and the lines in which one names another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "tvm_blislike"
ROOMS_BESIDE = ("hardware", "microkernels", "cost_models", "schedules")


@dataclass(frozen=True)
class Import:
    """A line of `source` that imports the module `target`."""

    source: str
    target: str
    line: int
    typing_only: bool


def name_of(path: Path) -> str:
    """The module's name: the four rooms beside the package install below it."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in ROOMS_BESIDE:
        parts.insert(0, PACKAGE)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Every module of the product and its file."""
    files = (path for room in (PACKAGE, *ROOMS_BESIDE) for path in (ROOT / room).rglob("*.py"))
    return {name_of(path): path for path in files}


@cache
def tree_of(path: Path) -> ast.Module:
    """A file as a syntax tree, which several tests look at."""
    return ast.parse(path.read_text(encoding="utf-8"))


def _absolute(node: ast.ImportFrom, source: str) -> str:
    if not node.level:
        return node.module or ""
    parts = source.split(".")
    is_package = modules()[source].name == "__init__.py"
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, node.module] if node.module else base)


def _imports(node: ast.AST, source: str, typing_only: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        typing = typing_only or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        )
        names: list[str] = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(child, source)
            names = [
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules() else base
                for alias in child.names
            ]
        for name in sorted(set(names)):
            if name in modules() and name != source:
                yield Import(source, name, child.lineno, typing)
        yield from _imports(child, source, typing)


@cache
def imports() -> tuple[Import, ...]:
    """All imports within the product, those inside of functions and for annotations too."""
    found: list[Import] = []
    for name, path in sorted(modules().items()):
        found += _imports(tree_of(path), name)
    return tuple(found)
