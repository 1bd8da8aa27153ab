"""What models of open lengths and of open images share: the way to kernels, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import tvm

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.errors import SizesMeetError
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.variant import MAIN
from tvm_blislike.passes.plan import Plan
from tvm_blislike.schedules import all_implementations
from tvm_blislike.tvm_seams import functions

# From an imported module to its plan, and to fused kernels, reshapes of which are views.
Choose = Callable[[tvm.IRModule, Strategy], Plan]
Fuse = Callable[[tvm.IRModule, Strategy], tuple[tvm.IRModule, Plan]]


def require_straight(mod: tvm.IRModule) -> None:
    """Raise SizesMeetError unless a module is one function, which goes straight through."""
    names = [g.name_hint for g, _ in functions(mod)]
    if names != [MAIN] or len(mod[MAIN].body.blocks) != 1:
        raise SizesMeetError("the model has branches, loops or functions")


def allowing(strategy: Strategy, may: Callable[[Implementation], bool]) -> Strategy:
    """Return the strategy for many sizes, with the implementations that may serve them.

    Of each kind of implementation that some may of, those that may.
    A kind of which none may is left as it is: a layer of it is refused when it is met.
    """
    every = all_implementations()
    kinds = {each.kind for each in every if may(each)}
    out = (i.name for i in every if i.kind in kinds and not may(i))
    return replace(strategy.leaving_out(out), is_for_many=True)


def are_same(arrays: Iterable[np.ndarray]) -> bool:
    """Whether arrays hold the same numbers, those that are none at the same places."""
    first, *others = arrays
    equal_nan = first.dtype.kind == "f"
    return all(np.array_equal(first, other, equal_nan=equal_nan) for other in others)
