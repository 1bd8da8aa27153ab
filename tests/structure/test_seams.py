"""Private and undocumented sides of TVM are used in `tvm_blislike/tvm_seams` and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from imports import ROOT, modules, tree_of

SEAMS = ROOT / "tvm_blislike" / "tvm_seams"
FILES = sorted(path for path in modules().values() if SEAMS not in path.parents)

# Modules that TVM's documentation does not name.
MODULES = re.compile(r"tvm(\.\w+)*\.(_\w+|onnx_frontend|popen_pool|cpu_generic|exec)(\.|$)")
# Of TVM's modules and executables, and of its pipelines.
ATTRIBUTES = {
    "clear_imports",
    "cpu_generic",
    "get_global_func",
    "get_tir_pipeline",
    "import_module",
    "inspect_source",
    "libinfo",
    "register_error",
    "register_tir_pipeline",
}
# Attributes that its passes read, kinds of its modules, functions that it registers, and names in
# the text that it generates.
TEXTS = re.compile(
    r"op_pattern$|tirx\.(noalias|is_scheduled)$|disable_lower_builtin$|pragma_|relax\.VMExecutable$"
    r"|s_tir$|(runtime|vm\.builtin|target\.build)\.\w|cache_flush|_?_tvm_|TVMBackend"
    r"|.*(\^define |\^declare |call ptr )"
)
# Documented by Python.
DOCUMENTED = {"_exit", "_replace", "_asdict", "_fields"}


def own_names() -> set[str]:
    """Return every name with an underscore that the library defines itself."""
    found = set()
    for tree in map(tree_of, FILES):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return found


OWN = own_names() | DOCUMENTED


def docstrings(tree: ast.Module) -> set[int]:
    """Return the identities of nodes that are text standing alone."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and words of each use of what only the seams may use."""
    texts = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            private = re.match("_[a-z]", node.attr) and node.attr not in OWN
            if private or node.attr in ATTRIBUTES:
                yield node.lineno, node.attr
            continue
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if TEXTS.match(node.value) and id(node) not in texts:
                yield node.lineno, repr(node.value)
            continue
        else:
            continue
        for name in names:
            if MODULES.match(name) or re.match(r"tvm[._].*\b_\w", name):
                yield node.lineno, name


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_only_the_seams_use_what_tvm_does_not_promise(path: Path) -> None:
    found = [f"line {line}: {what}" for line, what in uses(tree_of(path))]
    assert not found, "belongs behind a function of tvm_blislike/tvm_seams: " + "; ".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "from tvm.relax import _ffi_api",
        "from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map",
        "from tvm.support.popen_pool import PopenWorker",
        "tvm.get_global_func('sort')",
        "target._something()",
        "func.with_attr('op_pattern', 8)",
        "re.compile('^define ')",
        "name = f'__tvm_ffi_{name}'",
        "executable.mod.inspect_source('ll')",
        "tirx.register_tir_pipeline(name, pipeline)",
    ],
)
def test_such_uses_are_seen(code: str) -> None:
    assert list(uses(ast.parse(code)))


def test_every_seam_has_a_contract() -> None:
    modules = {path.stem for path in SEAMS.glob("*.py")} - {"__init__"}
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests/seams").glob("test_*.py")}
    assert modules <= tests
