"""Choices for images of many sizes: what suits one in the middle of the range, and its ends.

On a canvas alone F(6, 3) is fastest, whose weights are four times those of F(2, 3): of an image of
a quarter of its width and height they take most of the time. So the algorithm and the layouts of a
layer are those that an image in the middle of the range would have, and of their configurations the
one is taken that is fast for the largest, that and the smallest, by the weighted geometric mean of
the predicted times. ResNet-18 from 64x64 to 256x256, one thread on Zen 4, as a part of the speed of
a library for that size, while other work ran:

    pixels    fastest on the canvas    for the middle    for the three, weights 1
    64        0.19                     0.31              0.59
    160       0.58                     0.85              0.85
    256       0.61                     0.88              0.80
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Workload
from tvm_blislike.passes.canvas.margins import may_be_on_canvas
from tvm_blislike.passes.plan import Plan

# What the times of the largest image, one in the middle and the smallest count for.
_WEIGHTS = (2, 2, 1)
# A number of the canvas to those of other sizes.
Numbers = Mapping[int, Sequence[int]]


def suited(
    strategy: Strategy, middle: Plan, numbers: Sequence[Numbers], kinds: Sequence[int]
) -> Strategy:
    """Return a strategy that chooses for a canvas what suits smaller images as well.

    Parameters
    ----------
    middle : Plan
        What is chosen for an image in the middle.
    numbers : sequence of mapping
        For each open size, numbers of the canvas to those in the middle and at the smallest size.
    kinds : sequence of int
        Whether it is a height, 1, or a width, 0.
    """
    chosen = {choice.workload: choice for choice in middle.choices.values()}
    by_kind = dict(zip(kinds, numbers, strict=True))

    def override(workload: Workload) -> Config | None:
        asked = None if strategy.override is None else strategy.override(workload)
        if asked is not None:
            return asked
        sizes = [
            _smaller(workload, by_kind.get(1, {}), by_kind.get(0, {}), number)
            for number in range(2)
        ]
        choice = chosen.get(sizes[0])
        if choice is None or not may_be_on_canvas(choice.implementation):
            return None
        return _for_all(strategy, (workload, *sizes), choice)

    return strategy.overruled(override)


def _smaller(workload: Workload, heights: Numbers, widths: Numbers, number: int) -> Workload | None:
    """Return the layer of a smaller image; None for what has no image of open size."""
    h, w = getattr(workload, "h", 0), getattr(workload, "w", 0)
    if h not in heights and w not in widths:
        return None
    return replace(workload, h=heights.get(h, (h, h))[number], w=widths.get(w, (w, w))[number])


def _for_all(strategy: Strategy, sizes: Sequence[Workload], choice: Choice) -> Config | None:
    """Return the configuration of a choice's algorithm and layouts that is fast for all sizes."""
    implementation, largest = choice.implementation, sizes[0]
    alike = _alike(strategy, largest, choice)
    exact = [c for c in alike if implementation.leaves_out_tiles(c)] or alike
    allowed = [c for c in exact if strategy.allows(largest, c)]
    if not allowed:
        return None
    smaller = [_fastest(strategy, workload, choice) for workload in sizes[1:]]

    def seconds(config: Config) -> float:
        key, time = _kept(config), strategy.seconds(largest, config)
        # A block of tiles that an image does not fill is as good as one of its own size.
        others = [known.get(key, time) for known in smaller]
        return math.prod(of**weight for of, weight in zip([time, *others], _WEIGHTS, strict=True))

    return min(allowed, key=seconds)


def _fastest(strategy: Strategy, workload: Workload, choice: Choice) -> dict[Hashable, float]:
    """Return the seconds of the fastest blocks of each register block and tile for a size."""
    found: dict[Hashable, float] = {}
    for config in _alike(strategy, workload, choice):
        key, seconds = _kept(config), strategy.seconds(workload, config)
        found[key] = min(seconds, found.get(key, seconds))
    return found


def _alike(strategy: Strategy, workload: Workload, choice: Choice) -> list[Config]:
    """Return the configurations for a size of the algorithm and layouts of a choice."""
    implementation, core = choice.implementation, strategy.core
    every = list(implementation.configs(workload, core, strategy.threads))
    every += [other for config in every for other in implementation.relaid(workload, config, core)]
    return [c for c in dict.fromkeys(every) if _layouts(c) == _layouts(choice.config)]


def _kept(config: Config) -> Hashable:
    """Return what of a configuration is the same at all sizes."""
    mixed = (config.tile_h, config.tile_w, config.mr) if hasattr(config, "mc") else ()
    return config.nr, *mixed


def _layouts(config: Config) -> tuple[str, str]:
    return getattr(config, "data_layout", ""), getattr(config, "out_layout", "")
