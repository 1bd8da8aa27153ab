"""Decide over a whole function in which layout each image lies and how each layer is computed.

A convolution reads and writes the layouts of its configuration. Elementwise operators, pooling,
spatial means, concatenation, padding and slicing are computed in any layout, the same for input
and result; any other operator reads and writes NCHW. `layout_choice` finds the options that take
least time together, transforms between them included.

What is decided here is carried: `lower` emits the calls, `schedule` takes their templates, and
`reporting` describes them. A PrimFunc says by a note which choice is its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import tvm
from tvm import relax, tirx

from tvm_blislike.choose.layout_choice import Node, Option, choose_options
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.transforms import RESHAPE_SECONDS, transform_seconds
from tvm_blislike.hardware import Core
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.config import Config
from tvm_blislike.model.layouts import NCHW, NHWC, Layout
from tvm_blislike.model.marks import STORED_ERRORS, WHOLE_WEIGHTS
from tvm_blislike.model.workload import Workload
from tvm_blislike.operators import described, operator_in, workload_of
from tvm_blislike.passes.folds import is_fold
from tvm_blislike.passes.image_operators import (
    POOLS,
    image_inputs,
    is_flattening,
    is_image,
    may_lie,
)
from tvm_blislike.passes.quantized.to_integers import left_wide
from tvm_blislike.passes.shuffles import joined_for_turns
from tvm_blislike.passes.small_results import layers_of_small_results
from tvm_blislike.schedules import get_implementation, read_config
from tvm_blislike.tvm_seams import bindings, dtype_name, functions, op_name, static_shape

# Settles what is equal otherwise: before a transform to NCHW an operator joins the kernel of the
# layer that it follows, behind it is a kernel of its own.
_BEHIND_A_TRANSFORM_SECONDS = 1e-9


@dataclass
class Plan:
    """What was decided for a module.

    Parameters
    ----------
    core : Core
        For which core.
    threads : int
        For how many threads.
    choices : dict
        Result of each convolution and matrix product to its choice.
    layouts : dict
        Result of every other operator on images to the layout in which it is computed.
    left : dict
        Each layer that is left to the default rule, with the reason.
    stored : dict
        Errors of weights stored in fewer bytes by workload, in order of execution.
    whole : dict
        Each layer whose weights should have been stored so and are not, with the reason.
    wide : dict
        Each layer of quantized operands that is computed in 32 bits, by type, with the reason.
    fused : dict
        What each kernel of several operators is made of, by its name; see `reporting`.
    notes : tuple of str
        What was decided about the whole, such as its batch.
    """

    core: Core
    threads: int
    choices: dict[relax.Var, Choice] = field(default_factory=dict)
    layouts: dict[relax.Var, Layout] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    wide: dict[str, dict[str, str]] = field(default_factory=dict)
    stored: dict[str, list[float]] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    fused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    _noted: dict[str, Choice] = field(default_factory=dict)
    _later: dict[str, Callable[[], tirx.PrimFunc]] = field(default_factory=dict)

    def note(self, choice: Choice) -> str:
        """Return the text by which a PrimFunc names its choice, for `noted`."""
        text = note_of(choice.workload, choice.config)
        self._noted.setdefault(text, choice)
        return text

    def note_anew(self, choice: Choice) -> None:
        """Have a note mean this choice, whose workload and configuration it has already."""
        self._noted[note_of(choice.workload, choice.config)] = choice

    def leave(self, name: str, make: Callable[[], tirx.PrimFunc]) -> str:
        """Leave a function to be made by the threads that generate code; return its key.

        What stands for it until then has the key as its mark `LATER`.
        """
        key = f"{name} {len(self._later)}"
        self._later[key] = make
        return key

    def left_function(self, key: str) -> tirx.PrimFunc | None:
        """Make the function of a key; None for one that has no more to it than its template."""
        make = self._later.get(key)
        return None if make is None else make()

    def take_over(self, other: Plan) -> None:
        """Add what another plan decided for functions of the same module."""
        for mine, others in (
            (self.choices, other.choices),
            (self.layouts, other.layouts),
            (self.left, other.left),
            (self.wide, other.wide),
            (self.stored, other.stored),
            (self.whole, other.whole),
            (self.fused, other.fused),
            (self._noted, other._noted),
        ):
            mine.update({key: value for key, value in others.items() if key not in mine})

    def add_weights(self, func: relax.Function) -> None:
        """Take over what `passes.stored_weights` found out about a function."""
        attributes = func.attrs or {}
        for layer, errors in dict(attributes.get(STORED_ERRORS, {})).items():
            self.stored.setdefault(str(layer), []).extend(float(error) for error in errors)
        for layer, reason in dict(attributes.get(WHOLE_WEIGHTS, {})).items():
            self.whole[str(layer)] = str(reason)

    def noted(self, text: str) -> Choice:
        """Return the choice of a note; that of another plan, as in a database, is read."""
        if text not in self._noted:
            workload, config = read_note(text)
            implementation = get_implementation(config.implementation)
            self._noted[text] = Choice(workload, implementation, config, None, "scheduled before")
        return self._noted[text]


def note_of(workload: Workload, config: Config) -> str:
    """Return what `read_note` reads: it outlives a plan in the databases of MetaSchedule."""
    return json.dumps({"workload": workload.to_json(), "config": config.to_json()})


def read_note(text: str) -> tuple[Workload, Config]:
    """Return the workload and configuration of a note."""
    note = json.loads(text)
    return Workload.from_json(note["workload"]), read_config(note["config"])


def plan_of(mod: tvm.IRModule, strategy: Strategy) -> Plan:
    """Return the plan of smallest predicted time for the functions of a module.

    Parameters
    ----------
    mod : IRModule
        Images in NCHW.
    strategy : Strategy
        Knows the options of each layer.

    Returns
    -------
    Plan
        Layouts are planned in dataflow blocks only: elsewhere layers keep those that they have.
    """
    plan = Plan(strategy.core, strategy.threads)
    strategy.estimate_all(_workloads(mod))
    rounding = strategy.of_rounding_only()
    for _, func in functions(mod):
        for dtype, layers in left_wide(func).items():
            plan.wide.setdefault(dtype, {}).update(layers)
        plan.add_weights(func)
        exact = dict.fromkeys(layers_of_small_results(func), rounding)
        graph = _Graph(strategy, plan, exact)
        for block in func.body.blocks if isinstance(func.body, relax.SeqExpr) else []:
            if isinstance(block, relax.DataflowBlock):
                graph.joined.update(joined_for_turns(block.bindings))
                for binding in block.bindings:
                    graph.add(binding)
        graph.decide()
        relax.analysis.post_order_visit(
            func, lambda expr, e=exact: _plan_others(expr, strategy, plan, e)
        )
    return plan


def _workloads(mod: tvm.IRModule) -> Iterator[Workload]:
    """Yield the workloads of all layers that have one."""
    for _, func in functions(mod):
        for binding in bindings(func):
            workload = workload_of(binding.value)
            if workload is not None:
                yield workload


def _plan_others(
    expr: relax.Expr, strategy: Strategy, plan: Plan, others: Mapping[relax.Var, Strategy]
) -> None:
    """Plan the layers of a sequence of blocks that are by themselves, some by other strategies."""
    for block in expr.blocks if isinstance(expr, relax.SeqExpr) else []:
        for binding in block.bindings:
            var, call = binding.var, binding.value
            operator = operator_in(call)
            if operator is None or var in plan.choices:
                continue
            if reason := operator.why_not(call):
                plan.left[described(call)] = reason
                continue
            workload = operator.of_call(call)
            choice = _by_itself(call, workload, others.get(var, strategy))
            if var in others:
                choice = _of_small_results(choice)
            if choice.config is None:
                plan.left[str(workload)] = choice.reason
            else:
                plan.choices[var] = choice


def _by_itself(call: relax.Call, workload: Workload, strategy: Strategy) -> Choice:
    """Return the choice in the layouts that a call has, or what is fastest by itself."""
    choice = strategy.choose(workload)
    if not workload.images or choice.config is None:
        return choice
    present = (call.attrs.data_layout, call.attrs.out_layout)
    fitting = (c for c in strategy.options(workload) if c.layouts == present)
    return next(fitting, choice)


def _of_small_results(choice: Choice) -> Choice:
    return replace(
        choice, reason=f"{choice.reason}; small results count (a norm, a logarithm or signs)"
    )


class _Graph:
    """The operators of a function as nodes of `layout_choice`."""

    def __init__(
        self, strategy: Strategy, plan: Plan, others: Mapping[relax.Var, Strategy]
    ) -> None:
        self.strategy, self.others = strategy, others
        self.plan = plan
        self.nodes: list[Node] = []
        self.options: dict[relax.Var, tuple[Choice, ...]] = {}
        self.known: set[Hashable] = set()
        # Concatenations that only NCHW has: elsewhere shuffles read their parts.
        self.joined: set[relax.Var] = set()

    def add(self, binding: relax.Binding) -> None:
        """Add the node of one binding, and one for whoever reads its result elsewhere."""
        var, value = binding.var, binding.value
        for argument in _variables(value):
            if argument not in self.known and is_image(argument):
                self._node(argument, (), (Option("", NCHW),))
        if not self._layer(var, value) and not self._follower(var, value):
            images = tuple(v for v in _variables(value) if v in self.known)
            self._node(var, images, (Option(NCHW, NCHW),))
        if not isinstance(var, relax.DataflowVar):
            self._node(("reader", var), (var,), (Option(NCHW, NCHW),))

    def decide(self) -> None:
        """Note the options that take least time."""
        taken = choose_options(self.nodes)
        for node in self.nodes:
            option = taken[node.result]
            if node.result in self.options:
                self.plan.choices[node.result] = self.options[node.result][option]
            elif len(node.options) > 1:
                self.plan.layouts[node.result] = node.options[option].writes

    def _layer(self, var: relax.Var, value: relax.Expr) -> bool:
        workload = workload_of(value)
        if workload is None or not workload.images:
            return False
        if (value.attrs.data_layout, value.attrs.out_layout) != (NCHW, NCHW):
            return False
        choices = self.others.get(var, self.strategy).options(workload)
        if var in self.others:
            choices = tuple(map(_of_small_results, choices))
        if not choices:
            return False
        options = tuple(
            Option(c.config.data_layout, c.config.out_layout, c.seconds) for c in choices
        )
        self.options[var] = choices
        self._node(var, (value.args[0],), options)
        return True

    def _follower(self, var: relax.Var, value: relax.Expr) -> bool:
        if not isinstance(value, relax.Call):
            return False
        if is_flattening(value):
            reads = self._layouts([value.args[0]])
            self._node(var, (value.args[0],), tuple(Option(layout, NCHW) for layout in reads))
            return True
        images = image_inputs(value)
        if images is None:
            return False
        options = tuple(
            Option(layout, layout, self._seconds(var, value, layout))
            for layout in self._layouts([*images, value])
            if may_lie(value, layout)
        )
        self._node(var, tuple(i for i in images if isinstance(i, relax.Var)), options)
        return True

    def _node(
        self, result: Hashable, inputs: tuple[Hashable, ...], options: tuple[Option, ...]
    ) -> None:
        self.known.add(result)
        moving = self._moving(result) if _is_image_var(result) else 0.0
        self.nodes.append(Node(result, inputs, options, moving))

    def _layouts(self, images: list[relax.Expr]) -> Iterator[Layout]:
        """Yield the layouts that all of some images can have, the usual one first."""
        lanes = self.strategy.core.lanes(dtype_name(images[0]))
        if all(static_shape(image)[1] % lanes == 0 for image in images):
            yield Layout.blocked(lanes)
        yield NHWC
        yield NCHW

    def _seconds(self, var: relax.Var, call: relax.Call, layout: Layout) -> float:
        """Return the time that an operator takes more than in its best layout."""
        name, images = op_name(call), static_shape(call)[0]
        if name == "relax.concat" and (layout == NHWC or images > 1):
            return 0.0 if var in self.joined else self._moving(call)
        if is_fold(call):
            return RESHAPE_SECONDS if layout == NHWC else self._moving(call)
        if layout != NCHW:
            return 0.0
        # Neighbours in a row of NCHW do not fill vectors when the window moves by two.
        return self._moving(call.args[0]) if name in POOLS else _BEHIND_A_TRANSFORM_SECONDS

    def _moving(self, image: relax.Expr) -> float:
        """Return the time of a transform: little where all layouts are the same in memory."""
        n, c, h, w = static_shape(image)
        if h == w == 1 or c == 1:
            return RESHAPE_SECONDS
        elements = math.prod((n, c, h, w))
        strategy = self.strategy
        return transform_seconds(elements, strategy.core, strategy.threads, dtype_name(image))


def _is_image_var(value: Hashable) -> bool:
    return isinstance(value, relax.Var) and is_image(value)


def _variables(value: relax.Expr) -> list[relax.Var]:
    found: dict[relax.Var, None] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var):
            found[expr] = None

    relax.analysis.post_order_visit(value, visit)
    return list(found)
