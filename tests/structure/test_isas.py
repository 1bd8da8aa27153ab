"""Code asks an instruction set for facts, never for its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from imports import ROOT, modules, tree_of

from tvm_blislike.hardware import ISAS, Core, names

SOURCES = sorted(modules().values())
# The files of an instruction set itself begin with its name.
COMMON = [path for path in SOURCES if not path.stem.startswith(tuple(ISAS))]


def comparisons(tree: ast.AST) -> Iterator[tuple[int, list[ast.expr]]]:
    """Yield the line and the operands of what tells one value from others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield node.lineno, [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            patterns = [value for case in node.cases for value in ast.walk(case.pattern)]
            yield node.lineno, [p.value for p in patterns if isinstance(p, ast.MatchValue)]
        elif isinstance(node, ast.Dict):
            yield node.lineno, [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Subscript):
            yield node.lineno, [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.lineno, node.args if node.func.attr in ("get", "startswith") else []


def named(operands: list[ast.expr]) -> set[str]:
    """Return the instruction sets that operands name, alone or in a list, a set or a tuple."""
    parts = [part for operand in operands for part in ast.walk(operand)]
    return {part.value for part in parts if isinstance(part, ast.Constant)} & {*ISAS}


@pytest.mark.parametrize("path", COMMON, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_code_tells_instruction_sets_apart_by_name(path: Path) -> None:
    tree = tree_of(path)
    assert [line for line, operands in comparisons(tree) if named(operands)] == []
    # Nor by comparing objects, or names with anything.
    attributes = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and ast.unparse(part).endswith(".isa.name")
        if not ast.unparse(node).startswith("(k.isa.name, k.types.product) == ")
    ]
    assert attributes == []


@pytest.mark.parametrize("name", names())
def test_cores_agree_with_their_instruction_set(name: str) -> None:
    core = Core.named(name)
    assert core.isa is ISAS[core.isa.name]
    assert core.vector_bits == 8 * core.isa.vector_bytes
    assert core.vector_registers == core.isa.vector_registers
    for feature in core.isa.features:
        assert f"+{feature.llvm}" not in core.mattr or feature.name in core.features


def test_features_are_found_by_their_flags() -> None:
    for isa in ISAS.values():
        assert len({feature.name for feature in isa.features}) == len(isa.features)
        for feature in isa.features:
            assert isa.found(frozenset({feature.flag})) == (feature.name,)
            assert f"+{feature.llvm}" in isa.target(frozenset({feature.flag}))
