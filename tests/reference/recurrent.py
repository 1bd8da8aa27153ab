"""LSTM, GRU and RNN, one step and one row at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Function = Callable[[np.ndarray], np.ndarray]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

FUNCTIONS: dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "Affine": lambda x, a, b: a * x + b,
    "Elu": lambda x, a, _: np.where(x < 0, a * np.expm1(x), x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "LeakyRelu": lambda x, a, _: np.where(x < 0, a * x, x),
    "Relu": lambda x, *_: np.maximum(x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "Sigmoid": lambda x, *_: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x, *_: np.logaddexp(x, 0),
    "Softsign": lambda x, *_: x / (1 + np.abs(x)),
    "Tanh": lambda x, *_: np.tanh(x),
    "ThresholdedRelu": lambda x, a, _: np.where(x > a, x, 0),
}


def recurrent(
    kind: str,
    operands: Mapping[str, np.ndarray],
    functions: Sequence[Sequence[Function]],
    reverse: Sequence[bool],
    **settings: Any,
) -> list[np.ndarray]:
    """Return the results of the ONNX operators LSTM, GRU and RNN.

    Parameters
    ----------
    kind : str
        "LSTM", "GRU" or "RNN".
    operands : mapping of str to array
        "x", "w", "r" and any of "bias", "lengths", "h", "c", "peepholes", shaped as in ONNX.
    functions : sequence
        Of each direction its functions.
    reverse : sequence of bool
        Of each direction whether it begins with the last step.
    **settings
        Attributes of ONNX: clip, linear_before_reset, input_forget, layout.
    """
    x, r = (np.asarray(operands[name], np.float64) for name in "xr")
    by_batch = bool(settings.get("layout"))
    x = x.swapaxes(0, 1) if by_batch else x
    steps, batch, hidden, directions = *x.shape[:2], r.shape[-1], len(reverse)
    states = {name: _state(operands.get(name), by_batch) for name in "hc"}
    lengths = operands.get("lengths", np.full(batch, steps))
    y = np.zeros((steps, directions, batch, hidden))
    last = np.zeros((2, directions, batch, hidden))
    for d in range(directions):
        one = {name: np.asarray(operands[name], np.float64)[d] for name in _of_directions(operands)}
        for row in range(batch):
            h, c = (np.zeros(hidden) if s is None else s[d, row] for s in states.values())
            order = range(lengths[row])
            for t in reversed(order) if reverse[d] else order:
                h, c = _STEPS[kind](x[t, row], h, c, one, functions[d], settings)
                y[t, d, row] = h
            if lengths[row]:
                last[:, d, row] = h, c
    results = [y, *last[: 2 if kind == "LSTM" else 1]]
    return (
        [y.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in results[1:])] if by_batch else results
    )


def _of_directions(operands: Mapping[str, np.ndarray]) -> list[str]:
    return [name for name in ("w", "r", "bias", "peepholes") if name in operands]


def _state(given: np.ndarray | None, by_batch: bool) -> np.ndarray | None:
    if given is None:
        return None
    state = np.asarray(given, np.float64)
    return state.swapaxes(0, 1) if by_batch else state


def _products(
    x: np.ndarray, h: np.ndarray, one: Mapping[str, np.ndarray], gates: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return, gate by gate, inputs and states by their weights, each with its bias."""
    of_x, of_h = one["w"] @ x, one["r"] @ h
    if "bias" in one:
        bias_x, bias_h = np.split(one["bias"], 2)
        of_x, of_h = of_x + bias_x, of_h + bias_h
    return np.split(of_x, gates), np.split(of_h, gates)


def _clip(x: np.ndarray, settings: Mapping[str, Any]) -> np.ndarray:
    limit = settings.get("clip")
    return np.clip(x, -limit, limit) if limit else x


def _lstm(x: Any, h: Any, c: Any, one: Any, functions: Any, settings: Any) -> tuple[Any, Any]:
    f, g, of_cell = functions
    of_x, of_h = _products(x, h, one, 4)
    i, o, forget, cell = (a + b for a, b in zip(of_x, of_h, strict=True))
    zeros = np.zeros(3 * len(h))
    peep_i, peep_o, peep_f = np.split(one.get("peepholes", zeros), 3)
    i = f(_clip(i + peep_i * c, settings))
    forget = 1 - i if settings.get("input_forget") else f(_clip(forget + peep_f * c, settings))
    c = forget * c + i * g(_clip(cell, settings))
    o = f(_clip(o + peep_o * c, settings))
    return o * of_cell(c), c


def _gru(x: Any, h: Any, c: Any, one: Any, functions: Any, settings: Any) -> tuple[Any, Any]:
    f, g = functions
    of_x, of_h = _products(x, h, one, 3)
    z, r = (f(_clip(a + b, settings)) for a, b in zip(of_x[:2], of_h[:2], strict=True))
    of_state = (
        r * of_h[2] if settings.get("linear_before_reset") else _products(x, r * h, one, 3)[1][2]
    )
    return (1 - z) * g(_clip(of_x[2] + of_state, settings)) + z * h, c


def _rnn(x: Any, h: Any, c: Any, one: Any, functions: Any, settings: Any) -> tuple[Any, Any]:
    (of_x,), (of_h,) = _products(x, h, one, 1)
    return functions[0](_clip(of_x + of_h, settings)), c


_STEPS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
