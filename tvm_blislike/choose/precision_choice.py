"""In which types a layer of fp32 is computed where the user allows fewer bits than fp32 has.

Types of 16 bits have products that cores start several times as often, but not all algorithms:
Winograd's convolutions are fp32. So both are predicted, and what the user asks for decides.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.data_types import missing_types
from tvm_blislike.cost_models.roofline import clock_hz
from tvm_blislike.hardware import Core
from tvm_blislike.model.types import PRECISIONS, Types
from tvm_blislike.model.workload import Workload

# Errors of a sum relative to its largest, by the type of its factors: half a unit in the last place
# of each of two factors.
ERRORS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
# Share of its time in fp32 that a layer may take at most in `fast`: its neighbours may have to
# convert, and rounding should gain something.
WORTH = 0.95


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


def _is_within(limit: float | None, types: Types) -> bool:
    return limit is None or ERRORS[types.a] <= limit


def _rounding_seconds(strategy: Strategy, layer: Workload) -> float:
    """Return the time of rounding the data of a layer, a part of the kernel in front of it."""
    elements = math.prod(next(iter(layer.operands.values())))
    core, threads = strategy.core, strategy.threads
    cycles = elements / threads / core.lanes("float32")
    return cycles / clock_hz(core)
