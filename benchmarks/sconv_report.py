"""The tables of `sconv.py` from its results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

Row = dict[str, Any]


def report(about: dict[str, Any], rows: Sequence[Row], models: Sequence[str]) -> None:
    """Print conditions, every layer, table 2 and the summaries of figures 8 and 9.

    Parameters
    ----------
    about : dict
        What the figures depend on, as `sconv.conditions` returns it.
    rows : sequence of dict
        Layers, fields of `sconv.Row`.
    models : sequence of str
        Models in the order of the table.
    """
    sides = about["sides"]
    print(", ".join(f"{key}: {value}" for key, value in about.items()))
    ratios = "".join(f"{side + ' x':>12s}" for side in sides)
    width = max(len(row["config"]) for row in rows)
    print(f"\n      ms{ratios}  GFLOPS  /peak  {'config':{width}s}  layer")
    for row in rows:
        print(_line(row, sides, width))
    for side in sides:
        _summaries(rows, models, side)
    peak = median(row["peak_gflops"] for row in rows)
    print(f"\npeak {peak:.0f} GFLOPS (median)")


def _line(row: Row, sides: Sequence[str], width: int) -> str:
    ours = row["seconds"]["ours"]
    ratios = "".join(f"{_speedup(row, side):12.2f}" for side in sides)
    return (
        f"{ours * 1e3:8.3f}{ratios} {row['gflops']:7.1f} {row['gflops'] / row['peak_gflops']:6.2f}"
        f"  {row['config']:{width}s}  {_instances(row)} x {row['layer']}"
    )


def _summaries(rows: Sequence[Row], models: Sequence[str], side: str) -> None:
    print(f"\nagainst {side}: all convolutions of a model (table 2)")
    for model in models:
        found = [row for row in rows if model in row["counts"]]
        if found:
            print(f"  {model:16s} {_total_speedup(found, model, side):5.2f}x")
    _summary("every convolution (figure 8)", rows, side)
    pointwise = [row for row in rows if row["pointwise"]]
    _summary("pointwise of stride 1 against GEMM (figure 9)", pointwise, side)


def _summary(title: str, rows: Iterable[Row], side: str) -> None:
    """Print geometric mean and fraction faster, over all instances of the layers."""
    speedups = [_speedup(row, side) for row in rows for _ in range(_instances(row))]
    if not speedups:
        return
    mean = math.exp(sum(map(math.log, speedups)) / len(speedups))
    faster = sum(speedup > 1 for speedup in speedups) / len(speedups)
    print(
        f"{title}: {len(speedups)} layers, geometric mean {mean:.2f}x, "
        f"{100 * faster:.1f} % faster, {min(speedups):.2f}x to {max(speedups):.2f}x"
    )


def _instances(row: Row) -> int:
    return sum(row["counts"].values())


def _speedup(row: Row, side: str) -> float:
    return row["seconds"][side] / row["seconds"]["ours"]


def _total_speedup(rows: Iterable[Row], model: str, side: str) -> float:
    """Return the speedup of all convolutions of a model together."""
    rows = list(rows)
    total = {
        name: sum(row["counts"][model] * row["seconds"][name] for row in rows)
        for name in (side, "ours")
    }
    return total[side] / total["ours"]
