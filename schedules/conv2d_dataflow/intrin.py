"""The TensorIntrin of one pass over a slab: plain semantics, and the program of a dataflow."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.cost_models.conv2d_dataflow.anchors import program
from tvm_blislike.cost_models.conv2d_dataflow.config import INPUT, OUTPUT, WEIGHT, DataflowConfig
from tvm_blislike.cost_models.conv2d_dataflow.program import Columns, Rows, Sizes, Step
from tvm_blislike.microkernels import Microkernel, get_kernel
from tvm_blislike.microkernels.operands import Operand
from tvm_blislike.schedules.conv2d_dataflow.registers import Registers, iterations

# What `_register` calls an intrinsic: its micro-kernel, and the numbers of `_Key`.
_NAME = re.compile(r"blislike_dataflow_(?P<kernel>\w+?x\d+(?:x\d+)?)(?P<numbers>(?:_\d+){15})")
_ANCHORS = (OUTPUT, WEIGHT, INPUT)


def pass_intrin(kernel: Microkernel, sizes: Sizes, config: DataflowConfig) -> str:
    """Register the TensorIntrin of a pass; return its name for `Schedule.tensorize`.

    C is (rows, columns, nr), A (input rows, input columns, channels * ks), planar (channels, input
    rows, input columns), B (kh, kw, channels, nr * ks).
    """
    s, c = sizes, config
    window = s.rows, s.columns, s.kh, s.kw, s.channels, *s.stride, *s.dilation
    kept = c.weights, c.inputs, c.outputs, c.unroll
    planar = c.data_layout == "NCHW"
    return _register(kernel, (*window, _ANCHORS.index(c.anchor), *kept, int(planar)))


def register_named(name: str) -> None:
    """Register the TensorIntrin of that name, if it is one of a pass.

    Raises
    ------
    KeyError
        When no list offers its micro-kernel.
    """
    if found := _NAME.fullmatch(name):
        numbers = tuple(int(number) for number in found["numbers"].split("_")[1:])
        _register(get_kernel(found["kernel"]), numbers)


@functools.cache
def _register(kernel: Microkernel, numbers: tuple[int, ...]) -> str:
    name = "_".join(["blislike_dataflow", kernel.name, *map(str, numbers)])
    rows, columns, kh, kw, channels, sh, sw, dh, dw, anchor, *kept, planar = numbers
    sizes = Sizes(rows, columns, kh, kw, channels, (sh, sw), (dh, dw))
    weights, inputs, outputs, unroll = kept
    config = DataflowConfig(
        nr=kernel.nr,
        ks=kernel.ks,
        data_layout="NCHW" if planar else "NHWC",
        anchor=_ANCHORS[anchor],
        weights=weights,
        inputs=inputs,
        outputs=outputs,
        unroll=unroll,
    )
    desc, impl = (_Pass(kernel, sizes, config).function(symbolic) for symbolic in (False, True))
    TensorIntrin.register(name, desc, impl, override=True)
    return name


class _Pass:
    """Builds the functions of one pass."""

    def __init__(self, kernel: Microkernel, sizes: Sizes, config: DataflowConfig) -> None:
        self._kernel, self._sizes, self._config = kernel, sizes, config

    def function(self, symbolic: bool) -> tirx.PrimFunc:
        """Return the plain semantics, or the program on operands of any strides."""
        kernel, s, c = self._kernel, self._sizes, self._config
        depth = s.channels * c.ks
        shape = (depth, *s.inputs) if c.data_layout == "NCHW" else (*s.inputs, depth)
        with IRBuilder() as builder:
            with T.prim_func(s_tir=True):
                T.func_name("main")
                self._a = Operand(shape, kernel.types.a, contiguous=not symbolic)
                taps = (s.kh, s.kw, s.channels)
                self._b = Operand((*taps, c.nr * c.ks), kernel.types.b, True)
                self._c = Operand((s.rows, s.columns, c.nr), kernel.types.acc, True)
                with T.sblock("root"):
                    T.reads(self._c.region(), self._a.region(), self._b.region())
                    T.writes(self._c.region())
                    self._program() if symbolic else self._plain()
        return builder.get()

    def _plain(self) -> None:
        """One scalar multiply-add, axes in the order (y, x, j, ry, rx, group, s)."""
        s, c, types = self._sizes, self._config, self._kernel.types
        extents = (s.rows, s.columns, c.nr, s.kh, s.kw, s.channels, c.ks)
        kept = [axis for axis, extent in enumerate(extents) if extent != 1]
        with T.grid(*(extents[axis] for axis in kept)) as loops:
            loops = [loops] if len(kept) == 1 else list(loops)
            with T.sblock("update"):
                v: list[Any] = [0] * len(extents)
                for axis, loop in zip(kept, loops, strict=True):
                    make = T.axis.reduce if axis >= 3 else T.axis.spatial
                    v[axis] = make(extents[axis], loop)
                y, x, j, ry, rx, group, step = v
                at_c, at_a = self._c.at(y, x, j), self._at_a(y, x, (ry, rx, group), step)
                left = self._a.buffer[at_a]
                right = self._b.buffer[self._b.at(ry, rx, group, j * c.ks + step)]
                if types.product != (types.acc,) * 3:
                    left, right = tirx.Cast(types.acc, left), tirx.Cast(types.acc, right)
                T.buffer_store(self._c.buffer, self._c.buffer[at_c] + left * right, at_c)

    def _at_a(self, y: Any, x: Any, tap: tuple[Any, Any, Any], step: Any = 0) -> list[Any]:
        (sh, sw), (dh, dw) = self._sizes.stride, self._sizes.dilation
        ry, rx, group = tap
        return self._at_pixel(y * sh + ry * dh, x * sw + rx * dw, group * self._config.ks + step)

    def _at_pixel(self, y: Any, x: Any, channel: Any) -> list[Any]:
        planar = self._config.data_layout == "NCHW"
        return self._a.at(channel, y, x) if planar else self._a.at(y, x, channel)

    # --- the program ---------------------------------------------------------------------------

    def _program(self) -> None:
        kernel, c = self._kernel, self._config
        rows = program(self._sizes, c)
        self._weights = Registers(c.nr * c.ks, kernel.types.b)
        self._inputs = Registers(1, kernel.group_type)
        self._outputs = Registers(c.nr, kernel.types.acc)
        for part in rows:
            self._declare(part)
        for part in rows:
            self._rows(part)

    def _declare(self, rows: Rows) -> None:
        """Registers are buffers of their own, of the whole program."""
        for number, _ in enumerate(rows.weights):
            self._weights.declare(number)
        for number, _ in enumerate(rows.inputs):
            self._inputs.declare(number)
        for number, _ in enumerate(rows.outputs):
            self._outputs.declare(number)
        for step in (step for columns in rows.columns for step in columns.steps):
            self._outputs.declare(step.out.register)
            self._inputs.declare(step.data.register)

    def _rows(self, rows: Rows) -> None:
        for number, tap in enumerate(rows.weights):
            for part in self._parts():
                self._weights.put(number, self._elements(tap, part), self._wide(part))
        for number, (y, x, group) in enumerate(rows.inputs):
            self._inputs.put(number, self._load_input(self._pixel(y, x, group)), 0)
        for number, (y, x) in enumerate(rows.outputs):
            for part in self._parts():
                self._outputs.put(number, self._c.buffer[self._c.at(y, x, part)], part)
        for y in iterations(rows.first, rows.count):
            for columns in rows.columns:
                self._columns(y, columns)
        for number, (y, x) in enumerate(rows.stored):
            for part in self._parts():
                value = self._outputs.get(number, part)
                T.buffer_store(self._c.buffer, value, self._c.at(y, x, part))

    def _columns(self, y: Any, columns: Columns) -> None:
        for chunk in iterations(columns.first, columns.count):
            for step in columns.steps:
                self._step(y + step.y, chunk * self._config.unroll + step.x, step)

    def _step(self, y: Any, x: Any, step: Step) -> None:
        kernel, out = self._kernel, step.out
        (sh, sw), (dh, dw) = self._sizes.stride, self._sizes.dilation
        ry, rx, group = step.tap
        pixel = self._pixel(y * sh + ry * dh, x * sw + rx * dw, group)
        if step.data.load:
            self._inputs.put(step.data.register, self._load_input(pixel), 0)
        kept = step.data.register >= 0
        data = self._inputs.get(step.data.register, 0) if kept else self._load_input(pixel)
        for part in self._parts():
            in_memory = self._c.at(y, x, part)
            sums = self._c.buffer[in_memory]
            if out.register >= 0 and not out.load:
                sums = self._outputs.get(out.register, part)
            weight = self._weight(step, part)
            sums = kernel.product.multiply_add(sums, data, weight, kernel.lanes)
            if out.register >= 0:
                self._outputs.put(out.register, sums, part)
                sums = self._outputs.get(out.register, part)
            if out.register < 0 or out.store:
                T.buffer_store(self._c.buffer, sums, in_memory)

    def _weight(self, step: Step, part: Any) -> Any:
        elements = self._elements(step.tap, part)
        if step.weight.register >= 0:
            elements = self._weights.get(step.weight.register, self._wide(part))
        return self._kernel.product.load(elements, self._kernel.lanes)

    def _elements(self, tap: tuple[int, int, int], part: Any) -> Any:
        """Weights as they lie in memory."""
        return self._b.buffer[self._b.at(*tap, self._wide(part))]

    def _load_input(self, at: list[Any]) -> Any:
        return self._kernel.product.load(self._a.buffer[at], 1)

    def _pixel(self, y: Any, x: Any, group: int) -> list[Any]:
        """Index of a group of channels."""
        ks = self._config.ks
        first = group * ks
        return self._at_pixel(y, x, T.ramp(first, 1, ks) if ks > 1 else first)

    def _parts(self) -> Iterator[Any]:
        """Vectors of a variable of outputs."""
        lanes = self._kernel.lanes
        for first in range(0, self._config.nr, lanes):
            yield T.ramp(first, 1, lanes)

    def _wide(self, part: Any) -> Any:
        """The vector of weights that belongs to one of outputs."""
        ks = self._config.ks
        return T.ramp(part.base * ks, 1, self._kernel.lanes * ks)
