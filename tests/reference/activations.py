"""Elementwise functions of arrays of any shape."""

from __future__ import annotations

import numpy as np


def clip(x: np.ndarray, low: float = -np.inf, high: float = np.inf) -> np.ndarray:
    """Return min(max(x, low), high); ReLU6 is clip(x, 0, 6)."""
    return np.minimum(np.maximum(np.asarray(x, np.float64), low), high)


def relu(x: np.ndarray) -> np.ndarray:
    """Return max(x, 0)."""
    return clip(x, 0.0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)), written so that no exponential overflows."""
    return 0.5 * (1.0 + np.tanh(0.5 * np.asarray(x, np.float64)))


def silu(x: np.ndarray) -> np.ndarray:
    """Return x * sigmoid(x)."""
    return np.asarray(x, np.float64) * sigmoid(x)


def hard_sigmoid(x: np.ndarray, alpha: float = 1 / 6, beta: float = 0.5) -> np.ndarray:
    """Return clip(alpha * x + beta, 0, 1)."""
    return clip(alpha * np.asarray(x, np.float64) + beta, 0.0, 1.0)


def hard_swish(x: np.ndarray) -> np.ndarray:
    """Return x * clip(x / 6 + 1 / 2, 0, 1)."""
    return np.asarray(x, np.float64) * hard_sigmoid(x)
