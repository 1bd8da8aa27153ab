"""LSTM, GRU and RNN: calls of an operator of Relax (`operators.recurrent`).

ONNX, LSTM-22, GRU-22 and RNN-22; where it leaves something open, as ONNX Runtime has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm import relax

from tvm_blislike.model.recurrent import OPTIONAL, Activation, Cell
from tvm_blislike.operators.recurrent import recurrent
from tvm_blislike.tvm_seams import static_shape
from tvm_blislike.tvm_seams.importer import Convert

# The functions of a cell where the node names none.
USUAL = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
# Functions with numbers, and the numbers where the node gives none: None where a function has none,
# NaN where it must give one. ONNX gives no defaults for the latter, or others than ONNX Runtime.
NUMBERS: Mapping[str, tuple[float | None, float | None]] = {
    "affine": (math.nan, math.nan),
    "elu": (1.0, None),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, None),
    "relu": (None, None),
    "scaledtanh": (math.nan, math.nan),
    "sigmoid": (None, None),
    "softplus": (None, None),
    "softsign": (None, None),
    "tanh": (None, None),
    "thresholdedrelu": (math.nan, None),
}


def converter(kind: str) -> Convert:
    """Return what converts nodes of a kind, "LSTM", "GRU" or "RNN"."""

    def convert(
        builder: relax.BlockBuilder,
        operands: Sequence[relax.Expr | None],
        settings: Mapping[str, Any],
    ) -> relax.Expr:
        data, weights, recurrents, *more = operands
        given = dict(zip(_places(kind), more, strict=False))
        present = [name for name in OPTIONAL if given.get(name) is not None]
        cell = _cell(kind, static_shape(recurrents)[-1], settings, tuple(present))
        rest = [given[name] for name in present]
        return builder.emit(recurrent(cell, [data, weights, recurrents, *rest]))

    return convert


def _places(kind: str) -> tuple[str, ...]:
    return OPTIONAL if kind == "LSTM" else OPTIONAL[:3]


def _cell(kind: str, hidden: int, settings: Mapping[str, Any], operands: tuple[str, ...]) -> Cell:
    reverse = DIRECTIONS[text(settings.get("direction", "forward"))]
    named = activations(kind, settings)
    return Cell(
        kind,
        hidden,
        reverse,
        named * (len(reverse) // len(named)),
        float(settings.get("clip", 0.0)),
        bool(settings.get("linear_before_reset", 0)),
        bool(settings.get("input_forget", 0)),
        bool(settings.get("layout", 0)),
        operands,
    )


def activations(kind: str, settings: Mapping[str, Any]) -> tuple[tuple[Activation, ...], ...]:
    """Return the functions of each direction; of one where the node names none.

    Those with numbers take the next ones of the lists, as long as there are any.
    """
    names = [text(name).lower() for name in settings.get("activations", ())]
    names = names or [name.lower() for name in USUAL[kind]]
    alphas, betas = (iter(settings.get(f"activation_{which}", ())) for which in ("alpha", "beta"))
    found = [Activation(name, *_numbers(name, alphas, betas)) for name in names]
    each = len(USUAL[kind])
    return tuple(tuple(found[first : first + each]) for first in range(0, len(found), each))


def _numbers(name: str, alphas: Iterator[float], betas: Iterator[float]) -> tuple[float, float]:
    alpha, beta = NUMBERS[name]
    return (
        0.0 if alpha is None else float(next(alphas, alpha)),
        0.0 if beta is None else float(next(betas, beta)),
    )


def text(value: str | bytes) -> str:
    """Return an attribute's text."""
    return value.decode() if isinstance(value, bytes) else value


CONVERTERS: Mapping[str, Convert] = {kind: converter(kind) for kind in USUAL}
