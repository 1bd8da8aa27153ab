"""Only `operators` and `model` ask of which kind a workload is; they answer all the rest."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from imports import ROOT, modules, tree_of

MAY_ASK = (ROOT / "tvm_blislike/operators", ROOT / "tvm_blislike/model")


def _questions(tree: ast.AST) -> Iterator[int]:
    """Lines that compare a workload's kind, or test for a class of workloads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                named = isinstance(side, ast.Attribute) and side.attr == "kind"
                if named and "workload" in ast.unparse(side.value):
                    yield node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            if "Workload" in ast.unparse(node.args[1]):
                yield node.lineno


def test_nothing_else_asks_for_the_kind_of_a_workload() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(modules().values())
        if not any(path.is_relative_to(place) for place in MAY_ASK)
        for line in _questions(tree_of(path))
    ]
    assert found == []
