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
# What rows of fp32 are split into, by the type of the weights that they multiply: how many rows
# each becomes, and the types of the product. Bytes of a fixed point (`passes.fixed_point`), and
# bfloat16 with what rounding to it takes away (`passes.brain_parts`).
SPLITS = {
    STORED["int8"]: (3, BYTES),
    **{STORED[name]: (2, Types.brain_by(STORED[name])) for name in ("fp8", "fp8_e5m2")},
}


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


def split(layer: Workload, dtype: str) -> Workload:
    """Return the product that computes one of fp32 by weights of a type of `SPLITS`."""
    parts, types = SPLITS[dtype]
    return replace(layer, m=parts * layer.m, types=types)


def splits_rows(strategy: Strategy, layer: Workload, dtype: str) -> bool:
    """Whether a layer with weights in fewer bytes multiplies them by rows that are split.

    That takes more products and two small kernels, but makes no fp32 of the weights.

    Parameters
    ----------
    strategy : Strategy
        Predicts both.
    layer : Workload
        In fp32.
    dtype : str
        Storage type of the weights.
    """
    if dtype not in SPLITS or layer.images or layer.batch > 1:
        return False
    product = split(layer, dtype)
    found = strategy.choose(product)
    converted = strategy.choose(replace(layer, types=Types.stored(dtype)))
    if found.config is None or converted.config is None:
        return False
    core, threads = strategy.core, strategy.threads
    data, sums = layer.m * layer.k, product.m * layer.n
    # Reading rows twice, for the largest and for the parts; then sums.
    around = 2 * transform_seconds(data, core, threads) + transform_seconds(sums, core, threads)
    return found.seconds + around < converted.seconds
