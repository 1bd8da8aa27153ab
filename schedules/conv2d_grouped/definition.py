"""Convolution of groups of few channels: the lanes of a vector belong to several groups.

    out[n, g, o, y, x] =
        sum_{i, ry, rx} in[n, g, i, y * stride + ry, x * stride + rx] * w[g, o, i, ry, rx]

With 4 or 8 channels per group, a micro-kernel that computes one group at a time leaves most of a
vector's lanes empty. Here a vector holds the outputs of nr / co_group groups, and step i of the
sum multiplies each lane by channel i of its own group: a permutation of the pixel's vector, which
serves all outputs that read this pixel. So the sum is that of a depthwise convolution, ci_group
times, and everything else is as in `conv2d_depthwise`: tiles, borders, orders.

A block-diagonal matrix of the same groups would do without the permutation, and multiply by zeros
nr / co_group - 1 times out of nr / co_group.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tvm_blislike.cost_models.conv2d_depthwise.candidates import configs
from tvm_blislike.cost_models.conv2d_depthwise.space import space
from tvm_blislike.cost_models.conv2d_grouped.candidates import applies
from tvm_blislike.cost_models.conv2d_grouped.config import GroupedConfig
from tvm_blislike.schedules.conv2d_depthwise import definition as conv2d_depthwise

IMPLEMENTATION = replace(
    conv2d_depthwise.IMPLEMENTATION,
    name="conv2d_grouped",
    config_type=GroupedConfig,
    applies=applies,
    configs=partial(configs, config_type=GroupedConfig),
    # The lanes of a vector belong to several groups, in blocks only.
    relaid=lambda *_: (),
    every=partial(space, config_type=GroupedConfig, relaid=False),
)
