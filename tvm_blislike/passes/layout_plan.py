"""Decide over a whole function in which layout each image lies and how each layer is computed.

A convolution reads and writes the layouts of its configuration. Elementwise operators, pooling,
spatial means, concatenation, padding and slicing are computed in any layout, the same for input
and result; any other operator reads and writes NCHW. `layout_choice` finds the options that take
least time together, transforms between them included.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from tvm import relax

from tvm_blislike.choose.layout_choice import Node, Option, choose_options
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.transforms import RESHAPE_SECONDS, transform_seconds
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.layouts import NCHW, NHWC, Layout
from tvm_blislike.passes.workloads import conv2d_workload
from tvm_blislike.tvm_seams import (
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
)

UNARY = {
    f"relax.{name}"
    for name in (
        "nn.relu nn.silu nn.gelu nn.leakyrelu nn.softplus sigmoid tanh exp log sqrt rsqrt abs "
        "negative clip square floor ceil round erf"
    ).split()
}
BINARY = {f"relax.{name}" for name in "add subtract multiply divide maximum minimum power".split()}
POOLS = {"relax.nn.max_pool2d", "relax.nn.avg_pool2d"}
REDUCTIONS = {"relax.mean", "relax.sum", "relax.max", "relax.min"}
_MOVES = {"relax.strided_slice", "relax.nn.pad", "relax.layout_transform", "relax.reshape"}
_FLATTENINGS = {"relax.reshape", "relax.squeeze", "relax.flatten"}


@dataclass
class Plan:
    """What was decided for one function.

    Parameters
    ----------
    choices : dict
        Result of each convolution to its choice.
    layouts : dict
        Result of every other operator on images to the layout in which it is computed.
    """

    choices: dict[relax.Var, Choice] = field(default_factory=dict)
    layouts: dict[relax.Var, Layout] = field(default_factory=dict)


def plan_layouts(func: relax.Function, strategy: Strategy) -> Plan:
    """Return the plan of smallest predicted time for a function.

    Parameters
    ----------
    func : relax.Function
        Images in NCHW.
    strategy : Strategy
        Knows the options of each convolution.

    Returns
    -------
    Plan
        Only what lies in dataflow blocks is planned.
    """
    graph = _Graph(strategy)
    for block in func.body.blocks if isinstance(func.body, relax.SeqExpr) else []:
        if isinstance(block, relax.DataflowBlock):
            for binding in block.bindings:
                graph.add(binding)
    return graph.planned()


def image_inputs(call: relax.Call) -> list[relax.Expr] | None:
    """Return the operands that must have the layout of the result; None where NCHW is the only one.

    Parameters
    ----------
    call : relax.Call
        An operator other than a convolution, on NCHW.
    """
    name = op_name(call)
    if not _is_image(call):
        return None
    if name in BINARY:
        return _operands(call)
    if name == "relax.concat":
        parts = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
        usable = all(map(_is_image, parts)) and int(call.attrs.axis or 0) % 4 in (0, 1)
        return parts if parts and usable else None
    if not call.args or not _is_image(call.args[0]) or is_constant(call.args[0]):
        return None
    if name in UNARY or name in POOLS:
        return [call.args[0]]
    if name in REDUCTIONS:
        axes = sorted(int(axis) % 4 for axis in call.attrs.axis) if call.attrs.axis else []
        return [call.args[0]] if axes == [2, 3] and call.attrs.keepdims else None
    return [call.args[0]] if name in _MOVES and _moves_within_channels(call) else None


def is_flattening(call: relax.Expr) -> bool:
    """Whether a call makes a vector of a 1x1 image, whatever the image's layout."""
    if op_name(call) not in _FLATTENINGS or static_shape(call) is None:
        return False
    shape = static_shape(call.args[0])
    return shape is not None and len(shape) == 4 and shape[2:] == (1, 1)


def _is_image(expr: relax.Expr) -> bool:
    shape = static_shape(expr)
    return shape is not None and len(shape) == 4


