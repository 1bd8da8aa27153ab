"""Depthwise and 1x1 convolutions, each of which alone reads the one before, become one kernel.

Behind fusion, when each layer is a function with all that follows it, and layouts are planned: of
such functions one is made that computes slab by slab (`schedules.slabs`), where that is predicted
to be faster than all by themselves: of a depthwise convolution and the 1x1 convolution behind it,
and with the 1x1 convolution in front where the image between leaves the caches.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.choose.constraints import Pin
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.slabs import estimate as model
from tvm_blislike.cost_models.slabs.config import NAME, SlabConfig
from tvm_blislike.cost_models.slabs.estimate import Alone, Layers
from tvm_blislike.cost_models.slabs.geometry import SlabGeometry, Step, of_step, of_unit
from tvm_blislike.errors import ChoiceError
from tvm_blislike.hardware import Core
from tvm_blislike.model.chain import ChainWorkload
from tvm_blislike.model.choice import Candidate, Choice
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.marks import CHOSEN, LATER
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.model.workload import Conv2dWorkload, Workload
from tvm_blislike.passes.plan import Plan
from tvm_blislike.passes.schedule import note_in
from tvm_blislike.schedules import get_implementation
from tvm_blislike.schedules.slabs.kernel import Code, declared, kernel
from tvm_blislike.schedules.slabs.layer import Layer
from tvm_blislike.tvm_seams import bindings, functions, op_name
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED


@dataclass(frozen=True)
class _Slabs:
    """What stands in a choice for an algorithm: the layers know how to estimate themselves."""

    layers: Layers
    name: str = NAME

    def estimate(
        self, _workload: ChainWorkload, config: SlabConfig, core: Core, threads: int
    ) -> Estimate:
        """See `cost_models.slabs.estimate`."""
        return model.estimate(self.layers, config, core, threads)


def join_layers(mod: tvm.IRModule, plan: Plan, strategy: Strategy) -> tvm.IRModule:
    """Return a module of fused PrimFuncs with chains of them joined."""
    if not is_wanted(strategy):
        return mod
    images = [choice.workload for choice in plan.choices.values() if choice.workload.images]
    if not (any(map(is_depthwise, images)) and any(map(is_pointwise, images))):
        return mod
    joiner = _Joiner(mod, plan, strategy)
    for gvar, func in functions(mod):
        joiner.uses = _uses(func)
        joiner.calls = {b.var: b.value for b in bindings(func)}
        joiner.builder_.update_func(gvar, joiner.visit_expr(func))
    joined = joiner.builder_.get()
    return relax.transform.DeadCodeElimination()(joined) if joiner.made else mod


def _uses(func: relax.Function) -> Counter[relax.Var]:
    """Return how often each variable is read, a result of the function once more."""
    found: Counter[relax.Var] = Counter()

    def count(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var):
            found[expr] += 1

    for binding in bindings(func):
        relax.analysis.post_order_visit(binding.value, count)
    relax.analysis.post_order_visit(func.body.body, count)
    return found


@mutator
class _Joiner(PyExprMutator):
    """Replaces the call of a chain's last layer by that of all; the others are left to nobody."""

    def __init__(self, mod: tvm.IRModule, plan: Plan, strategy: Strategy) -> None:
        super().__init__(mod)
        self.mod, self.plan, self.strategy = mod, plan, strategy
        self.uses: Counter[relax.Var] = Counter()
        self.calls: dict[relax.Var, relax.Expr] = {}
        self.choices: dict[tvm.ir.GlobalVar, Choice | None] = {}
        self.layers: dict[tvm.ir.GlobalVar, Layer | None] = {}
        self.chains: dict[relax.Expr, tuple[relax.Call, ...]] = {}
        self.made: dict[tuple[tvm.ir.GlobalVar, ...], tvm.ir.GlobalVar | None] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        chain = self._chain(call) if self._may_be_second(call) else ()
        if len(chain) < 2:
            return super().visit_call_(call)
        given = []
        for each in chain:
            layer = self._layer(each)
            arguments = layer.arguments(each.args[1])
            own = [layer.packed, *layer.others]
            given += [arguments[p] for p in (own if given else [layer.data, *own])]
        return relax.call_tir(self._joined(chain), [self.visit_expr(e) for e in given], call.ty)

    def _chain(self, call: relax.Call) -> tuple[relax.Call, ...]:
        """Return the calls, up to that of a convolution, that one kernel computes."""
        if call not in self.chains:
            self.chains[call] = next(filter(self._joined, self._longest_first(call)), (call,))
        return self.chains[call]

    def _longest_first(self, call: relax.Call) -> list[tuple[relax.Call, ...]]:
        """Return the chains that may end in a call."""
        if is_depthwise(self._choice(call).workload):
            above = self._read_by(call, is_pointwise)
            return [(*self._chain(before), after) for before, after in above]
        pairs = self._read_by(call, is_depthwise)
        longer = [
            (*self._chain(above), *pair)
            for pair in pairs
            for above, _ in self._read_by(pair[0], is_pointwise)
        ]
        return [*longer, *pairs]

    def _read_by(
        self, call: relax.Call, wanted: Callable[[Conv2dWorkload], bool]
    ) -> list[tuple[relax.Call, relax.Call]]:
        """Return the call whose result is the image of another one and of nothing else, with it."""
        layer = self._layer(call)
        read = layer.arguments(call.args[1])[layer.data] if layer else None
        if not self._is_read_once(read, wanted):
            return []
        before = self.calls[read]
        return [(before, call)] if self._layer(before) else []

    def _may_be_second(self, call: relax.Call) -> bool:
        """Whether a call may read a layer that joins it: taking layers apart takes long."""
        choice = self._choice(call)
        if choice is None or not (is_depthwise(choice.workload) or is_pointwise(choice.workload)):
            return False
        wanted = is_pointwise if is_depthwise(choice.workload) else is_depthwise
        return any(self._is_read_once(e, wanted) for e in call.args[1])

    def _is_read_once(
        self, read: relax.Expr | None, wanted: Callable[[Conv2dWorkload], bool]
    ) -> bool:
        """Whether a variable is such a convolution's result and is read once."""
        is_read_once = isinstance(read, relax.Var) and self.uses[read] == 1
        choice = self._choice(self.calls.get(read)) if is_read_once else None
        return choice is not None and wanted(choice.workload)

    def _choice(self, call: relax.Expr | None) -> Choice | None:
        """Return the choice of a kernel that can be made of a slab, None for any other value."""
        if call is None or op_name(call) != "relax.call_tir":
            return None
        gvar = call.args[0]
        if gvar not in self.choices:
            self.choices[gvar] = self._noted(self.mod[gvar])
        return self.choices[gvar]

    def _noted(self, func: tirx.PrimFunc) -> Choice | None:
        if IS_SCHEDULED.keys() & (func.attrs or {}).keys():
            return None
        note = note_in(func)
        choice = self.plan.noted(note) if note else None
        return choice if getattr(choice and choice.implementation, "packed_by", ()) else None

    def _layer(self, call: relax.Call) -> Layer | None:
        gvar, choice = call.args[0], self._choice(call)
        if gvar not in self.layers:
            self.layers[gvar] = Layer.of(self.mod[gvar], choice.workload, choice.config)
        return self.layers[gvar]

    def _joined(self, chain: Sequence[relax.Call]) -> tvm.ir.GlobalVar | None:
        """Return the function of a chain of layers, None where they are faster by themselves."""
        key = tuple(call.args[0] for call in chain)
        if key not in self.made:
            layers = [self._layer(call) for call in chain]
            choice = choose(layers, self.strategy)
            if choice is not None:
                core, threads = self.strategy.core, self.strategy.threads
                name = "_".join((NAME, *(name.name_hint for name in key)))
                left = self.plan.leave(name, partial(joined, layers, choice, core, threads))
                note = self.plan.note(choice)
                func = declared(layers).without_attr("global_symbol")
                func = func.with_attr({CHOSEN: note, LATER: left, **IS_SCHEDULED})
                self.made[key] = self.builder_.add_func(func, name.replace("fused_", ""))
            else:
                self.made[key] = None
        return self.made[key]


