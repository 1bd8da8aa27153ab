"""The functions of a batch that are written out: that of some images, and `main`s that call it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    inner : Cut or None
        Where the function of fewer images ends that this one calls for its first bindings.
    """

    place: int
    live: tuple[relax.Var, ...]
    some: int
    inner: Cut | None = None


@dataclass(frozen=True)
class _Part:
    """The function of some images, and where it ends."""

    cut: Cut
    function: tvm.ir.GlobalVar


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
    """Emit the function of some images up to a cut, and the one that it calls."""
    own = parameters(batch, cut.some)
    values.update(zip(batch.params, own, strict=True))
    parts = _emit_parts(builder, batch, [cut.inner] if cut.inner else [])
    with builder.function(name, own, private=name != "main"):
        with builder.dataflow():
            _emit_bindings(builder, batch, parts, own, cut, values)
            results = [values[var] for var in cut.live]
            result = results[0] if len(results) == 1 else relax.Tuple(results)
            output = builder.emit_output(result)
        return builder.emit_func_output(output)


def _emit_parts(builder: relax.BlockBuilder, batch: Apart, cuts: Sequence[Cut]) -> list[_Part]:
    return [_Part(cut, _emit_images(builder, "images", batch, cut, Values())) for cut in cuts]


def _emit_bindings(
    builder: relax.BlockBuilder,
    batch: Apart,
    parts: Sequence[_Part],
    params: Sequence[relax.Var],
    until: Cut,
    values: Values,
) -> None:
    """Emit what comes before a cut: calls of parts as far as theirs, then the bindings behind."""
    place = 0
    if parts:
        _emit_calls(builder, batch, parts, params, until.some, values)
        place = parts[0].cut.place
    rest = [
        binding
        for number, binding in enumerate(batch.bindings[: until.place])
        if number >= place or batch.axes[binding.var] is None
    ]
    emit_fewer(builder, batch, rest, values, until.some)


def _emit_calls(
    builder: relax.BlockBuilder,
    batch: Apart,
    parts: Sequence[_Part],
    params: Sequence[relax.Var],
    images: int,
    values: Values,
) -> None:
    """Emit calls of parts for all of some images, and what joins their results."""
    groups = [
        _called(builder, part, batch, params, start) for part, start in _in_parts(parts, images)
    ]
    for number, var in enumerate(parts[0].cut.live):
        pieces = [group[number] for group in groups]
        whole = relax.op.concat(pieces, 0) if len(pieces) > 1 else pieces[0]
        is_inner = isinstance(var, relax.DataflowVar)
        values[var] = builder.emit(whole) if is_inner else builder.emit_output(whole)


def divided(
    mod: tvm.IRModule, batch: Apart, cuts: Sequence[Cut], smaller: Sequence[int] = ()
) -> tvm.IRModule:
    """Return the module whose `main` calls a function of some images as far as the cut.

    Parameters
    ----------
    mod : IRModule
        Of `main`.
    batch : Apart
        Of its images.
    cuts : sequence of Cut
        At one place, for ever fewer images, in which the last one leaves no rest; none for no such
        function: `main` stays.
    smaller : sequence of int
        Of which batches there shall be a function like `main`, too: `function_name` of its place.
    """
    builder, main = relax.BlockBuilder(mod), mod[MAIN]
    parts = _emit_parts(builder, batch, cuts)
    for number, images in enumerate(smaller):
        _emit_main(builder, function_name(number), main, batch, parts, images)
    if not parts:
        return builder.get()
    made = _emit_main(builder, function_name(len(smaller)), main, batch, parts, batch.images)
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
    parts: Sequence[_Part],
    images: int,
) -> tvm.ir.GlobalVar:
    """Emit the `main` of some images, which calls functions of parts of them as far as the cut."""
    params = parameters(batch, images)
    values: Values = dict(zip(batch.params, params, strict=True))
    whole = Cut(len(batch.bindings), (), images)
    with builder.function(name, params):
        with builder.dataflow():
            _emit_bindings(builder, batch, parts, params, whole, values)
        return builder.emit_func_output(substituted(main.body.body, values))


def _in_parts(parts: Sequence[_Part], images: int) -> Iterator[tuple[_Part, int]]:
    """Yield the parts that some images are computed in, each with its first image."""
    start = 0
    while start < images:
        part = next(part for part in parts if part.cut.some <= images - start)
        yield part, start
        start += part.cut.some


def _called(
    builder: relax.BlockBuilder,
    part: _Part,
    batch: Apart,
    params: Sequence[relax.Var],
    start: int,
) -> list[relax.Expr]:
    """Emit a call for some images from `start` on, and return its results."""
    args = [
        _piece(builder, own, param, batch, part.cut.some, start)
        for own, param in zip(params, batch.params, strict=True)
    ]
    result, count = builder.emit(relax.Call(part.function, args)), len(part.cut.live)
    if count == 1:
        return [result]
    return [builder.emit(relax.TupleGetItem(result, place)) for place in range(count)]


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
