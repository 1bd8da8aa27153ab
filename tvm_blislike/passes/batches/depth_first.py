"""Depth first over images: the first layers of a batch for one image after the other.

Activations of one image stay in the caches where those of a batch leave them. So as far as images
stay apart (`images`), a function computes a part of the model for one of them, and `main` calls it
with views of its inputs, one piece of memory for each image. Where the batch pays, such as in late
layers whose weights come from memory, the rest is computed for all of them at once. The cut is
where the predicted time of all layers is least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import relax

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.batches import (
    LEAST_GAIN,
    joining_seconds,
    kernel_seconds,
    traffic_seconds,
)
from tvm_blislike.errors import ChoiceError
from tvm_blislike.hardware import dtype_bits
from tvm_blislike.passes.batches.axes import RESHAPES
from tvm_blislike.passes.batches.images import (
    Apart,
    Values,
    apart,
    emit_fewer,
    parameters,
    substituted,
)
from tvm_blislike.passes.image_operators import BINARY, UNARY
from tvm_blislike.passes.plan import Plan, plan_of
from tvm_blislike.tvm_seams import dtype_name, op_name, static_shape

# Calls of the function in `main`: its code is one, but each call is written out.
_MOST_CALLS = 64
# Tensors that may have to be put together.
_MOST_JOINED = 4
# What TVM brings into the kernel of the layer before: nothing is cut in front of it.
_FUSED = UNARY | BINARY | {"relax.where", "relax.nn.leakyrelu"}


@dataclass(frozen=True)
class _Cut:
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


def depth_first(mod: tvm.IRModule, strategy: Strategy) -> tuple[tvm.IRModule, str]:
    """Return the module as it is computed fastest, and what was decided about its batch.

    Parameters
    ----------
    mod : IRModule
        Its `main` takes the inputs of the model, of known sizes.
    strategy : Strategy
        Knows the time of each layer, and what the user wants.

    Raises
    ------
    ChoiceError
        When the user wants a number of images at a time that cannot be.
    """
    wanted = strategy.constraints.images
    batch = _batch_of(mod)
    if batch is None or wanted == 0:
        return mod, ""
    some = _at_a_time(batch, wanted)
    cuts = [] if some is None else _cuts(batch, some)
    if not cuts:
        return mod, _refused(batch, wanted)
    times = _Times(mod, batch, some, strategy)
    whole = times.whole()
    cut = min(cuts, key=times.of)
    seconds = times.of(cut)
    figures = f"predicted {seconds * 1e3:.3f} ms, {whole * 1e3:.3f} ms all at once"
    if wanted is None and seconds > (1 - LEAST_GAIN) * whole:
        return mod, f"batch of {batch.images}: all images at once ({_shown(batch)}; {figures})"
    name = _name_of(batch, cut)
    note = f"batch of {batch.images}: {cut.some} at a time {name} ({figures})"
    return _divided(mod, batch, cut), note


def _batch_of(mod: tvm.IRModule) -> Apart | None:
    """Return the images of the inputs' first axis; None for a single one."""
    func = mod["main"]
    shapes = {param: static_shape(param) for param in func.params}
    first = next((shape[0] for shape in shapes.values() if shape), 1)
    if first < 2:
        return None
    return apart(func, first, {p: 0 for p, shape in shapes.items() if shape and shape[0] == first})


