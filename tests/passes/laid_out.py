"""Modules behind the layout pass: layouts of their convolutions, and the transforms in them."""

from __future__ import annotations

import tvm
from relax_graphs import calls
from tvm import relax

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.passes.lower import lower
from tvm_blislike.passes.plan import plan_of, read_note
from tvm_blislike.passes.schedule import note_in
from tvm_blislike.tvm_seams import static_shape

# Structure is checked for 16 lanes, whatever machine the tests run on.
# Without the convolution that reads and writes NCHW: it would win for the small images here.
STRATEGY = Strategy(
    Core.named("skylake-avx512"), threads=1, constraints=Constraints(without=("conv2d_im2col",))
)
BLOCKED = "NCHW16c"
MOVES = ("layout_transform", "permute_dims", "reshape")


def laid_out(mod: tvm.IRModule) -> tvm.IRModule:
    mod = Canonicalize(STRATEGY.core)(mod)
    return lower(mod, plan_of(mod, STRATEGY))


def layouts(mod: tvm.IRModule) -> list[tuple[str, str]]:
    """Layouts of input and output of each convolution."""
    functions = (mod[call.args[0]] for call in calls(mod, "call_tir"))
    notes = (note_in(func) for func in functions)
    configs = (read_note(note)[1] for note in notes if note is not None)
    return [(config.data_layout, config.out_layout) for config in configs]


def moves(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    """Shape of the result of each transform."""
    return [static_shape(call) for call in calls(mod, *MOVES)]


def result_shapes(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    body = mod["main"].body.body
    fields = list(body.ty.fields) if isinstance(body.ty, relax.TupleType) else [body.ty]
    return [tuple(int(e) for e in field.shape) for field in fields]
