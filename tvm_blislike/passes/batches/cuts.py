"""Where the function of some images may end, and the predicted time of a model with such a cut."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import tvm
from tvm import relax

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.batches import (
    VIEW_SECONDS,
    joining_seconds,
    kernel_seconds,
    read_seconds,
)
from tvm_blislike.passes import slabs
from tvm_blislike.passes.batches.axes import RESHAPES
from tvm_blislike.passes.batches.functions import Cut, first_bindings
from tvm_blislike.passes.batches.images import Apart, tensor_bytes
from tvm_blislike.passes.batches.reuse import reads_of
from tvm_blislike.passes.concat import are_pieces, parts_of
from tvm_blislike.passes.image_operators import BINARY, UNARY
from tvm_blislike.passes.plan import Plan, plan_of
from tvm_blislike.tvm_seams import dtype_name, op_name, static_shape

# Tensors that may have to be put together.
_MOST_JOINED = 4
# What TVM brings into the kernel of the layer before: nothing is cut in front of it.
_FUSED = UNARY | BINARY | {"relax.where", "relax.nn.leakyrelu"}


def cuts_of(batch: Apart, some: int) -> list[Cut]:
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
            found.append(Cut(place, tuple(open_), some))
    return found


def _is_in_pieces(var: relax.Var, batch: Apart) -> bool:
    return batch.axes[var] == 0 and static_shape(var) is not None


def _begins_kernel(value: relax.Expr) -> bool:
    return isinstance(value, relax.Call) and op_name(value) not in _FUSED


class Times:
    """Predicted times of the parts of a model, for some images and for all.

    Attributes
    ----------
    of_all : Plan
        The plan of all images at once.
    """

    def __init__(self, mod: tvm.IRModule, batch: Apart, strategy: Strategy) -> None:
        self.batch, self.strategy = batch, strategy
        self._reads = reads_of(batch.bindings, _FUSED)
        self.of_all = plan_of(mod, strategy)
        self._in_slabs = self._read_in_chains()
        of_all = [self._seconds(b, {}, self.of_all, 1.0) for b in batch.bindings]
        self._by_images = {batch.images: of_all}

    def _read_in_chains(self) -> set[relax.Var]:
        """Return what passes from layer to layer of a chain: never written as a whole.

        Of each chain that may be (`passes.slabs`): where the layers stay by themselves, which is
        decided later, the images between them are small.
        """
        if not slabs.is_wanted(self.strategy):
            return set()
        choices = self.of_all.choices
        read = [(var, each.tensor) for var, reads in self._reads.items() for each in reads]
        times = Counter(tensor for _, tensor in read)
        pairs = [(var, t) for var, t in read if times[t] == 1 and var in choices and t in choices]
        workloads = ((t, choices[t].workload, choices[var].workload) for var, t in pairs)
        return {tensor for tensor, *layers in workloads if slabs.may_meet(*layers)}

    def whole(self) -> float:
        """Return the time of all images at once."""
        return self.within(self._everything())

    def of(self, cut: Cut) -> float:
        """Return the time with a cut."""
        return self.within(self._everything(cut))

    def within(self, cut: Cut) -> float:
        """Return the time of one call of the function that ends at a cut."""
        inner, seconds = cut.inner, self._of_bindings(cut.some)
        if inner is None:
            return sum(seconds[: cut.place])
        calls = cut.some // inner.some
        joined = sum(self._joined(var, cut.some, calls) for var in inner.live)
        return calls * self.within(inner) + joined + sum(seconds[inner.place : cut.place])

    def _everything(self, inner: Cut | None = None) -> Cut:
        return Cut(len(self.batch.bindings), (), self.batch.images, inner)

    def _of_bindings(self, some: int) -> list[float]:
        """Return the time of each binding for some images, as far as these stay apart."""
        if some not in self._by_images:
            fewer, vars_ = first_bindings(self.batch, some)
            plan = plan_of(fewer, self.strategy)
            self._by_images[some] = [
                self._seconds(b, vars_, plan, some / self.batch.images)
                for b in self.batch.bindings[: self.batch.reach]
            ]
        return self._by_images[some]

    def _joined(self, var: relax.Var, some: int, calls: int) -> float:
        """Return the time of putting a tensor of some images together from what calls return."""
        elements = math.prod(static_shape(var)) * some // self.batch.images
        return joining_seconds(
            elements,
            dtype_name(var),
            _is_laid_out(var),
            calls,
            self.strategy.core,
            self.strategy.threads,
        )

    def _seconds(
        self,
        binding: relax.VarBinding,
        vars_: Mapping[relax.Var, relax.Var],
        plan: Plan,
        share: float,
    ) -> float:
        """Return the time of a binding in a plan for this share of its images.

        Parameters
        ----------
        vars_ : mapping
            Variables of that plan by those of the whole batch, where these are others.
        """
        core, threads = self.strategy.core, self.strategy.threads
        value, name = binding.value, op_name(binding.value)
        if not name or name in RESHAPES or static_shape(value) is None:
            return 0.0
        if name == "relax.concat" and (parts := parts_of(value)):
            shapes = [static_shape(vars_.get(part, part)) for part in parts]
            if are_pieces(shapes, value):
                return len(parts) * VIEW_SECONDS
        var = vars_.get(binding.var, binding.var)
        moved = sum(
            read_seconds(share * read.size, share * read.images + read.weights, core, threads)
            for read in self._reads.get(binding.var, ())
            if read.tensor not in self._in_slabs
        )
        if name in _FUSED:
            return moved
        written = 0 if binding.var in self._in_slabs else int(share * tensor_bytes(value))
        kernel = kernel_seconds(written, core, threads)
        return moved + kernel + (plan.choices[var].seconds if var in plan.choices else 0.0)


def _is_laid_out(var: relax.Var) -> bool:
    shape = static_shape(var)
    return len(shape) == 4 and shape[2:] != (1, 1)
