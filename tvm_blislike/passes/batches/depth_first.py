"""Depth first over images: the first layers of a batch for one image after the other.

Activations of one image stay in the caches where those of a batch leave them. So as far as images
stay apart (`images`), a function computes a part of the model for one of them, and `main` calls it
with views of its inputs, one piece of memory for each image. Where the batch pays, such as in late
layers whose weights come from memory, the rest is computed for all of them at once. The cut is
where the predicted time of all layers is least.

A batch whose size stays open has a `main` for each size. All call the same function of one image
as far as the cut, so that a further size costs no more than the few kernels behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.batches import MOST_LOSS, NEARLY
from tvm_blislike.errors import ChoiceError, SizesMeetError
from tvm_blislike.model.variant import Batches
from tvm_blislike.passes.batches.cuts import Times, cuts_of
from tvm_blislike.passes.batches.functions import Cut, divided
from tvm_blislike.passes.batches.images import Apart, apart
from tvm_blislike.passes.plan import Plan, plan_of
from tvm_blislike.tvm_seams import static_shape

# Calls of the function in `main`: its code is one, but each call is written out.
_MOST_CALLS = 64


def depth_first(mod: tvm.IRModule, strategy: Strategy) -> tuple[tvm.IRModule, Plan]:
    """Return the module as it is computed fastest, and its plan, with a note about its batch.

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
        return mod, plan_of(mod, strategy)
    some = _at_a_time(batch, wanted)
    cuts = [] if some is None else cuts_of(batch, some)
    if not cuts:
        return mod, _planned(mod, strategy, _refused(batch, wanted))
    times = Times(mod, batch, strategy)
    whole = times.whole()
    cut = min(cuts, key=times.of)
    seconds = times.of(cut)
    figures = f"predicted {seconds * 1e3:.3f} ms, {whole * 1e3:.3f} ms all at once"
    # Without a margin: what transforms wait for lines of L3 is in no estimate, and only the whole
    # batch has it (ResNet-18 on Zen 4: 1 % predicted, 8 % measured).
    if wanted is None and seconds >= whole:
        note = f"batch of {batch.images}: all images at once ({_shown(batch)}; {figures})"
        return mod, replace(times.of_all, notes=(note,))
    name = _name_of(batch, cut)
    note = f"batch of {batch.images}: {cut.some} at a time {name} ({figures})"
    by_parts = divided(mod, batch, [cut])
    return by_parts, _planned(by_parts, strategy, note)


def _planned(mod: tvm.IRModule, strategy: Strategy, note: str) -> Plan:
    return replace(plan_of(mod, strategy), notes=(note,))


def of_batches(
    mod: tvm.IRModule, batches: Batches, strategy: Strategy
) -> tuple[tvm.IRModule, Plan]:
    """Return the module with a function for each smaller batch, and its plan with a note of that.

    Parameters
    ----------
    mod : IRModule
        Its `main` takes the largest batch.
    batches : Batches
        The others; their functions are called `model.variant.function_name` of their number.
    strategy : Strategy
        Knows the time of each layer.

    Raises
    ------
    SizesMeetError
        When images do not stay apart all through the model.
    """
    params = [mod["main"].params[place] for place in batches.inputs]
    images = static_shape(params[0])[0]
    batch = apart(mod["main"], images, dict.fromkeys(params, 0))
    if not batch.bindings or batch.reach < len(batch.bindings):
        raise SizesMeetError(f"images of a batch meet: {batch.why_not}")
    cuts, name = _cuts_for_all(mod, batch, strategy), "each size by itself"
    if cuts:
        counts = " or ".join(map(_counted, cuts))
        name = f"{counts} at a time {_name_of(batch, cuts[0])}"
    sizes = ", ".join(map(str, (*batches.smaller, batch.images)))
    by_batches = divided(mod, batch, cuts, batches.smaller)
    return by_batches, _planned(by_batches, strategy, f"batches of {sizes}: {name}")


def _cuts_for_all(mod: tvm.IRModule, batch: Apart, strategy: Strategy) -> list[Cut]:
    """Return the last of the cuts that are about as fast as the fastest: least is made anew.

    Of one image, and of as many as there are threads where these are faster together.
    """
    cuts = cuts_of(batch, 1)
    if not cuts or strategy.constraints.images == 0:
        return []
    times = Times(mod, batch, strategy)
    seconds = [times.of(cut) for cut in cuts]
    least = min(seconds)
    if least > MOST_LOSS * times.whole():
        return []
    one = [cut for cut, each in zip(cuts, seconds, strict=True) if each <= NEARLY * least][-1]
    several = _image_of_each_thread(one, cuts, times)
    return [several, one] if several else [one]


def _image_of_each_thread(one: Cut, cuts: Sequence[Cut], times: Times) -> Cut | None:
    """Return the cut of as many images as there are threads; None where one by one is faster.

    Threads wait for each other less where each has an image (ResNet-18, two images, two threads on
    Zen 4: 1 % predicted, 7 % measured). Where early layers would leave the caches, these are
    computed for one image after the other: MobileNetV2 takes 1.1 to 1.25 times as long by two
    images all the way, and 0.93 by two from 28x28 on (Zen 4).
    """
    images = times.strategy.threads
    if not 1 < images <= times.batch.images:
        return None
    inner = [cut for cut in cuts if cut.place < one.place]
    ways = [replace(one, some=images, inner=each) for each in (None, *inner)]
    best = min(ways, key=times.within)
    return best if times.within(best) < images * times.within(one) else None


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


def _counted(cut: Cut) -> str:
    if cut.inner is None:
        return str(cut.some)
    return f"{cut.some} ({cut.inner.some} up to {_shapes(cut.inner)})"


def _name_of(batch: Apart, cut: Cut) -> str:
    if cut.place == len(batch.bindings):
        return "through the whole model"
    return f"up to {_shapes(cut)}, then all at once"


def _shapes(cut: Cut) -> str:
    return ", ".join("x".join(map(str, static_shape(var))) for var in cut.live)
