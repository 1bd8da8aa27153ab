"""Choices for images of many sizes: what suits one in the middle of the range, and the largest.

On a canvas alone F(6, 3) is fastest, whose weights are four times those of F(2, 3): of an image of
a quarter of its width and height they take most of the time. So the algorithm and the layouts of a
layer are those that an image in the middle of the range would have, and of their configurations the
one is taken that is fast for both, by the geometric mean of the predicted times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import tvm

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Workload
from tvm_blislike.passes.canvas.margins import may_be_on_canvas
from tvm_blislike.passes.plan import Plan

Choose = Callable[[tvm.IRModule, Strategy], Plan]


def suited(
    strategy: Strategy, middle: Plan, numbers: Sequence[Mapping[int, int]], kinds: Sequence[int]
) -> Strategy:
    """Return a strategy that chooses for a canvas what suits smaller images as well.

    Parameters
    ----------
    middle : Plan
        What is chosen for an image in the middle.
    numbers : sequence of mapping
        For each open size, numbers of the canvas to those in the middle.
    kinds : sequence of int
        Whether it is a height, 1, or a width, 0.
    """
    chosen = {choice.workload: choice for choice in middle.choices.values()}
    by_kind = dict(zip(kinds, numbers, strict=True))

    def override(workload: Workload) -> Config | None:
        asked = None if strategy.override is None else strategy.override(workload)
        if asked is not None:
            return asked
        smaller = _in_the_middle(workload, by_kind.get(1, {}), by_kind.get(0, {}))
        choice = chosen.get(smaller)
        if choice is None or not may_be_on_canvas(choice.implementation):
            return None
        return _for_both(strategy, workload, choice)

    return strategy.overruled(override)


def _in_the_middle(
    workload: Workload, heights: Mapping[int, int], widths: Mapping[int, int]
) -> Workload | None:
    """Return the layer of a smaller image; None for what has no image of open size."""
    h, w = getattr(workload, "h", 0), getattr(workload, "w", 0)
    if h not in heights and w not in widths:
        return None
    return replace(workload, h=heights.get(h, h), w=widths.get(w, w))


def _for_both(strategy: Strategy, workload: Workload, choice: Choice) -> Config | None:
    """Return the configuration of a choice's algorithm and layouts that is fast for both images."""
    implementation, core = choice.implementation, strategy.core
    every = [
        *implementation.configs(workload, core, strategy.threads),
        *(
            other
            for config in implementation.configs(workload, core, strategy.threads)
            for other in implementation.relaid(workload, config, core)
        ),
    ]
    alike = [c for c in dict.fromkeys(every) if _layouts(c) == _layouts(choice.config)]
    exact = [c for c in alike if implementation.leaves_out_tiles(c)] or alike
    allowed = [c for c in exact if strategy.allows(workload, c)]
    if not allowed:
        return None

    def seconds(config: Config) -> float:
        times = (strategy.seconds(each, config) for each in (workload, choice.workload))
        return math.prod(times)

    return min(allowed, key=seconds)


def _layouts(config: Config) -> tuple[str, str]:
    return getattr(config, "data_layout", ""), getattr(config, "out_layout", "")
