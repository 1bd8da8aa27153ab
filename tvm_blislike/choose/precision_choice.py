"""In which types a layer of fp32 is computed where the user allows fewer bits than fp32 has.

Types of 16 bits have products that cores start several times as often, but not all algorithms:
Winograd's convolutions are fp32. So both are predicted, and what the user asks for decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.attention.blocks import able_kernels, blocks_of, seconds
from tvm_blislike.cost_models.data_types import missing_types
from tvm_blislike.cost_models.roofline import clock_hz
from tvm_blislike.cost_models.transforms import transform_seconds
from tvm_blislike.hardware import Core
from tvm_blislike.model.attention import Attention
from tvm_blislike.model.types import PRECISIONS, Types
from tvm_blislike.model.workload import GemmWorkload, Workload

# Errors of a sum relative to its largest, by the type of its factors: half a unit in the last place
# of each of two factors.
ERRORS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
# Relative root mean square errors of a whole model above which it is worth time to have less.
WHOLE_ERRORS = {"bfloat16": 6e-3, "float16": 2e-3}
# Share of its time in fp32 that a layer may take at most in `fast`: its neighbours may have to
# convert, and rounding should gain something.
WORTH = 0.95
# Share of the time of the layers that read a tensor in 16 bits which fp32 beside it may take: what
# is added up again and again keeps every rounding, those of a product come in once.
TERMS = 0.04
# Share of its time that a product may take at most to add back what its weights lost of a mean row.
ADDED = 0.1


def offered(core: Core, precision: str) -> tuple[Types, ...]:
    """Return the types that a precision allows beside fp32, of those that a core multiplies."""
    return tuple(types for types in PRECISIONS[precision] if not missing_types(types, core))


def types_of(strategy: Strategy, layer: Workload) -> tuple[Types, str]:
    """Return the types in which a layer is to be computed, and why they are those of fp32.

    Parameters
    ----------
    strategy : Strategy
        Predicts the times, and knows what the user asks for.
    layer : Workload
        In fp32.

    Returns
    -------
    tuple
        Types, its own where it stays as it is; then the reason, else "".
    """
    limits, core = strategy.constraints, strategy.core
    found = offered(core, limits.precision)
    if not found:
        return layer.types, f"{core.name} has no products of {limits.precision}"
    exact = [types for types in found if _is_within(limits.max_error, types)]
    if not exact:
        return layer.types, "errors above the limit"
    choices = [strategy.choose(replace(layer, types=types)) for types in exact]
    able = [choice for choice in choices if choice.config is not None]
    if not able:
        return layer.types, choices[0].reason
    best = min(able, key=lambda choice: choice.seconds)
    whole = strategy.choose(layer)
    if limits.precision != "fast" or whole.config is None:
        return best.workload.types, ""
    narrow = best.seconds + _rounding_seconds(strategy, layer)
    if narrow < WORTH * whole.seconds:
        return best.workload.types, ""
    ways = f"{1e3 * narrow:.3g} ms in {best.workload.types.a}, {1e3 * whole.seconds:.3g} in float32"
    return layer.types, f"fp32 is predicted to be as fast: {ways}"


def factors_of(strategy: Strategy, attention: Attention) -> str:
    """Return the data type of the factors of an attention's products: its own, or one of 16 bits.

    Parameters
    ----------
    strategy : Strategy
        Predicts the times, and knows what the user asks for.
    attention : Attention
        In fp32.
    """
    limits, core, threads = strategy.constraints, strategy.core, strategy.threads

    def seconds_of(one: Attention) -> float:
        return seconds(one, blocks_of(one, core, threads), core, threads)

    for types in offered(core, limits.precision):
        narrow = replace(attention, factors=types.a)
        # Sums of products and the softmax are fp32.
        if narrow.types != types or not _is_within(limits.max_error, types):
            continue
        able = able_kernels(narrow, core)
        if able and seconds_of(narrow) < WORTH * seconds_of(attention):
            return narrow.factors
    return attention.factors


def keeps_terms(strategy: Strategy, shape: Iterable[int], readers: Sequence[Workload]) -> bool:
    """Whether what is added to a tensor that layers read in 16 bits is added to it in fp32.

    Then the tensor goes through memory in both, and rounding it is a kernel of its own. Residual
    terms of BERT-base in bfloat16 are an error of 3e-3 by themselves; fp32 beside them takes a two
    hundredth of the products' time. Not so images: rounding is a part of the layer in front, which
    writes the layout of the next one.

    Parameters
    ----------
    strategy : Strategy
        Predicts the times.
    shape : iterable of int
        Of the tensor.
    readers : sequence of Workload
        The layers, in 16 bits.
    """
    if any(layer.images for layer in readers):
        return False
    moving = transform_seconds(math.prod(shape), strategy.core, strategy.threads)
    return moving <= TERMS * sum(strategy.choose(layer).seconds for layer in readers)


def adds_back(strategy: Strategy, layer: Workload, stored: Types) -> bool:
    """Whether a product in 16 bits may add back what its weights lost of a mean row.

    That is one row by as many weights, so it pays beside many rows only.

    Parameters
    ----------
    strategy : Strategy
        Predicts the times.
    layer : Workload
        In 16 bits.
    stored : Types
        Of the product of the mean row.
    """
    if layer.images:
        return False
    k, n = layer.operands["b"][-2:]
    row = strategy.choose(GemmWorkload(1, n, k, types=stored))
    whole = strategy.choose(layer)
    known = row.config is not None and whole.config is not None
    return known and row.seconds <= ADDED * whole.seconds


def _is_within(limit: float | None, types: Types) -> bool:
    return limit is None or ERRORS[types.a] <= limit


def _rounding_seconds(strategy: Strategy, layer: Workload) -> float:
    """Return the time of rounding the data of a layer, a part of the kernel in front of it."""
    elements = math.prod(next(iter(layer.operands.values())))
    core, threads = strategy.core, strategy.threads
    cycles = elements / threads / core.lanes("float32")
    return cycles / clock_hz(core)