def is_wanted(strategy: Strategy) -> bool:
    """Return whether the user does not exclude slabs."""
    limits = strategy.constraints
    return NAME not in limits.without and (not limits.only or NAME in limits.only)


def may_meet(first: Workload, second: Workload) -> bool:
    """Whether two layers, the second of which reads the first, may be neighbours in a chain."""
    if not (first.images and second.images):
        return False
    pair = is_depthwise(first), is_pointwise(second)
    return all(pair) or (is_pointwise(first) and is_depthwise(second))


def is_depthwise(workload: Conv2dWorkload) -> bool:
    """Whether a layer may be the first: one result of a channel, of fp32."""
    w = workload
    return w.is_depthwise and w.co == w.ci and w.types == FLOAT32 and w.oh > 1


def is_pointwise(workload: Conv2dWorkload) -> bool:
    """Whether a layer may be the second: a product at each pixel, of fp32."""
    w = workload
    plain = w.kh == w.kw == 1 and w.stride == (1, 1) and not any(w.padding) and w.groups == 1
    return plain and w.types == FLOAT32


def choose(chain: Sequence[Layer], strategy: Strategy) -> Choice | None:
    """Return the choice of slabs for some layers, None where they are faster by themselves.

    A pin of the chain decides instead.

    Raises
    ------
    ChoiceError
        When a pin names another implementation, or more rows than there are.
    """
    workload = ChainWorkload(tuple(layer.workload for layer in chain))
    layers = Layers(workload, tuple(map(_alone, chain)))
    core, threads = strategy.core, strategy.threads
    pin = strategy.constraints.pin_for(workload)
    if pin is None and model.why_not(layers, core):
        return None
    rows = _pinned_rows(pin, workload) or model.slab_rows(layers, core, threads)
    if not rows or (model.moves_rows(workload) and not model.fits(workload, rows, core, threads)):
        return None
    last = chain[-1].config
    config = SlabConfig(rows=rows, mr=last.mr, nr=last.nr)
    limit = strategy.constraints.max_workspace
    if limit is not None and sum(layers.geometry(rows, threads).buffer_bytes) * threads > limit:
        return None
    estimate = model.estimate(layers, config, core, threads)
    alone = sum(strategy.seconds(layer.workload, layer.config) for layer in chain)
    if pin is None and estimate.seconds > model.DOUBT * alone:
        return None
    reason = "pinned" if pin else "the depthwise images leave L2"
    kernels = Candidate(f"{len(chain)} kernels", alone)
    candidates = (Candidate(NAME, estimate.seconds, configs=1), kernels)
    return Choice(workload, _Slabs(layers), config, estimate, reason, candidates)


