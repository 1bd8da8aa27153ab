"""No code of models, schedules and micro-kernels tells machines apart: cores state facts."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest
from imports import ROOT

from tvm_blislike.hardware import names

ROOMS = ("cost_models", "schedules", "microkernels")
SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
# What machines are called beside the names of their files.
_FAMILIES = (
    "golden.?cove",
    "sapphire",
    "ice.?lake",
    "sky.?lake",
    "cascade",
    "cooper",
    "emerald",
    "granite",
    "alder",
    "raptor",
    "xeon",
    "intel",
    "zen.?[0-9]",
    "epyc",
    "ryzen",
    "amd",
    "cortex",
    "neoverse",
    "apple",
    "carmel",
    "graviton",
)
MACHINES = re.compile("|".join([*map(re.escape, names()), *_FAMILIES]), re.IGNORECASE)


def code_of(text: str) -> list[tuple[int, str]]:
    """Return (line, token) of what is neither a comment nor a string that stands by itself."""
    found, begins = [], True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            begins = True
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING):
            if not (begins and token.type == tokenize.STRING):
                found.append((token.start[0], token.string))
            begins = False
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_machine_is_named_in_code(path: Path) -> None:
    named = [(n, token) for n, token in code_of(path.read_text()) if MACHINES.search(token)]
    assert named == []


@pytest.mark.parametrize(
    "code", ['if core.name == "zen4": pass', "GOLDEN_COVE_CYCLES = 3", 'x = f(core, "cortex-a53")']
)
def test_names_would_be_found(code: str) -> None:
    assert any(MACHINES.search(token) for _, token in code_of(code))


def test_prose_may_say_where_a_figure_was_measured() -> None:
    text = '"""As on Zen 4."""\nX = 1.0  # Golden Cove\n\n\ndef f():\n    """Intel."""\n'
    assert not any(MACHINES.search(token) for _, token in code_of(text))