def _at_a_time(batch: Apart, wanted: int | None) -> int | None:
    """Return how many images one call computes: those asked for, else as few as can be."""
    images = batch.images
    if wanted is not None and (images % wanted or wanted >= images):
        raise ChoiceError(f"{wanted} images at a time do not divide a batch of {images}")
    fewest = (n for n in range(1, images) if images % n == 0 and images // n <= _MOST_CALLS)
    return wanted or next(fewest, None)


def _refused(batch: Apart, wanted: int | None) -> str:
    if wanted is not None:
        reason = batch.why_not or "no layer is before them"
        raise ChoiceError(f"images of the batch cannot be computed {wanted} at a time: {reason}")
    return f"batch of {batch.images}: all images at once ({_shown(batch)})"


def _shown(batch: Apart) -> str:
    return batch.why_not or "they stay apart"


def _name_of(batch: Apart, cut: _Cut) -> str:
    if cut.place == len(batch.bindings):
        return "through the whole model"
    shapes = ", ".join("x".join(map(str, static_shape(var))) for var in cut.live)
    return f"up to {shapes}, then all at once"


def _cuts(batch: Apart, some: int) -> list[_Cut]:
    """Return where the function may end: few tensors go on, and images are pieces of them."""
    found, last = [], {}
    for place, binding in enumerate(batch.bindings):
        for var in relax.analysis.all_vars(binding.value):
            last[var] = place
        if not isinstance(binding.var, relax.DataflowVar):
            last[binding.var] = len(batch.bindings)
    open_: list[relax.Var] = []
    for place in range(1, batch.reach + 1):
        var = batch.bindings[place - 1].var
        open_ = [v for v in (*open_, var) if last.get(v, -1) >= place and batch.axes[v] is not None]
        at_end = place == len(batch.bindings)
        if not at_end and not _begins_kernel(batch.bindings[place].value):
            continue
        if 0 < len(open_) <= _MOST_JOINED and all(_is_in_pieces(v, batch) for v in open_):
            found.append(_Cut(place, tuple(open_), some))
    return found


def _is_in_pieces(var: relax.Var, batch: Apart) -> bool:
    return batch.axes[var] == 0 and static_shape(var) is not None


def _begins_kernel(value: relax.Expr) -> bool:
    return isinstance(value, relax.Call) and op_name(value) not in _FUSED


class _Times:
    """Predicted times of the parts of a model, for some images and for all."""

    def __init__(self, mod: tvm.IRModule, batch: Apart, some: int, strategy: Strategy) -> None:
        self.batch, self.strategy = batch, strategy
        fewer, vars_ = _first_bindings(batch, some)
        of_some = plan_of(fewer, strategy)
        names = [binding.var for binding in batch.bindings]
        self._some = [
            self._seconds(vars_[b.var], b.value, of_some, some / batch.images)
            for b in batch.bindings[: batch.reach]
        ]
        of_all = plan_of(mod, strategy)
        self._all = [
            self._seconds(var, b.value, of_all, 1.0)
            for var, b in zip(names, batch.bindings, strict=True)
        ]

    def whole(self) -> float:
        """Return the time of all images at once."""
        return sum(self._all)

    def of(self, cut: _Cut) -> float:
        """Return the time with a cut."""
        core, threads = self.strategy.core, self.strategy.threads
        calls = self.batch.images // cut.some
        joined = sum(
            joining_seconds(
                math.prod(static_shape(var)),
                dtype_name(var),
                _is_laid_out(var),
                calls,
                core,
                threads,
            )
            for var in cut.live
        )
        return calls * sum(self._some[: cut.place]) + joined + sum(self._all[cut.place :])

    def _seconds(self, var: relax.Var, value: relax.Expr, plan: Plan, share: float) -> float:
        """Return the time of a binding; `share` of the images that `value` has are computed."""
        core, threads, name = self.strategy.core, self.strategy.threads, op_name(value)
        if not name or name in RESHAPES or static_shape(value) is None:
            return 0.0
        if var in plan.choices:
            left = int(share * _bytes(value))
            return plan.choices[var].seconds + kernel_seconds(left, core, threads)
        read = [int(share * _bytes(arg)) for arg in value.args if isinstance(arg, relax.Var)]
        if name in _FUSED:
            return sum(traffic_seconds(size, core, threads) for size in read[1:])
        moved = sum(traffic_seconds(size, core, threads) for size in read)
        return moved + kernel_seconds(int(share * _bytes(value)), core, threads)


def _is_laid_out(var: relax.Var) -> bool:
    shape = static_shape(var)
    return len(shape) == 4 and shape[2:] != (1, 1)


def _bytes(expr: relax.Expr) -> int:
    shape = static_shape(expr)
    return 0 if shape is None else math.prod(shape) * dtype_bits(dtype_name(expr)) // 8


def _first_bindings(batch: Apart, some: int) -> tuple[tvm.IRModule, Values]:
    """Return all that keeps images apart as a module for some of them, and its variables."""
    rest = batch.bindings[batch.reach :]
    used = {v for b in rest for v in relax.analysis.all_vars(b.value)}
    outer = {b.var for b in batch.bindings if not isinstance(b.var, relax.DataflowVar)}
    made = [b.var for b in batch.bindings[: batch.reach]]
    live = [v for v in made if v in used | outer and batch.axes[v] is not None]
    builder, values = relax.BlockBuilder(), Values()
    _emit_images(builder, "main", batch, _Cut(batch.reach, tuple(live or made[-1:]), some), values)
    return builder.get(), values


def _emit_images(
    builder: relax.BlockBuilder, name: str, batch: Apart, cut: _Cut, values: Values
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


def _divided(mod: tvm.IRModule, batch: Apart, cut: _Cut) -> tvm.IRModule:
    """Return the module whose `main` calls a function of some images as far as the cut."""
    func, builder = mod["main"], relax.BlockBuilder(mod)
    function = _emit_images(builder, "images", batch, cut, Values())
    with builder.function("main_of_batch", list(func.params)):
        with builder.dataflow():
            values: Values = {}
            groups = [
                _called(builder, function, batch, cut, start)
                for start in range(0, batch.images, cut.some)
            ]
            for place, var in enumerate(cut.live):
                joined = relax.op.concat([group[place] for group in groups], 0)
                values[var] = _emitted(builder, var, joined)
            for number, binding in enumerate(batch.bindings):
                is_done = number < cut.place and batch.axes[binding.var] is not None
                if not is_done:
                    values[binding.var] = _emitted(
                        builder, binding.var, substituted(binding.value, values)
                    )
        made = builder.emit_func_output(substituted(func.body.body, values))
    result = builder.get()
    main = result[made].with_attr(dict(func.attrs or {}))
    del result[made]
    result.update_func(result.get_global_var("main"), main)
    return relax.transform.DeadCodeElimination()(result)


def _emitted(builder: relax.BlockBuilder, var: relax.Var, value: relax.Expr) -> relax.Var:
    inner = isinstance(var, relax.DataflowVar)
    return builder.emit(value) if inner else builder.emit_output(value)


def _called(
    builder: relax.BlockBuilder,
    function: tvm.ir.GlobalVar,
    batch: Apart,
    cut: _Cut,
    start: int,
) -> list[relax.Expr]:
    """Emit a call for some images from `start` on, and return its results."""
    args = [_piece(builder, param, batch, cut.some, start) for param in batch.params]
    result = builder.emit(relax.Call(function, args))
    if len(cut.live) == 1:
        return [result]
    return [builder.emit(relax.TupleGetItem(result, place)) for place in range(len(cut.live))]


def _piece(
    builder: relax.BlockBuilder, param: relax.Var, batch: Apart, some: int, start: int
) -> relax.Var:
    """Emit the view of an input that holds some images; one without images is whole."""
    if batch.axes[param] is None:
        return param
    shape = (some, *static_shape(param)[1:])
    offset = start * _bytes(param) // batch.images
    view = relax.op.memory.view(param, shape, dtype_name(param), offset)
    return builder.emit(relax.op.memory.ensure_zero_offset(builder.emit(view)))
