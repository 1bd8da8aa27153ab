"""Sizes that follow from open ones, margins and choices of kernels of a canvas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from relax_graphs import graph
from tvm import relax, te, tirx, topi

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.errors import SizesMeetError
from tvm_blislike.hardware import Core
from tvm_blislike.model.canvas import EDGE, ZERO, Margin, OnCanvas
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.passes.canvas.axes import OpenAxes, OpenKernel
from tvm_blislike.passes.canvas.choices import suited
from tvm_blislike.passes.canvas.conditions import require_in_place
from tvm_blislike.passes.canvas.extents import Clash, Extents, OpenSize, enter_extents
from tvm_blislike.passes.canvas.margins import Beyond, joined
from tvm_blislike.passes.plan import Plan
from tvm_blislike.schedules.lowering.rewrite import innermost

_SIZES = (OpenSize("height", 0, 1), OpenSize("width", 0, 1))
_PAIRS = {(67, 83), (34, 42), (67, 1), (1, 83)}
_SAMPLES = ((67, 83), (51, 59), (20, 33))


def entered(make, samples=_SAMPLES) -> list[dict[int, str]]:
    """Return the extents of a model as texts, by their numbers on the canvas."""
    extents = Extents(_SIZES, samples)
    enter_extents([make(sample) for sample in samples], extents)
    variables = [tirx.Var(size.name, "int64") for size in _SIZES]
    return [
        {at: str(extent).replace("T.int64(", "").replace(")", "") for at, extent in found.items()}
        for found in extents.by_number(variables)
    ]


def weights() -> relax.Expr:
    return relax.const(np.ones((8, 3, 3, 3), "float32"))


def test_extents_follow_from_strides_and_padding() -> None:
    def make(size: tuple[int, int]) -> tvm.IRModule:
        def body(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
            half = builder.emit(relax.op.nn.conv2d(x, weights(), strides=2, padding=1))
            return relax.op.nn.max_pool2d(half, (3, 3), strides=(2, 2))

        return graph(body, (1, 3, *size))

    heights, widths = entered(make)
    assert list(heights) == [67, 34, 16]
    assert list(widths) == [83, 42, 20]
    assert heights[67] == "height"


def test_one_number_of_two_extents_is_a_clash() -> None:
    def make(size: tuple[int, int]) -> tvm.IRModule:
        """Images of 66 rows have 33 both ways, those of 67 rows 34 and 33."""

        def body(builder: relax.BlockBuilder, x: relax.Expr) -> tuple[relax.Expr, ...]:
            up = relax.op.nn.conv2d(x, weights(), strides=2, padding=1)
            down = relax.op.nn.conv2d(x, weights(), strides=2, padding=(0, 0, 1, 1))
            return builder.emit(up), builder.emit(down)

        return graph(body, (1, 3, *size))

    with pytest.raises(Clash, match="33 would stand for"):
        entered(make, ((66, 84), (51, 59), (21, 33)))
    heights, _ = entered(make)
    assert list(heights) == [67, 34, 33]


@pytest.mark.parametrize(
    "shape, found",
    [
        ((1, 16, 67, 83), {2: (0, 67), 3: (1, 83)}),
        ((1, 67, 83, 16), {1: (0, 67), 2: (1, 83)}),
        ((1, 4, 67, 83, 16), {2: (0, 67), 3: (1, 83)}),
        ((1, 16, 67, 1), {2: (0, 67)}),
        ((1, 67, 1, 1), {1: (0, 67)}),
        ((1, 1000), {}),
        ((1, 1, 1, 42), {}),
        ((1, 34, 1, 1), {}),
    ],
)
def test_where_height_and_width_stand(shape: tuple[int, ...], found: dict) -> None:
    assert OpenAxes(_numbers({67, 34}, {83, 42}), (1, 0), _PAIRS).of(shape) == found


@pytest.mark.parametrize("shape", [(1, 67, 67, 83), (1, 67), (1, 4, 12, 34, 83)])
def test_what_may_stand_elsewhere_is_a_clash(shape: tuple[int, ...]) -> None:
    with pytest.raises(Clash):
        OpenAxes(_numbers({67, 34}, {83, 67, 42}), (1, 0), _PAIRS).of(shape)


def test_axes_of_what_is_no_tensor_of_the_model() -> None:
    axes = OpenAxes(_numbers({64, 16, 8}, {72, 18, 9}), (1, 0), {(64, 72), (16, 18), (8, 9)})
    assert axes.by_number((1, 30, 18, 20, 16)) == {}
    assert axes.by_number((1, 18, 16, 18)) == {2: (0, 16), 3: (1, 18)}
    assert axes.by_number((1, 16, 9)) == {1: (0, 16), 2: (1, 9)}


def _numbers(*canvas: set[int]) -> list[dict[int, tuple[int, ...]]]:
    return [{number: (number, number // 2) for number in found} for found in canvas]


def test_blocks_of_channels_are_no_rows_of_an_image() -> None:
    """As many of them as an image has rows: what divides them is no padding."""

    def joined_channels(shape: tuple[int, ...], other: tuple[int, ...]) -> tirx.PrimFunc:
        x, y = te.placeholder(shape, name="x"), te.placeholder(other, name="y")
        return te.create_prim_func([x, y, topi.concatenate([x, y], 1)])

    axes = OpenAxes(_numbers({64, 8}, {72, 9}), (1, 0), {(64, 72), (8, 9)})

    def opened(func: tirx.PrimFunc) -> OpenKernel:
        shapes = [[int(size) for size in param.shape] for param in func.params]
        return OpenKernel(func, [axes.of(shape) for shape in shapes], axes)

    blocked = joined_channels((1, 6, 64, 72, 16), (1, 2, 64, 72, 16))
    kernel = opened(blocked)
    require_in_place(kernel, "concatenate")
    (block,) = innermost(blocked)
    along = [each.var for each in block.iter_vars]
    assert kernel.variables(block) == {along[2]: 0, along[3]: 1}
    rows = te.placeholder((1, 16, 62, 72), name="x")
    padded = te.create_prim_func([rows, topi.nn.pad(rows, (0, 0, 1, 0), (0, 0, 1, 0), 5.0)])
    with pytest.raises(SizesMeetError, match="other numbers than zeros"):
        require_in_place(opened(padded), "pad")


def test_margins_of_several_readers_join() -> None:
    assert joined([Beyond(1, 1), Beyond(2, 0)]) == Beyond(2, 1)
    assert joined([]) is None
    with pytest.raises(SizesMeetError, match="edge and zero"):
        joined([Beyond(1, 1, ZERO), Beyond(1, 1, EDGE)])


def test_what_a_kernel_knows_is_written_and_read() -> None:
    canvas = OnCanvas(1, ({2: 0, 3: 1}, {}, {2: 2}), (None, None, Margin({2: 3}, EDGE)), 12)
    assert OnCanvas.from_json(canvas.to_json()) == canvas


def test_weights_are_those_that_smaller_images_want_too() -> None:
    """F(6, 3) has four times the weights of F(2, 3), which is most of what few pixels take."""
    core = Core.named("zen4")
    strategy = Strategy(core, 1)
    canvas = Conv2dWorkload(1, 512, 32, 36, 512, 3, 3, padding=(1, 1, 1, 1))
    middle = replace(canvas, h=8, w=8)
    plan = Plan(core, 1, {relax.Var("y", relax.TensorType(ndim=4)): strategy.choose(middle)})
    alone = strategy.choose(canvas).config
    chosen = suited(strategy, plan, [{32: (8, 2)}, {36: (8, 2)}], (1, 0))
    both = chosen.choose(canvas).config
    assert both.implementation == strategy.choose(middle).config.implementation
    assert (both.tile_h, both.tile_w) < (alone.tile_h, alone.tile_w)
    assert (
        chosen.choose(replace(canvas, h=40, w=44)).config
        == strategy.choose(replace(canvas, h=40, w=44)).config
    )
