"""A depthwise convolution and the 1x1 convolution that alone reads it become one kernel.

Behind fusion, when each layer is a function with all that follows it, and layouts are planned: of
two such functions one is made that computes slab by slab (`schedules.slabs`), where that is
predicted to be faster than both by themselves.
"""

from __future__ import annotations

import functools
from collections import Counter
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
from tvm_blislike.cost_models.slabs.geometry import slabs_of
from tvm_blislike.errors import ChoiceError
from tvm_blislike.hardware import Core
from tvm_blislike.model.choice import Candidate, Choice
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.marks import CHOSEN, LATER
from tvm_blislike.model.pair import PairWorkload
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.passes.plan import Plan
from tvm_blislike.passes.schedule import note_in
from tvm_blislike.schedules import get_implementation
from tvm_blislike.schedules.slabs.kernel import Part, declared, kernel
from tvm_blislike.schedules.slabs.layer import Layer
from tvm_blislike.tvm_seams import bindings, functions, op_name
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED


@dataclass(frozen=True)
class _Slabs:
    """What stands in a choice for an algorithm: the layers know how to estimate themselves."""

    layers: Layers
    name: str = NAME

    def estimate(
        self, _workload: PairWorkload, config: SlabConfig, core: Core, threads: int
    ) -> Estimate:
        """See `cost_models.slabs.estimate`."""
        return model.estimate(self.layers, config, core, threads)


def join_layers(mod: tvm.IRModule, plan: Plan, strategy: Strategy) -> tvm.IRModule:
    """Return a module of fused PrimFuncs with pairs of them joined."""
    limits = strategy.constraints
    if NAME in limits.without or (limits.only and NAME not in limits.only):
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
    """Replaces the call of a second layer by that of both; the first one is left to nobody."""

    def __init__(self, mod: tvm.IRModule, plan: Plan, strategy: Strategy) -> None:
        super().__init__(mod)
        self.mod, self.plan, self.strategy = mod, plan, strategy
        self.uses: Counter[relax.Var] = Counter()
        self.calls: dict[relax.Var, relax.Expr] = {}
        self.choices: dict[tvm.ir.GlobalVar, Choice | None] = {}
        self.layers: dict[tvm.ir.GlobalVar, Layer | None] = {}
        self.made: dict[tuple[tvm.ir.GlobalVar, tvm.ir.GlobalVar], tvm.ir.GlobalVar | None] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        second = self._layer(call) if self._may_be_second(call) else None
        if second is None:
            return super().visit_call_(call)
        read = second.arguments(call.args[1])[second.data]
        before = self.calls.get(read)
        first = self._layer(before) if self._may_be_first(read) else None
        if first is None:
            return super().visit_call_(call)
        function = self._joined(before.args[0], call.args[0], first, second)
        if function is None:
            return super().visit_call_(call)
        given = first.arguments(before.args[1]) | second.arguments(call.args[1])
        operands = [first.data, first.packed, *first.others, second.packed, *second.others]
        return relax.call_tir(function, [self.visit_expr(given[p]) for p in operands], call.ty)

    def _may_be_second(self, call: relax.Call) -> bool:
        """Whether a 1x1 convolution may read a depthwise one: taking layers apart takes long."""
        choice = self._choice(call)
        is_second = choice is not None and is_pointwise(choice.workload)
        return is_second and any(map(self._may_be_first, call.args[1]))

    def _may_be_first(self, read: relax.Expr) -> bool:
        """Whether a variable is a depthwise convolution's result that is read once."""
        is_read_once = isinstance(read, relax.Var) and self.uses[read] == 1
        choice = self._choice(self.calls.get(read)) if is_read_once else None
        return choice is not None and is_depthwise(choice.workload)

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

    def _joined(
        self,
        first_name: tvm.ir.GlobalVar,
        second_name: tvm.ir.GlobalVar,
        first: Layer,
        second: Layer,
    ) -> tvm.ir.GlobalVar | None:
        """Return the function of two layers, None where they are faster by themselves."""
        key = (first_name, second_name)
        if key not in self.made:
            choice = choose(first, second, self.strategy)
            if choice is not None:
                core, threads = self.strategy.core, self.strategy.threads
                name = f"{NAME}_{first_name.name_hint}_{second_name.name_hint}"
                left = self.plan.leave(name, partial(joined, first, second, choice, core, threads))
                note = self.plan.note(choice)
                func = declared(first, second).without_attr("global_symbol")
                func = func.with_attr({CHOSEN: note, LATER: left, **IS_SCHEDULED})
                self.made[key] = self.builder_.add_func(func, name.replace("fused_", ""))
            else:
                self.made[key] = None
        return self.made[key]


