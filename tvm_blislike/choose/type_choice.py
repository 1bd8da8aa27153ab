"""In which types a quantized layer is computed: integers, or fp32 between its neighbours' bytes.

fp32 has algorithms that integers lack (Winograd's), and some cores multiply bytes hardly faster.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.roofline import peak_seconds
from tvm_blislike.cost_models.transforms import transform_seconds
from tvm_blislike.hardware import Core
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Workload

# No algorithm of fp32 saves more than this in multiply-adds, with what it needs besides.
_MOST_SAVED = 4.0


def may_gain(core: Core, layer: Workload, types: Types) -> bool:
    """Whether any algorithm of fp32 could make up for what integers of these types gain."""
    in_floats = peak_seconds(layer, core, 1)
    in_integers = peak_seconds(replace(layer, types=types), core, 1)
    return bool(layer.images) and in_floats < _MOST_SAVED * in_integers


def why_floats(strategy: Strategy, layer: Workload, types: Types) -> str:
    """Return why a quantized layer is computed in fp32, "" where it is in integers.

    Parameters
    ----------
    strategy : Strategy
        Predicts both; where it has no kernel for one of them, integers stay integers.
    layer : Workload
        In fp32.
    types : Types
        Of the integers.
    """
    if not may_gain(strategy.core, layer, types):
        return ""
    core, threads, integers = strategy.core, strategy.threads, replace(layer, types=types)
    in_floats, in_integers = strategy.choose(layer).estimate, strategy.choose(integers).estimate
    if in_floats is None or in_integers is None:
        return ""
    data, result = map(math.prod, layer.images)
    # Its data as floats, in the layout of its own; its result in that of the neighbours.
    moving = transform_seconds(data, core, threads)
    moving += transform_seconds(result, core, threads, types.a)
    faster = in_floats.seconds + moving < in_integers.seconds
    return "fp32 is predicted to be faster, conversions included" if faster else ""