def _operands(call: relax.Call) -> list[relax.Expr] | None:
    """Return the images of an elementwise operator: all of its channels or a constant."""
    channels = static_shape(call)[1]
    images = []
    for arg in call.args:
        if is_constant(arg):
            shape = constant_array(arg).shape
            if len(shape) > 4 or (len(shape) > 2 and shape[-3] not in (1, channels)):
                return None
        elif not _is_image(arg) or static_shape(arg)[1] != channels:
            return None
        else:
            images.append(arg)
    return images or None


def _moves_within_channels(call: relax.Call) -> bool:
    """Whether a call leaves each pixel's channels together: `passes.moves` has it in any layout."""
    name, before, after = op_name(call), static_shape(call.args[0]), static_shape(call)
    if name == "relax.reshape":
        return before[:2] == after[:2]
    if name == "relax.strided_slice":
        return all(int(axis) % 4 != 1 for axis in call.args[1].fields)
    if name == "relax.nn.pad":
        width = [int(w) for w in call.attrs.pad_width]
        return width[2:4] == [0, 0]
    return True


class _Graph:
    """The operators of a function as nodes of `layout_choice`."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.nodes: list[Node] = []
        self.options: dict[relax.Var, tuple[Choice, ...]] = {}
        self.known: set[Hashable] = set()

    def add(self, binding: relax.Binding) -> None:
        """Add the node of one binding, and one for whoever reads its result elsewhere."""
        var, value = binding.var, binding.value
        for argument in _variables(value):
            if argument not in self.known and _is_image(argument):
                self._node(argument, (), (Option("", NCHW),))
        if not self._conv2d(var, value) and not self._follower(var, value):
            images = tuple(v for v in _variables(value) if v in self.known)
            self._node(var, images, (Option(NCHW, NCHW),))
        if not isinstance(var, relax.DataflowVar):
            self._node(("reader", var), (var,), (Option(NCHW, NCHW),))

    def planned(self) -> Plan:
        """Return the options that take least time."""
        taken = choose_options(self.nodes)
        plan = Plan()
        for node in self.nodes:
            option = taken[node.result]
            if node.result in self.options:
                plan.choices[node.result] = self.options[node.result][option]
            elif len(node.options) > 1:
                plan.layouts[node.result] = node.options[option].writes
        return plan

    def _conv2d(self, var: relax.Var, value: relax.Expr) -> bool:
        workload = conv2d_workload(value) if op_name(value) == "relax.nn.conv2d" else None
        if workload is None or value.attrs.data_layout != NCHW:
            return False
        choices = self.strategy.options(workload)
        if not choices or value.attrs.out_layout != NCHW:
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
            Option(layout, layout, self._seconds(value, layout))
            for layout in self._layouts([*images, value])
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

    def _seconds(self, call: relax.Call, layout: Layout) -> float:
        """Return the time that an operator takes more than in its best layout."""
        name, images = op_name(call), static_shape(call)[0]
        if name == "relax.concat" and (layout == NHWC or images > 1):
            return self._moving(call)
        # Neighbours in a row of NCHW do not fill vectors when the window moves by two.
        return self._moving(call.args[0]) if name in POOLS and layout == NCHW else 0.0

    def _moving(self, image: relax.Expr) -> float:
        """Return the time of a transform: little where all layouts are the same in memory."""
        n, c, h, w = static_shape(image)
        if h == w == 1 or c == 1:
            return RESHAPE_SECONDS
        elements = math.prod((n, c, h, w))
        strategy = self.strategy
        return transform_seconds(elements, strategy.core, strategy.threads, dtype_name(image))


def _is_image_var(value: Hashable) -> bool:
    return isinstance(value, relax.Var) and _is_image(value)


def _variables(value: relax.Expr) -> list[relax.Var]:
    found: dict[relax.Var, None] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var):
            found[expr] = None

    relax.analysis.post_order_visit(value, visit)
    return list(found)
