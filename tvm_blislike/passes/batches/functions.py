"""The functions of a batch that are written out: that of some images, and `main`s that call it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from tvm_blislike.model.variant import MAIN, function_name
from tvm_blislike.passes.batches.images import (
    Apart,
    Values,
    emit_fewer,
    parameters,
    shape_of,
    substituted,
    tensor_bytes,
)
from tvm_blislike.tvm_seams import dtype_name


@dataclass(frozen=True)
class Cut:
    """Where the function of some images ends.

    Parameters
    ----------
    place : int
        Bindings in it.
    live : tuple of relax.Var
        What it hands on.
    some : int
        Images of one call.
    """

    place: int
    live: tuple[relax.Var, ...]
    some: int


def first_bindings(batch: Apart, some: int) -> tuple[tvm.IRModule, Values]:
    """Return all that keeps images apart as a module for some of them, and its variables."""
    rest = batch.bindings[batch.reach :]
    used = {v for b in rest for v in relax.analysis.all_vars(b.value)}
    outer = {b.var for b in batch.bindings if not isinstance(b.var, relax.DataflowVar)}
    made = [b.var for b in batch.bindings[: batch.reach]]
    live = [v for v in made if v in used | outer and batch.axes[v] is not None]
    builder, values = relax.BlockBuilder(), Values()
    _emit_images(builder, "main", batch, Cut(batch.reach, tuple(live or made[-1:]), some), values)
    return builder.get(), values


def _emit_images(
    builder: relax.BlockBuilder, name: str, batch: Apart, cut: Cut, values: Values
) -> tvm.ir.GlobalVar:
    """Emit the function of some images up to a cut."""
    own = parameters(batch, cut.some)
    values.update(zip(batch.params, own, strict=True))
    with builder.function(name, own, private=name != "main"):
        with builder.dataflow():
            emit_fewer(builder, batch, batch.bindings[: cut.place], values, cut.some)
            results = [values[var] for var in cut.live]
            result = results[0] if len(results) == 1 else relax.Tuple(results)
            output = builder.emit_output(result)
        return builder.emit_func_output(output)


def divided(
    mod: tvm.IRModule, batch: Apart, cut: Cut | None, smaller: Sequence[int] = ()
) -> tvm.IRModule:
    """Return the module whose `main` calls a function of some images as far as the cut.

    Parameters
    ----------
    mod : IRModule
        Of `main`.
    batch : Apart
        Of its images.
    cut : Cut or None
        None for no such function: `main` stays.
    smaller : sequence of int
        Of which batches there shall be a function like `main`, too: `function_name` of its place.
    """
    builder, main = relax.BlockBuilder(mod), mod[MAIN]
    function = None if cut is None else _emit_images(builder, "images", batch, cut, Values())
    for number, images in enumerate(smaller):
        _emit_main(builder, function_name(number), main, batch, cut, function, images)
    if cut is None:
        return builder.get()
    name = function_name(len(smaller))
    made = _emit_main(builder, name, main, batch, cut, function, batch.images)
    result = builder.get()
    divided_main = result[made].with_attr(dict(main.attrs or {}))
    del result[made]
    result.update_func(result.get_global_var(MAIN), divided_main)
    return relax.transform.DeadCodeElimination()(result)


def _emit_main(
    builder: relax.BlockBuilder,
    name: str,
    main: relax.Function,
    batch: Apart,
    cut: Cut | None,
    function: tvm.ir.GlobalVar | None,
    images: int,
) -> tvm.ir.GlobalVar:
    """Emit the `main` of some images, which calls `function` as far as the cut."""
    params = parameters(batch, images)
    values: Values = dict(zip(batch.params, params, strict=True))
    place = 0 if cut is None else cut.place
    with builder.function(name, params):
        with builder.dataflow():
            if cut is not None:
                groups = [
                    _called(builder, function, batch, cut, params, start)
                    for start in range(0, images, cut.some)
                ]
                for number, var in enumerate(cut.live):
                    pieces = [group[number] for group in groups]
                    whole = relax.op.concat(pieces, 0) if len(pieces) > 1 else pieces[0]
                    is_inner = isinstance(var, relax.DataflowVar)
                    values[var] = builder.emit(whole) if is_inner else builder.emit_output(whole)
            rest = [
                binding
                for number, binding in enumerate(batch.bindings)
                if number >= place or batch.axes[binding.var] is None
            ]
            emit_fewer(builder, batch, rest, values, images)
        return builder.emit_func_output(substituted(main.body.body, values))


def _called(
    builder: relax.BlockBuilder,
    function: tvm.ir.GlobalVar,
    batch: Apart,
    cut: Cut,
    params: Sequence[relax.Var],
    start: int,
) -> list[relax.Expr]:
    """Emit a call for some images from `start` on, and return its results."""
    args = [
        _piece(builder, own, param, batch, cut.some, start)
        for own, param in zip(params, batch.params, strict=True)
    ]
    result = builder.emit(relax.Call(function, args))
    if len(cut.live) == 1:
        return [result]
    return [builder.emit(relax.TupleGetItem(result, place)) for place in range(len(cut.live))]


def _piece(
    builder: relax.BlockBuilder,
    own: relax.Var,
    param: relax.Var,
    batch: Apart,
    some: int,
    start: int,
) -> relax.Var:
    """Emit the view of an input that holds some images; one without images is whole."""
    if batch.axes[param] is None:
        return own
    shape = shape_of(param, batch, some)
    offset = start * tensor_bytes(param) // batch.images
    view = relax.op.memory.view(own, shape, dtype_name(param), offset)
    return builder.emit(relax.op.memory.ensure_zero_offset(builder.emit(view)))