def _alone(layer: Layer) -> Alone:
    return Alone(get_implementation(layer.config.implementation), layer.config)


def _pinned_rows(pin: Pin | None, chain: ChainWorkload) -> int:
    """Return the rows that a pin asks for, 0 for the usual ones."""
    if pin is None:
        return 0
    fields, most = dict(pin.fields), chain.layers[-1].oh
    rows = int(fields.pop("rows", 0))
    if pin.implementation != NAME or fields or not 0 <= rows <= most:
        wanted = f"{NAME} with at most rows={most}"
        raise ChoiceError(f"the pin {pin.pattern!r} does not fit {chain}: it takes {wanted}")
    return rows


def joined(chain: Sequence[Layer], choice: Choice, core: Core, threads: int) -> tirx.PrimFunc:
    """Return the function of some layers."""
    geo = choice.implementation.layers.geometry(choice.config.rows, threads)
    code = [_code(layer, number, geo, core) for number, layer in enumerate(chain)]
    return kernel(chain, code, geo, threads)


def _code(layer: Layer, number: int, geo: SlabGeometry, core: Core) -> dict[Step, Code]:
    """Return the code of a layer's steps; those of as many rows of the same padding share it."""
    whole, unit = layer.workload, geo.units[number]

    @functools.cache
    def of(part: Conv2dWorkload) -> Code:
        func = layer.of_slab(part, _alone(layer).of_slab(part, core), core)
        return Code(func, part.oh)

    def part(step: Step) -> Conv2dWorkload:
        return of_step(whole, step) if whole.is_depthwise else of_unit(whole, unit)

    return {step: of(part(step)) for step in geo.steps[number] if step.rows}
