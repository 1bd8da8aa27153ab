"""The tables of `winogen.py` from its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

Row = dict[str, Any]
_TITLES = {
    "conv2d_winograd": "2-D",
    "conv2d_winograd_1d": "1-D",
    "conv2d_direct": "direct",
    "conv2d_im2col": "im2col",
}
_TWO_D, _DIRECT, _PEER = "conv2d_winograd", "conv2d_direct", "onnxruntime"


def report(about: dict[str, Any], rows: Sequence[Row], implementations: Sequence[str]) -> None:
    """Print conditions, a table per quantity, and how the sides compare.

    Parameters
    ----------
    about : dict
        What the figures depend on, as `layers.conditions` returns it.
    rows : sequence of dict
        Layers, fields of `winogen.Row`.
    implementations : sequence of str
        Ours, in the order of the columns.
    """
    print(", ".join(f"{key}: {value}" for key, value in about.items()))
    sides = (*implementations, "model", _PEER)
    _table("ms", rows, sides, lambda row, side: f"{row['seconds'][side] * 1e3:.3f}")
    _table(
        "effective GFLOPS",
        rows,
        sides,
        lambda row, side: f"{row['gflop'] / row['seconds'][side]:.0f}",
    )
    _table("error", rows, sides, lambda row, side: f"{row['errors'][side]:.1e}")
    _table(
        "workspace, bytes",
        rows,
        implementations,
        lambda row, side: str(row["workspace_bytes"][side]),
    )
    _summaries(rows, implementations)


def _table(
    title: str, rows: Sequence[Row], sides: Sequence[str], cell: Callable[[Row, str], str]
) -> None:
    """Print one line per layer; "-" where an implementation does not apply."""
    names = [_TITLES.get(side, side) for side in sides]
    print(f"\n{title}\n{'network':12s} {'h':>3s} {'ci':>3s} {'co':>3s} k" + _joined(names))
    for row in rows:
        known = row["seconds"]
        h, ci, co, k = row["size"]
        cells = [cell(row, side) if side in known else "-" for side in sides]
        print(f"{row['network']:12s} {h:3d} {ci:3d} {co:3d} {k}" + _joined(cells))


def _joined(cells: Sequence[str]) -> str:
    return "".join(f"{cell:>13s}" for cell in cells)


def _summaries(rows: Sequence[Row], implementations: Sequence[str]) -> None:
    def faster(ours: Callable[[dict[str, float]], float]) -> int:
        return sum(ours(row["seconds"]) < row["seconds"][_PEER] for row in rows)

    best = faster(lambda t: min(t[side] for side in implementations if side in t))
    print(
        f"\nfaster than {_PEER}, of {len(rows)}: {best} by the best implementation, in its layout;"
    )
    print(f"{faster(lambda t: t['model'])} as a model, NCHW in and out")
    gains = [
        row["seconds"][_DIRECT] / row["seconds"][_TWO_D] for row in rows if _is_large(row["size"])
    ]
    if gains:
        mean = math.exp(sum(map(math.log, gains)) / len(gains))
        print(
            f"2-D against direct, 3x3, ci and co >= 64, h >= 14: {mean:.2f}x (geometric mean of "
            f"{len(gains)} layers, {min(gains):.2f}x to {max(gains):.2f}x)"
        )
    for side in ("conv2d_winograd", "conv2d_winograd_1d"):
        errors = [row["errors"][side] for row in rows if side in row["errors"]]
        if errors:
            print(f"largest error of {_TITLES[side]}: {max(errors):.1e}")
    print(f"peak {median(row['peak_gflops'] for row in rows):.0f} GFLOPS (median)")


def _is_large(size: Sequence[int]) -> bool:
    h, ci, co, k = size
    return k == 3 and h >= 14 and min(ci, co) >= 64
