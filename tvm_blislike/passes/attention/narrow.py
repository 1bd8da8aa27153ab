"""Attentions whose products are computed in 16 bits, where the user allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import tvm
from tvm import relax

from tvm_blislike.choose.precision_choice import factors_of
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.attention import Attention
from tvm_blislike.passes.attention.functions import attention_of, function_of
from tvm_blislike.passes.whole_error import ROUNDING
from tvm_blislike.tvm_seams import bindings, static_shape


def narrow_attentions(
    mod: tvm.IRModule, func: relax.Function, strategy: Strategy
) -> dict[relax.Var, Attention]:
    """Return the attentions of a function that may change, with their factors in 16 bits."""
    found = {}
    for binding in bindings(func):
        attention = attention_of(mod, binding.value)
        if attention is None or attention.factors != "float32":
            continue
        factors = factors_of(strategy, attention)
        if factors != attention.factors:
            found[binding.var] = replace(attention, factors=factors)
    return found


def attention_error(attention: Attention) -> float:
    """Return the error of an attention's result, relative to it, by rounding what is multiplied.

    That of values and that of their weights.
    """
    return math.sqrt(2) * ROUNDING[attention.factors]


class NarrowAttentions:
    """Makes calls of kernels in 16 bits in place of others; equal kernels are one function.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Gets the functions.
    strategy : Strategy
        Knows core and threads.
    """

    def __init__(self, builder: relax.BlockBuilder, strategy: Strategy) -> None:
        self.builder, self.strategy = builder, strategy
        self.made: dict[object, tvm.ir.GlobalVar] = {}

    def call(
        self, attention: Attention, operands: Sequence[relax.Expr], before: relax.Call
    ) -> relax.Call:
        """Return the call of the kernel of an attention with the operands of another call."""
        shapes, result = tuple(map(static_shape, operands)), static_shape(before)
        key = (attention, shapes, result)
        if key not in self.made:
            core, threads = self.strategy.core, self.strategy.threads
            note = f"error {attention_error(attention):.1e}"
            func = function_of(attention, shapes, result, core, threads, note)
            self.made[key] = self.builder.add_func(func, "attention")
        result_type = relax.TensorType(result, "float32")
        return relax.call_tir(self.made[key], list(operands), result_type)