def is_depthwise(workload: Conv2dWorkload) -> bool:
    """Whether a layer may be the first: one result of a channel, of fp32."""
    w = workload
    return w.is_depthwise and w.co == w.ci and w.types == FLOAT32 and w.oh > 1


def is_pointwise(workload: Conv2dWorkload) -> bool:
    """Whether a layer may be the second: a product at each pixel, of fp32."""
    w = workload
    plain = w.kh == w.kw == 1 and w.stride == (1, 1) and not any(w.padding) and w.groups == 1
    return plain and w.types == FLOAT32


def choose(first: Layer, second: Layer, strategy: Strategy) -> Choice | None:
    """Return the choice of slabs for two layers, None where they are faster by themselves.

    A pin of the pair decides instead.

    Raises
    ------
    ChoiceError
        When a pin names another implementation, or more rows than there are.
    """
    pair = PairWorkload(first.workload, second.workload)
    layers = Layers(pair, _alone(first), _alone(second))
    core, threads = strategy.core, strategy.threads
    pin = strategy.constraints.pin_for(pair)
    if pin is None and model.why_not(layers, core):
        return None
    rows = _pinned_rows(pin, pair) or model.slab_rows(layers, core, threads)
    config = SlabConfig(rows=rows, mr=second.config.mr, nr=second.config.nr)
    limit = strategy.constraints.max_workspace
    if limit is not None and layers.slab_bytes(rows) * threads > limit:
        return None
    estimate = model.estimate(layers, config, core, threads)
    alone = sum(strategy.seconds(layer.workload, layer.config) for layer in (first, second))
    if pin is None and estimate.seconds > model.DOUBT * alone:
        return None
    reason = "pinned" if pin else "the depthwise images leave L2"
    candidates = (Candidate(NAME, estimate.seconds, configs=1), Candidate("two kernels", alone))
    return Choice(pair, _Slabs(layers), config, estimate, reason, candidates)


def _alone(layer: Layer) -> Alone:
    return Alone(get_implementation(layer.config.implementation), layer.config)


def _pinned_rows(pin: Pin | None, pair: PairWorkload) -> int:
    """Return the rows that a pin asks for, 0 for the usual ones."""
    if pin is None:
        return 0
    fields = dict(pin.fields)
    rows = int(fields.pop("rows", 0))
    if pin.implementation != NAME or fields or not 0 <= rows <= pair.depthwise.oh:
        wanted = f"{NAME} with at most rows={pair.depthwise.oh}"
        raise ChoiceError(f"the pin {pin.pattern!r} does not fit {pair}: it takes {wanted}")
    return rows


def joined(first: Layer, second: Layer, choice: Choice, core: Core, threads: int) -> tirx.PrimFunc:
    """Return the function of two layers."""
    pointwise = functools.cache(lambda workload: _of_slab(second, workload, core))
    parts = []
    for run in slabs_of(first.workload, choice.config.rows):
        above, below = run.depthwise(first.workload), run.pointwise(second.workload)
        parts.append(Part(run, _of_slab(first, above, core), pointwise(below)))
    return kernel(first, second, parts, choice.config.rows, threads)


def _of_slab(layer: Layer, workload: Conv2dWorkload, core: Core) -> tirx.PrimFunc:
    """Return the lowered function of a layer for an image of the size of a slab."""
    return layer.of_slab(workload, _alone(layer).of_slab(workload, core), core)
