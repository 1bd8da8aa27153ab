"""Scales, shifts and bounds behind sums of signs, up to the next comparison: a threshold of counts.

A sum of signs is one of few integers, so what operators make of each of them is computed here,
channel by channel, in float32 as the graph says. Where the next comparison holds from one of
them on and not before, or the other way around, it is one with that integer: exact, with all
rounding of the operators in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from tvm_blislike.tvm_seams import constant_array, dtype_name, is_constant, op_name, static_shape

_OF_TWO: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
}
_HOLDS = {"below": np.less, "up_to": np.less_equal, "from": np.greater_equal, "above": np.greater}
# Numbers that are tried at a time.
_MOST_NUMBERS = 1 << 24


@dataclass(frozen=True)
class Chain:
    """Numbers that follow from counts of a layer.

    Parameters
    ----------
    counts : relax.Var
        What the layer counts, int32.
    start : numpy.ndarray
        int64: a sum is start - step * count; broadcasts against the result.
    step : int
        2, or 1 for signs that may be 0.
    most : int
        The largest magnitude of a sum.
    channels, axis : int
        Of the result.
    functions : tuple of callable
        float32 (sums, channels) to the same, first to last.
    """

    counts: relax.Var
    start: np.ndarray
    step: int
    most: int
    channels: int
    axis: int
    functions: tuple[Callable[[np.ndarray], np.ndarray], ...] = ()

    def then(self, function: Callable[[np.ndarray], np.ndarray]) -> Chain:
        """Return the chain with another function."""
        return replace(self, functions=(*self.functions, function))

    def along(self, array: np.ndarray, rank: int) -> np.ndarray | None:
        """Return numbers of the channels, or one; None for a constant of anything else."""
        if array.size == 1:
            return array.reshape(())
        axis = self.axis - rank + array.ndim
        if axis < 0 or array.size != self.channels or array.shape[axis] != array.size:
            return None
        return array.reshape(-1)


def continued(call: relax.Call, chain: Chain) -> Chain | None:
    """Return the chain with an operator on it and a constant, None for any other operator."""
    name, shape = op_name(call), static_shape(call)
    if dtype_name(call) != "float32" or shape is None:
        return None
    if name == "relax.nn.relu":
        return chain.then(lambda x: np.maximum(x, np.float32(0)))
    if name == "relax.negative":
        return chain.then(np.negative)
    if name == "relax.clip":
        low, high = (np.float32(arg.value) for arg in call.args[1:])
        return chain.then(lambda x: np.clip(x, low, high))
    if name not in _OF_TWO:
        return None
    function, (left, right) = _OF_TWO[name], call.args
    is_first = is_constant(right)
    given = right if is_first else left
    other = chain.along(constant_array(given), len(shape)) if is_constant(given) else None
    if other is None or len(static_shape(given)) > len(shape) or other.dtype != np.float32:
        return None
    if is_first:
        return chain.then(lambda x: function(x, other))
    return chain.then(lambda x: function(other, x))


def values(chain: Chain) -> tuple[np.ndarray, np.ndarray] | None:
    """Return all sums that there may be, ascending, and the numbers (sums, channels) of them.

    None where these are too many to try.
    """
    every = np.arange(-chain.most, chain.most + 1)
    met = np.isin(every % chain.step, np.unique(chain.start % chain.step))
    sums = every[met]
    if len(sums) * chain.channels > _MOST_NUMBERS:
        return None
    made = np.broadcast_to(sums.astype(np.float32)[:, None], (len(sums), chain.channels))
    with np.errstate(all="ignore"):
        for function in chain.functions:
            made = function(made)
    return sums, made


def may_equal(chain: Chain, other: np.ndarray, rank: int) -> bool:
    """Whether one of the numbers may be equal to a constant that they are compared with."""
    known, tried = chain.along(other, rank), values(chain)
    return known is None or tried is None or bool(np.any(tried[1] == known))


@dataclass(frozen=True)
class Threshold:
    """A comparison of counts that says the same as one of the numbers that follow from them.

    Parameters
    ----------
    factor : numpy.ndarray
        int32, 1 or -1 by channel.
    most : numpy.ndarray
        int32: the comparison holds where factor * count is up to this; broadcasts to the result.
    """

    factor: np.ndarray
    most: np.ndarray


def threshold(chain: Chain, comparison: str, other: np.ndarray, rank: int) -> Threshold | None:
    """Return a comparison of numbers with a constant as one of counts.

    Parameters
    ----------
    comparison : str
        A name of `operators.COMPARISONS`.
    other : numpy.ndarray
        float32, the constant.
    rank : int
        Axes of the result.

    Returns
    -------
    Threshold or None
        None where the comparison changes more than once from the least sum to the largest.
    """
    known, tried = chain.along(other, rank), values(chain)
    if known is None or tried is None:
        return None
    sums, made = tried
    holds = _HOLDS[comparison](made, known)
    changes = np.diff(holds.astype(np.int8), axis=0)
    rises, falls = np.all(changes >= 0, axis=0), np.all(changes <= 0, axis=0)
    if not np.all(rises | falls):
        return None
    # The first sum on the other side of the change, which may be beyond the last one.
    below = np.where(rises, ~holds, holds).sum(0)
    first = np.append(sums, sums[-1] + chain.step)[below]
    along = [1] * rank
    along[chain.axis] = -1
    first, rises = first.reshape(along), rises.reshape(along)
    # Of sums from `first` on, counts up to this; of those below it, counts beyond it.
    most = (chain.start - first) // chain.step
    return Threshold(
        np.where(rises, 1, -1).astype(np.int32), np.where(rises, most, -most - 1).astype(np.int32)
    )
