"""Which weights are stored in fewer bytes: those of layers that memory bounds."""

from __future__ import annotations

import math
from dataclasses import replace

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.transforms import transform_seconds
from tvm_blislike.model.types import BYTES, STORED, Types
from tvm_blislike.model.workload import Workload

# Share of its time in fp32 that a layer may take at most with weights in fewer bytes: predictions
# are no better than that, and rounding should gain something.
WORTH = 0.95
# Bytes that a number of fp32 becomes where weights of 8 bits are multiplied as integers
# (`passes.fixed_point`): as many as fp32 has of its own behind the exponent.
DIGITS = 3


def why_whole(strategy: Strategy, layer: Workload, types: Types) -> str:
    """Return why a layer keeps its weights as they are, "" where storing them in fewer bytes pays.

    Parameters
    ----------
    strategy : Strategy
        Predicts both.
    layer : Workload
        In fp32, or in integers whose weights have 16 bits.
    types : Types
        The types of its product with weights in fewer bytes; data of another type than the layer's
        are converted.
    """
    stored = strategy.choose(replace(layer, types=types))
    if stored.config is None:
        return stored.reason
    whole = strategy.choose(layer)
    moving = 0.0
    if types.a != layer.types.a:
        data = math.prod(next(iter(layer.operands.values())))
        moving = transform_seconds(data, strategy.core, strategy.threads, types.a)
    if whole.config is None or stored.seconds + moving < WORTH * whole.seconds:
        return ""
    each = ((types.b, stored), (layer.types.b, whole))
    ways = ", ".join(f"{1e3 * choice.seconds:.3g} ms in {name}" for name, choice in each)
    return f"memory does not bound it: {ways}"


def in_digits(layer: Workload) -> Workload:
    """Return the product of integers that computes a matrix product of fp32 by weights of int8."""
    return replace(layer, m=DIGITS * layer.m, types=BYTES)


def multiplies_digits(strategy: Strategy, layer: Workload, dtype: str) -> bool:
    """Whether a layer with weights in fewer bytes multiplies them as integers, as they are stored.

    That is three products of bytes instead of a conversion and one of fp32, and two small kernels.

    Parameters
    ----------
    strategy : Strategy
        Predicts both.
    layer : Workload
        In fp32.
    dtype : str
        Storage type of the weights.
    """
    if dtype != STORED["int8"] or layer.images or layer.batch > 1:
        return False
    digits = strategy.choose(in_digits(layer))
    converted = strategy.choose(replace(layer, types=Types.stored(dtype)))
    if digits.config is None or converted.config is None:
        return False
    core, threads = strategy.core, strategy.threads
    data, result = layer.m * layer.k, DIGITS * layer.m * layer.n
    # Reading rows twice, for the largest and for bytes; then sums.
    around = 2 * transform_seconds(data, core, threads) + transform_seconds(result, core, threads)
    return digits.seconds + around < converted.seconds
