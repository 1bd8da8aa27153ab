"""Loops over a row, in vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T


def along(count: Any, lanes: int, body: Callable[..., None], by_lane: bool = False) -> None:
    """Emit scalar code for each of `count` elements: whole vectors, then the rest of one.

    Of a number that is known at run time only, the rest goes one by one.

    Parameters
    ----------
    body : callable
        (element), or with `by_lane` (element, its place in the vector).
    """

    def vector(first: Any, width: int) -> None:
        with T.vectorized(0, width) as lane:
            body(first + lane, *([lane] if by_lane else []))

    is_known = isinstance(count, int)
    whole, rest = divmod(count, lanes) if is_known else (count // lanes, 0)
    if not is_known or whole:
        with T.serial(0, whole) as number:
            vector(number * lanes, lanes)
    if rest:
        vector(whole * lanes, rest)
    if not is_known:
        with T.serial(whole * lanes, count) as at:
            body(at, *([at - whole * lanes] if by_lane else []))
