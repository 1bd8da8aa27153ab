"""Kernels are told between which numbers the constants lie that they are given.

Behind fusion constants are arguments: a kernel has no look at the scales of its channels, and many
layers share one. What is known of all its calls lets lowering choose code that is exact for such
numbers only (`schedules.lowering.ranges`).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_blislike.model.marks import RANGES
from tvm_blislike.tvm_seams import bindings, constant_array, functions, is_constant, op_name

# What a call is given: constants, and None for what is known at run time only.
Given = Sequence[np.ndarray | None]
_Range = tuple[float, float]


@tvm.transform.module_pass(opt_level=0, name="blislike.ConstantRanges")
def constant_ranges(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Say in each PrimFunc between which numbers its constants lie."""
    result = mod.clone()
    for gvar, calls in _calls(mod).items():
        if isinstance(mod[gvar], tirx.PrimFunc):
            result.update_func(gvar, with_ranges(mod[gvar], calls))
    return result


def with_ranges(func: tirx.PrimFunc, calls: Sequence[Given]) -> tirx.PrimFunc:
    """Return a PrimFunc that says between which numbers its constants of float32 lie.

    Only of those that are constants in all calls, and finite.

    Parameters
    ----------
    func : PrimFunc
        Its first parameters are what it is given.
    calls : sequence of Given
        All that there are.
    """
    names = [str(param.name) for param in func.params]
    ends = [[_ends(array) for array in given] for given in calls]
    found: dict[str, list[float]] = {}
    for name, of_calls in zip(names, itertools.zip_longest(*ends), strict=False):
        if None not in of_calls and names.count(name) == 1:
            lows, highs = zip(*of_calls, strict=True)
            found[name] = [min(lows), max(highs)]
    return func.with_attr(RANGES, found) if found else func


def _calls(mod: tvm.IRModule) -> dict[tvm.ir.GlobalVar, list[Given]]:
    """Return what each call is given, by what is called."""
    calls: dict[tvm.ir.GlobalVar, list[Given]] = defaultdict(list)
    for _, func in functions(mod):
        for value in (binding.value for binding in bindings(func)):
            operands = value.args if isinstance(value, relax.Call) else []
            for gvar in (arg for arg in operands if isinstance(arg, tvm.ir.GlobalVar)):
                calls[gvar].append(_given(value))
    return calls


def _given(call: relax.Call) -> Given:
    """Return what a call of a PrimFunc is given; nothing is known of calls by other operators."""
    if op_name(call) != "relax.call_tir":
        return []
    return [constant_array(arg) if is_constant(arg) else None for arg in call.args[1].fields]


def _ends(array: np.ndarray | None) -> _Range | None:
    """Return the ends of an array of finite float32, None for anything else."""
    if array is None or array.dtype != np.float32 or not array.size:
        return None
    return (float(array.min()), float(array.max())) if np.isfinite(array).all() else None
