"""The TensorIntrin of a micro-kernel: plain semantics for `Schedule.tensorize`, and vector code."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.operands import Operand, Update
from tvm_blislike.microkernels.products import multiplied
from tvm_blislike.microkernels.tile_loops import fits
from tvm_blislike.microkernels.update_shape import UpdateShape
from tvm_blislike.microkernels.vector_code import vector_code

# What `_register` calls an intrinsic.
_INTRIN_NAME = re.compile(
    r"blislike_(?P<kernel>[a-z0-9]+_[a-z0-9]+_\d+x\d+(?:x(?P<ks>\d+))?)_(?P<mh>\d+)x(?P<mw>\d+)"
    r"_k(?P<steps>\d+)u(?P<unroll>\d+)_(?P<view>[a-z]+)_s(?P<sh>\d+)_(?P<sw>\d+)_d(?P<dw>\d+)"
    r"(?P<m>_m)?(?P<o>_o)?(?P<f>_f)?"
)


def update_intrin(kernel: Microkernel, shape: UpdateShape) -> str:
    """Register the TensorIntrin of `kernel` used with `shape`; return its name.

    The intrinsic's C is (mh, mw, nr), its A is `shape.a_shape`, its B is (steps, nr * ks).
    Leading axes of extent one are dropped from all three, as `Schedule.tensorize` requires.

    Returns
    -------
    str
        Name for `Schedule.tensorize`; registering twice is free.

    Raises
    ------
    ValueError
        When the rows of `shape` do not match the kernel's mr, or the kernel is for panels only.
    """
    _check(kernel, shape)
    return _register(kernel, shape)


@functools.cache
def _register(kernel: Microkernel, shape: UpdateShape) -> str:
    strides = f"s{shape.sh}_{shape.sw}_d{shape.dw}"
    name = (
        f"blislike_{kernel.name}_{shape.mh}x{shape.mw}_k{shape.steps}u{shape.unroll}"
        f"_{shape.view}_{strides}{'_m' if shape.in_memory else ''}"
        f"{'_o' if shape.in_order else ''}{'_f' if shape.streams else ''}"
    )
    desc = _build(kernel, shape, symbolic=False, body=_plain)
    impl = _build(kernel, shape, symbolic=True, body=vector_code)
    TensorIntrin.register(name, desc, impl, override=True)
    return name


def shape_named(intrin: str) -> tuple[str, UpdateShape] | None:
    """Return the micro-kernel's name and its use that the name of an intrinsic stands for.

    None for an intrinsic that is none of ours.
    """
    found = _INTRIN_NAME.fullmatch(intrin)
    if found is None:
        return None
    fields = found.groupdict()
    letters = {"in_memory": "m", "in_order": "o", "streams": "f"}
    flags = {name: bool(fields.pop(letter)) for name, letter in letters.items()}
    kernel, view = fields.pop("kernel"), fields.pop("view")
    fields["ks"] = fields["ks"] or 1
    return kernel, UpdateShape(**{k: int(v) for k, v in fields.items()}, view=view, **flags)


def standalone(kernel: Microkernel, shape: UpdateShape) -> PrimFunc:
    """Return a micro-kernel as a function of its own, (A, B, C) in memory.

    Raises
    ------
    ValueError
        As for `update_intrin`.
    """
    _check(kernel, shape)
    return _build(kernel, replace(shape, in_memory=True), symbolic=False, body=vector_code)


def _check(kernel: Microkernel, shape: UpdateShape) -> None:
    if kernel.panels_only and shape.view != "panel":
        raise ValueError(f"{kernel.name} has no register for A in place; use the view panel")
    if kernel.tiles is not None and (shape.view == "panel" or shape.dw > 1):
        raise ValueError(f"{kernel.name} reads rows of A; use the view rows, or window with dw = 1")
    if kernel.tiles is not None and not fits(kernel.mr, kernel.nr, shape.mh):
        raise ValueError(f"{kernel.name} has no tiles for the rows of {shape.mh} image rows")
    if shape.ks != kernel.ks:
        raise ValueError(f"{kernel.name} takes {kernel.ks} elements of k a step, not {shape.ks}")
    if shape.mh * shape.mw != kernel.mr:
        raise ValueError(f"{kernel.name} has {kernel.mr} rows, not {shape.mh} x {shape.mw}")


def _build(
    kernel: Microkernel,
    shape: UpdateShape,
    symbolic: bool,
    body: Callable[[Update], None],
) -> PrimFunc:
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            a = Operand(shape.a_shape, kernel.types.a, contiguous=not symbolic)
            b = Operand((shape.steps, kernel.nr * kernel.ks), kernel.types.b, contiguous=True)
            c = Operand((shape.mh, shape.mw, kernel.nr), kernel.types.acc, True)
            with T.sblock("root"):
                T.reads(c.region(), a.region(), b.region())
                T.writes(c.region())
                body(Update(kernel, shape, a, b, c))
    return builder.get()


def _plain(update: Update) -> None:
    """Emit the plain semantics: one scalar multiply-add, block axes ordered (mh, mw, nr, k, ks)."""
    kernel, shape, a, b, c = update.kernel, update.shape, update.a, update.b, update.c
    extents = (shape.mh, shape.mw, kernel.nr, shape.steps, kernel.ks)
    # k outermost: the order in which the schedules hand the loops to tensorize.
    order = (3, 0, 1, 2, 4)
    kept = [axis for axis in order if extents[axis] != 1]
    with T.grid(*(extents[axis] for axis in kept)) as loops:
        loops = [loops] if len(kept) == 1 else list(loops)
        var = dict(zip(kept, loops, strict=True))
        with T.sblock("update"):
            v: list[Any] = [0, 0, 0, 0, 0]
            for axis in sorted(kept):
                make = T.axis.reduce if axis >= 3 else T.axis.spatial
                v[axis] = make(extents[axis], var[axis])
            ih, iw, j, k, s = v
            at_c, at_a = c.at(ih, iw, j), a.at(*shape.a_index(ih, iw, k, s))
            left, right = a.buffer[at_a], b.buffer[b.at(k, j * kernel.ks + s)]
            product = multiplied(kernel.types, left, right)
            T.buffer_store(c.buffer, c.buffer[at_c] + product, at_c)
