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

from tvm_blislike.cost_models.moving import bytes_per_cycle, level_holding, placed, share_bytes
from tvm_blislike.cost_models.roofline import finish, fork_cycles
from tvm_blislike.cost_models.slabs.config import SlabConfig
from tvm_blislike.cost_models.slabs.geometry import Slabs, slabs_of
from tvm_blislike.hardware import Core
from tvm_blislike.model.config import Config
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.pair import PairWorkload
from tvm_blislike.model.registry import Template
from tvm_blislike.model.workload import Conv2dWorkload

# Slabs are of as many rows as fit into so many times L1. Golden Cove, 48 KiB and 2 MiB: slabs of 96
# KB are as fast as others or faster, single rows up to 8 % slower, and 384 KB up to 3 %.
L1_PARTS = 2.0
# Where images leave L2 slabs are taken unless they are predicted to take so many times as long:
# what two threads lose on images in each other's caches is not predicted, and up to 0.24.
DOUBT = 1.1
# Of an image's way and arithmetic the smaller one is not hidden completely.
OVERLAP_LOSS = 0.1


@dataclass(frozen=True)
class Alone:
    """How a layer is computed by itself: in these layouts it lies, and its weights are packed so.

    Parameters
    ----------
    implementation : Template
        The algorithm, one that says by what it packs.
    config : Config
        Its configuration.
    """

    implementation: Template
    config: Config

    def of_slab(self, workload: Conv2dWorkload, core: Core) -> Config:
        """Return the fastest configuration of a slab, by one thread, with the same weights."""
        return _of_slab(self, workload, core)


@functools.lru_cache(maxsize=4096)
def _of_slab(alone: Alone, workload: Conv2dWorkload, core: Core) -> Config:
    made, like = alone.implementation, alone.config
    usual = list(made.configs(workload, core, 1))
    offered = [*usual, *(other for c in usual for other in made.relaid(workload, c, core))]
    fitting = [c for c in offered if all(getattr(c, f) == getattr(like, f) for f in made.packed_by)]
    return min(fitting, key=lambda c: made.estimate(workload, c, core, 1).seconds)


@dataclass(frozen=True)
class Layers:
    """Two layers as they are computed by themselves.

    Parameters
    ----------
    pair : PairWorkload
        The layers.
    depthwise, pointwise : Alone
        How.
    """

    pair: PairWorkload
    depthwise: Alone
    pointwise: Alone

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
    made, multiplied = (
        alone.implementation.estimate(w, alone.of_slab(w, core), core, 1).cycles
        for alone, w in ((layers.depthwise, first), (layers.pointwise, second))
    )
    return {
        "depthwise": sum(made.values()),
        "pointwise": sum(multiplied.values()) - multiplied.get("weights", 0.0),
    }


def _input_cycles(workload: Conv2dWorkload, busy: float, core: Core, threads: int) -> float:
    """Cycles that a thread waits for its part of an image beyond L2."""
    w = workload
    size = w.types.a_bytes * w.n * w.ci * w.h * w.w / threads
    level = level_holding(core, int(size), threads)
    if level in (1, 2):
        return 0.0
    moving = size / bytes_per_cycle(core, level, threads)
    return max(0.0, moving - busy) + OVERLAP_LOSS * min(moving, busy)


def _weights_cycles(layers: Layers, slabs: float, core: Core, threads: int) -> float:
    """Cycles that the weights of the second layer add: all of them for each slab of a thread."""
    w, alone = layers.pair.pointwise, layers.pointwise
    whole = alone.implementation.estimate(w, alone.config, core, threads)
    size = w.co * w.ci * w.types.b_bytes
    level = level_holding(core, 2 * size, threads)
    again = 0.0 if level in (1, 2) else size / bytes_per_cycle(core, level)
    return whole.cycles.get("weights", 0.0) + (slabs - 1) * again
