"""Every option that the choice over a graph may take computes the same in its layouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from relax_graphs import execute, graph, random
from tvm import relax
from tvm.relax import op

from tvm_blislike import Config, Conv2dWorkload, native_core
from tvm_blislike.choose.constraints import Constraints, parse_pin
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Workload
from tvm_blislike.pipeline import compile_module

CORE = native_core()
LANES = CORE.lanes("float32")
SAME = (1, 1, 1, 1)
CONVOLUTIONS = {
    "3x3": Conv2dWorkload(1, 32, 9, 11, 48, 3, 3, padding=SAME),
    "1x1": Conv2dWorkload(2, 64, 7, 5, 32, 1, 1),
    "stride and dilation": Conv2dWorkload(1, 16, 13, 12, 32, 3, 3, (2, 1), (0, 2, 1, 1), (1, 2)),
    "first": Conv2dWorkload(1, 3, 12, 13, 32, 3, 3, (2, 2), SAME),
    "uneven": Conv2dWorkload(1, 24, 8, 8, 57, 3, 3, padding=SAME),
    "groups": Conv2dWorkload(1, 64, 8, 9, 96, 3, 3, padding=SAME, groups=2),
    "depthwise": Conv2dWorkload(1, 32, 10, 9, 32, 5, 3, (1, 2), (2, 1, 2, 1), groups=32),
    "pairs": Conv2dWorkload(1, 32, 9, 9, 32, 3, 3, padding=SAME, groups=16),
}

# Beside Winograd, which is so much faster, nothing else is an option.
DIRECT = Constraints(without=("conv2d_winograd", "conv2d_winograd_1d"))


def network(workload: Conv2dWorkload) -> Callable[..., relax.Expr]:
    """Put a bias and an activation behind a convolution."""
    w = workload
    weights = random(w.co, w.ci // w.groups, w.kh, w.kw)

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = op.nn.conv2d(x, relax.const(weights), w.stride, w.padding, w.dilation, w.groups)
        biased = b.emit(op.add(b.emit(y), relax.const(random(1, w.co, 1, 1))))
        return op.nn.relu(biased)

    return function


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_option_computes_the_same(name: str, threads: int) -> None:
    workload = CONVOLUTIONS[name]
    mod = graph(network(workload), (workload.n, workload.ci, workload.h, workload.w))
    image = random(workload.n, workload.ci, workload.h, workload.w)
    (expected,) = execute(tvm.compile(mod, tvm.target.Target("llvm")), [image])
    options = [
        option
        for limits in (Constraints(), DIRECT)
        for option in Strategy(CORE, threads, constraints=limits).options(workload)
    ]
    for option in {option.config: option for option in options}.values():

        def override(_workload: Workload, config: Config = option.config) -> Config:
            return config

        (actual,) = execute(compile_module(mod, Strategy(CORE, threads, override))[0], [image])
        scale = np.abs(expected).max()
        assert np.abs(actual - expected).max() <= 2e-5 * scale, option.config


@pytest.mark.parametrize("name", ["3x3", "1x1", "depthwise"])
def test_whole_vectors_of_channels_may_lie_in_either_layout(name: str) -> None:
    options = Strategy(CORE, 1, constraints=DIRECT).options(CONVOLUTIONS[name])
    pairs = [option.layouts for option in options]
    assert len(set(pairs)) == len(pairs)
    assert ("NHWC", "NHWC") in pairs
    assert any(Layout(data).block and Layout(out).block for data, out in pairs)


def test_the_first_option_is_the_choice_and_the_others_are_no_faster_in_their_layouts() -> None:
    strategy = Strategy(CORE, 1)
    for workload in CONVOLUTIONS.values():
        chosen, *others = strategy.options(workload)
        assert chosen is strategy.choose(workload)
        for other in others:
            assert other.seconds >= chosen.seconds


def test_what_the_user_decides_has_no_other_options() -> None:
    workload = CONVOLUTIONS["3x3"]
    pin = parse_pin("conv*=conv2d_direct")
    (only,) = Strategy(CORE, 1, constraints=Constraints(pins=(pin,))).options(workload)
    assert (only.reason, only.config.implementation) == ("pinned", "conv2d_direct")


def test_limits_hold_for_every_option() -> None:
    workload = dataclasses.replace(CONVOLUTIONS["3x3"], padding=(0, 0, 0, 0))
    strict = Constraints(max_error=0.0, without=("conv2d_im2col",))
    names = {
        o.config.implementation for o in Strategy(CORE, 1, constraints=strict).options(workload)
    }
    assert names == {"conv2d_direct"}


def test_nothing_applies_and_nothing_is_offered() -> None:
    assert (
        Strategy(CORE, 1).options(dataclasses.replace(CONVOLUTIONS["1x1"], types=Types.of("int8")))
        == ()
    )
