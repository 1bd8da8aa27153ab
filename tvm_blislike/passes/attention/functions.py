"""Kernels of attention as functions of a module, and what such a function says of itself."""

from __future__ import annotations

import json
from collections.abc import Sequence

import tvm
from tvm import relax, tirx

from tvm_blislike.cost_models.attention.blocks import blocks_of
from tvm_blislike.hardware import Core
from tvm_blislike.model.attention import Attention
from tvm_blislike.model.marks import ATTENTION, DEFAULT_RULE, REGISTER_BYTES
from tvm_blislike.schedules.attention.kernel import kernel
from tvm_blislike.tvm_seams import op_name
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED, NEVER_FUSED

# Of the operands of such a function: Q, K, V, masks.
VALUES = 2


def function_of(
    attention: Attention,
    operands: Sequence[tuple[int, ...]],
    result: tuple[int, ...],
    core: Core,
    threads: int,
    note: str = "",
) -> tirx.PrimFunc:
    """Return the kernel of an attention.

    Parameters
    ----------
    operands : sequence of tuple of int
        Shapes of the tensors that its views are of.
    result : tuple of int
        Shape of the result.
    note : str
        What else `explain` says of it.
    """
    blocks = blocks_of(attention, core, threads)
    func = kernel(attention, operands, result, blocks, threads)
    notes = {
        DEFAULT_RULE: "; ".join(filter(None, (str(attention), str(blocks), note))),
        REGISTER_BYTES: core.vector_registers * core.vector_bits // 8,
        ATTENTION: attention.to_json(),
    }
    func = func.without_attr("global_symbol")
    return func.with_attr({**notes, **IS_SCHEDULED, **NEVER_FUSED})


def attention_of(mod: tvm.IRModule, value: relax.Expr) -> Attention | None:
    """Return the attention that a call of a kernel computes, None for anything else."""
    if op_name(value) != "relax.call_tir":
        return None
    attributes = mod[value.args[0]].attrs or {}
    return (
        Attention.from_data(json.loads(attributes[ATTENTION])) if ATTENTION in attributes else None
    )
