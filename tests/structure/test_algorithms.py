"""The room of an algorithm is its two folders: nothing outside names it."""

from __future__ import annotations

import ast

import pytest
from imports import PACKAGE, ROOT, imports, modules, tree_of

from tvm_blislike.schedules import all_implementations

ALGORITHMS = {implementation.name: implementation for implementation in all_implementations()}
# What an algorithm is built on, which in turn knows nothing of it.
BUILT_ON = {
    "conv2d_grouped": "conv2d_depthwise",
    "conv2d_strassen": "gemm_strassen",
    "conv2d_winograd_1d": "conv2d_winograd",
    "conv3d_depthwise": "conv2d_depthwise",
    "gemm_strassen": "gemm",
}


def room_of(module: str) -> str:
    """Return the algorithm whose module it is, "" for all others."""
    parts = module.removeprefix(f"{PACKAGE}.").split(".")
    in_room = parts[0] in ("schedules", "cost_models") and len(parts) > 1
    return parts[1] if in_room and parts[1] in ALGORITHMS else ""


def test_every_room_has_the_same_files() -> None:
    for name, implementation in ALGORITHMS.items():
        assert (ROOT / "schedules" / name / "definition.py").exists()
        folder = ROOT / "cost_models" / name
        assert {"candidates.py", "config.py"} <= {path.name for path in folder.glob("*.py")}
        assert implementation.config_type.__module__ == f"{PACKAGE}.cost_models.{name}.config"
        assert implementation.config_type().implementation == name


def test_nothing_is_imported_from_a_room_outside_of_it() -> None:
    for line in imports():
        source, target = room_of(line.source), room_of(line.target)
        assert not target or target in (source, BUILT_ON.get(source)), line


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - {"gemm"}))
def test_no_code_outside_has_its_name(name: str) -> None:
    """But in prose; "gemm" is also a kind of workload."""
    for module, path in modules().items():
        if room_of(module) != name:
            nodes = ast.walk(tree_of(path))
            texts = [n.value for n in nodes if isinstance(n, ast.Constant)]
            assert name not in texts, module
