"""Small rewrites of loops that the passes behind the templates share."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx


def remade(loop: tirx.For, **changes: Any) -> tirx.For:
    """Return a loop with some of its fields changed."""
    fields = {
        "loop_var": loop.loop_var,
        "min": loop.min,
        "extent": loop.extent,
        "kind": loop.kind,
        "body": loop.body,
        "thread_binding": loop.thread_binding,
        "annotations": loop.annotations,
    }
    return tirx.For(**{**fields, **changes})


def bind(node: Any, *values: tuple[tirx.Var, Any]) -> Any:
    """Return a statement or an expression with integers or expressions in place of variables."""

    def value(var: tirx.Var) -> Any:
        new = next((new for known, new in values if var.same_as(known)), var)
        return tirx.IntImm("int32", new) if isinstance(new, int) else new

    return tvm_ffi.structural_map(node, [(tirx.Var, value)])
