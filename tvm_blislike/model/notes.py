"""Annotations of several values, as text.

A schedule's trace survives MetaSchedule's JSON database with numbers, texts and lists in its
annotations, not with maps. So what a template tells `schedules.lowering` about a loop is a text:
`{'mw': 3, 'nr': 1}`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any


def write(fields: Mapping[str, int | Sequence[int]]) -> str:
    """Return the annotation that holds the fields: integers, or lists of them."""
    plain = {
        name: int(value) if not isinstance(value, Sequence) else [int(v) for v in value]
        for name, value in fields.items()
    }
    return repr(plain)


def read(note: Any) -> dict[str, Any]:
    """Return the fields of an annotation that `write` made."""
    return ast.literal_eval(str(note))
