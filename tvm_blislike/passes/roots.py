"""What is written on a PrimFunc of this package: how it was scheduled, and that it is ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx

from tvm_blislike.model.marks import DEFAULT, OURS, PLAIN, SCHEDULED


def root_annotations(func: Any) -> Mapping[str, Any]:
    """Return the annotations of the root block of a PrimFunc; none for any other function."""
    body = getattr(func, "body", None)
    block = getattr(body, "block", None) if isinstance(func, tirx.PrimFunc) else None
    return {} if block is None else block.annotations


def is_ours(func: Any) -> bool:
    """Whether a function is to be finished."""
    return not root_annotations(func).keys().isdisjoint({SCHEDULED, PLAIN, DEFAULT})


def marked(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark every PrimFunc as one of this package's, whose remainders are to be hidden."""
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            result.update_func(gvar, func.with_attr(OURS, True))
    return result
