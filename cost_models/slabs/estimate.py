"""Predicted time of a depthwise and a 1x1 convolution that are computed slab by slab.

Each slab takes what its two layers take as images of their own, by one thread: the result of the
first and the data of the second lie in the caches that hold a slab. What is left of traffic is the
image, on its way once from where it lies, and the weights of the second layer, once for each slab.
Threads divide the slabs, of all images, and fork once.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tvm_blislike.cost_models.conv2d_depthwise import candidates as depthwise_candidates
from tvm_blislike.cost_models.conv2d_depthwise import estimate as depthwise
from tvm_blislike.cost_models.conv2d_depthwise.config import DepthwiseConfig
from tvm_blislike.cost_models.conv2d_direct import candidates as direct_candidates
from tvm_blislike.cost_models.conv2d_direct import estimate as direct
from tvm_blislike.cost_models.conv2d_direct.config import DirectConfig
from tvm_blislike.cost_models.roofline import (
    bytes_per_cycle,
    finish,
    fork_cycles,
    level_holding,
    placed,
    share_bytes,
)
from tvm_blislike.cost_models.slabs.config import SlabConfig
from tvm_blislike.cost_models.slabs.geometry import Slabs, slabs_of
from tvm_blislike.hardware import Core
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.pair import PairWorkload
from tvm_blislike.model.workload import Conv2dWorkload

# Slabs are of as many rows as fit into so many times L1. Golden Cove, 48 KiB and 2 MiB: slabs of 96
# KB are as fast as others or faster, single rows up to 8 % slower, and 384 KB up to 3 %.
L1_PARTS = 2.0
# Where images leave L2 slabs are taken unless they are predicted to take so many times as long:
# what two threads lose on images in each other's caches is not predicted, and up to 0.24.
DOUBT = 1.1


@dataclass(frozen=True)
class Layers:
    """Two layers as they are computed by themselves: in these layouts weights are packed so.

    Parameters
    ----------
    pair : PairWorkload
        The layers.
    depthwise, pointwise : DepthwiseConfig, DirectConfig
        Their configurations.
    """

    pair: PairWorkload
    depthwise: DepthwiseConfig
    pointwise: DirectConfig

    def slab_bytes(self, rows: int) -> int:
        """Return the size of some rows of the depthwise result."""
        w = self.pair.depthwise
        return w.co * w.ow * rows * w.types.out_bytes


def why_not(layers: Layers, core: Core) -> str:
    """Return "" where the depthwise images leave the L2 of a core, else why slabs gain nothing.

    Golden Cove, pairs of MobileNets, one and two threads: 1.04 to 1.31 times as fast where both
    images together exceed L2, 0.92 to 1.06 elsewhere: what each slab reads again of the weights
    costs as much as L2 is slower than L1 (benchmarks/results/slabs.txt).
    """
    w = layers.pair.depthwise
    image, _, result = w.bytes_moved
    room = share_bytes(core, 2, 1) or share_bytes(core, 1, 1)
    return "" if (image + result) / w.n > room else "the depthwise images stay in L2"


def slab_rows(layers: Layers, core: Core, threads: int) -> int:
    """Return the rows of a slab: whole rounds of the threads, and what `L1_PARTS` allow."""
    w = layers.pair.depthwise
    room = L1_PARTS * share_bytes(core, 1, threads)
    most = max(1, min(w.oh, int(room // layers.slab_bytes(1))))
    # Images are divided among threads as slabs are.
    rounds = threads // math.gcd(threads, w.n)
    slabs = math.ceil(math.ceil(w.oh / most) / rounds) * rounds
    return math.ceil(w.oh / min(slabs, w.oh))


@functools.lru_cache(maxsize=4096)
def depthwise_config(
    workload: Conv2dWorkload, like: DepthwiseConfig, core: Core
) -> DepthwiseConfig:
    """Return the fastest configuration of a slab whose weights and images lie as `like` has it."""
    fields = {"data_layout": like.data_layout, "out_layout": like.out_layout}
    if like.data_layout == "NHWC":
        fields["loop_order"] = "rows"
    offered = depthwise_candidates.configs(workload, core, 1)
    fitting = [c.with_fields(**fields) for c in offered if (c.nr, c.ks) == (like.nr, like.ks)]
    return min(fitting, key=lambda c: depthwise.estimate(workload, c, core, 1).seconds)


@functools.lru_cache(maxsize=4096)
def pointwise_config(workload: Conv2dWorkload, like: DirectConfig, core: Core) -> DirectConfig:
    """Return the fastest configuration of a slab whose weights and images lie as `like` has it."""
    fields = {"data_layout": like.data_layout, "out_layout": like.out_layout}
    offered = direct_candidates.configs(workload, core, 1)
    fitting = [c.with_fields(**fields) for c in offered if (c.nr, c.ks) == (like.nr, like.ks)]
    return min(fitting, key=lambda c: direct.estimate(workload, c, core, 1).seconds)


def estimate(layers: Layers, config: SlabConfig, core: Core, threads: int) -> Estimate:
    """Predict the time of one call, with its breakdown.

    Parameters
    ----------
    layers : Layers
        As they are computed by themselves.
    """
    pair, first = layers.pair, layers.pair.depthwise
    runs = slabs_of(first, config.rows)
    count = first.n * (runs[-1].last + 1)
    share = math.ceil(count / threads) / count * first.n
    cycles = {"depthwise": 0.0, "pointwise": 0.0}
    for run in runs:
        for name, spent in _slab_cycles(layers, run, core).items():
            cycles[name] += run.count * spent * share
    cycles["input"] = _input_cycles(first, cycles["depthwise"], core, threads)
    cycles["weights"] = _weights_cycles(layers, count * share / first.n, core, threads)
    cycles["fork"] = fork_cycles(core) if threads > 1 else 0.0
    footprint = (placed(core, "slab", layers.slab_bytes(config.rows), threads),)
    return finish(core, threads, pair, cycles, footprint)


def _slab_cycles(layers: Layers, run: Slabs, core: Core) -> dict[str, float]:
    """Cycles of one slab, by layer, without those of weights."""
    first, second = run.depthwise(layers.pair.depthwise), run.pointwise(layers.pair.pointwise)
    made = depthwise.estimate(first, depthwise_config(first, layers.depthwise, core), core, 1)
    config = pointwise_config(second, layers.pointwise, core)
    multiplied = direct.estimate(second, config, core, 1).cycles
    return {
        "depthwise": sum(made.cycles.values()),
        "pointwise": sum(multiplied.values()) - multiplied["weights"],
    }


def _input_cycles(workload: Conv2dWorkload, busy: float, core: Core, threads: int) -> float:
    """Cycles that a thread waits for its part of an image beyond L2."""
    w = workload
    size = w.types.a_bytes * w.n * w.ci * w.h * w.w / threads
    level = level_holding(core, int(size), threads)
    if level in (1, 2):
        return 0.0
    moving = size / bytes_per_cycle(core, level, threads)
    return max(0.0, moving - busy) + depthwise.OVERLAP_LOSS * min(moving, busy)


def _weights_cycles(layers: Layers, slabs: float, core: Core, threads: int) -> float:
    """Cycles that the weights of the second layer add: all of them for each slab of a thread."""
    whole = direct.estimate(layers.pair.pointwise, layers.pointwise, core, threads)
    w = layers.pair.pointwise
    size = w.co * w.ci * w.types.b_bytes
    level = level_holding(core, 2 * size, threads)
    again = 0.0 if level in (1, 2) else size / bytes_per_cycle(core, level)
    return whole.cycles["weights"] + (slabs - 1) * again
