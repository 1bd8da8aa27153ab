"""Annotations have one place each: directives of loops and marks; each is written and read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from imports import PACKAGE, ROOMS_BESIDE, ROOT, modules, tree_of

from tvm_blislike.model import marks
from tvm_blislike.model.directive import all_directives

ROOMS = (PACKAGE, *ROOMS_BESIDE)
HOMES = {"tvm_blislike/model/directive.py", "tvm_blislike/model/marks.py"}


def sources(*rooms: str) -> Iterator[tuple[str, str]]:
    """Path and text of every module of some rooms."""
    for path in sorted(modules().values()):
        name = path.relative_to(ROOT).as_posix()
        if name.split("/")[0] in rooms:
            yield name, path.read_text()


def test_no_key_is_written_elsewhere() -> None:
    key = re.compile(r"""["']blislike\.[a-z_]*["']|\.annotate\(\s*[\w.\[\]"]+,\s*["']""")
    found = {path for path, text in sources(*ROOMS) if key.search(text)}
    assert found == HOMES


def named(path: str) -> set[str]:
    """Names that a module uses, beyond importing them."""
    nodes = list(ast.walk(tree_of(ROOT / path)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def test_every_directive_is_written_by_a_template_or_a_micro_kernel_and_read_by_lowering() -> None:
    written, read = set(), set()
    for path, _ in sources("schedules", "microkernels"):
        (read if path.startswith("schedules/lowering/") else written).update(named(path))
    names = {kind.__name__ for kind in all_directives()}
    assert names <= written
    assert names <= read


def test_every_mark_is_used_outside_its_list() -> None:
    text = "".join(text for path, text in sources(*ROOMS) if path not in HOMES)
    keys = {name: key for name, key in vars(marks).items() if name.isupper()}
    assert len(set(keys.values())) == len(keys)
    assert all(len(re.findall(rf"\b{name}\b", text)) > 1 for name in keys)
