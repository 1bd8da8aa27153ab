"""Predicted time of a chain of depthwise and 1x1 convolutions that is computed slab by slab.

Each slab takes what its layers take as images of their own, by one thread: what lies between two
of them is in the caches that hold a slab. What is left of traffic is the image, on its way once
from where it lies, the weights of the 1x1 layers, once for each slab, and rows that a slab leaves
for the next one, moved to the front. Threads divide the slabs, of all images, and fork once.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tvm_blislike.cost_models.moving import bytes_per_cycle, level_holding, placed, share_bytes
from tvm_blislike.cost_models.roofline import finish, fork_cycles
from tvm_blislike.cost_models.slabs.config import SlabConfig
from tvm_blislike.cost_models.slabs.geometry import SlabGeometry, Step, of_step, of_unit, reach
from tvm_blislike.hardware import Core
from tvm_blislike.model.chain import ChainWorkload
from tvm_blislike.model.config import Config
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.registry import Template
from tvm_blislike.model.workload import Conv2dWorkload

# Slabs are of as many rows as fit into so many times L1: what a 1x1 layer reads. Golden Cove, 48
# KiB and 2 MiB: slabs of 96 KB are as fast as others or faster, single rows up to 8 % slower, and
# 384 KB up to 3 %. Of chains that move rows for each slab: 24 channels of 56x56 to 144 and
# back take 0.95 of the time with 129 KB instead of 64, 0.95 with 226 (Zen 5, 48 KiB and 1 MiB).
L1_PARTS = 2.0
L1_PARTS_MOVING = 3.0
# The rows that lie between the layers of a chain, all together, take so much of L2 at most: the
# rest is for weights, and for the image that passes by.
L2_PART = 0.5
# Part of the time that single rows lose beside whole slabs; two rows half of it.
ROW_LOSS = 0.08
# Part of the time that moving a row takes for each that is computed.
MOVING_LOSS = 0.08
# Slabs that move rows have more of them: with single ones MobileNets lose what the chain gains.
LEAST_ROWS = 2
# The image between two pairs of layers is so many times as large as L2 where their slabs are one
# chain: their weights and rows share L2. MobileNetV1, 1 MiB (Zen 5): 64 channels of 112x112 between
# take 0.91 of the time, 128 of 56x56 gain nothing.
BETWEEN_PAIRS = 2.0
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
    """Layers as they are computed by themselves.

    Parameters
    ----------
    chain : ChainWorkload
        The layers.
    alone : tuple of Alone
        How.
    """

    chain: ChainWorkload
    alone: tuple[Alone, ...]

    def geometry(self, rows: int, threads: int) -> SlabGeometry:
        """Return the sizes of slabs of so many rows."""
        return SlabGeometry(self.chain.layers, rows, _parts(self.chain, threads))


def _parts(chain: ChainWorkload, threads: int) -> int:
    """Return the parts of an image: those of all images are divided among the threads."""
    return threads // math.gcd(threads, chain.layers[0].n)


def why_not(layers: Layers, core: Core) -> str:
    """Return "" where images leave the L2 of a core, else why slabs gain nothing.

    Of a pair, the depthwise layer's two images. Golden Cove, pairs of MobileNets, one and two
    threads: 1.04 to 1.31 times as fast where both together exceed L2, 0.92 to 1.06 elsewhere: what
    each slab reads again of the weights costs as much as L2 is slower than L1
    (benchmarks/results/slabs.txt). Of other chains, each image between two layers that a depthwise
    one reads.
    """
    room = share_bytes(core, 2, 1) or share_bytes(core, 1, 1)
    first, *later = layers.chain.layers
    sizes = [_image_bytes(w) for w in later if w.is_depthwise]
    if not sizes:
        sizes = [_image_bytes(first) + first.bytes_moved[-1] / first.n]
    needed = room if len(later) < 3 else BETWEEN_PAIRS * room
    return "" if min(sizes) > needed else "the depthwise images stay in L2"


def _image_bytes(workload: Conv2dWorkload) -> float:
    return workload.bytes_moved[0] / workload.n


def slab_rows(layers: Layers, core: Core, threads: int) -> int:
    """Return the rows of a slab: of those that fit what leaves the busiest thread least to do.

    1 for a pair of which no row fits, 0 for a chain that moves rows, which gains nothing then.
    """
    chain, parts = layers.chain, _parts(layers.chain, threads)
    least, otherwise = (LEAST_ROWS, 0) if moves_rows(chain) else (1, 1)
    fitting = [r for r in range(least, chain.layers[-1].oh + 1) if fits(chain, r, core, threads)]
    return min(reversed(fitting), key=lambda rows: _busiest(chain, rows, parts), default=otherwise)


def moves_rows(chain: ChainWorkload) -> bool:
    """Whether slabs leave rows for the next one: those that a depthwise layer behind reads."""
    return any(w.is_depthwise for w in chain.layers[1:])


def fits(chain: ChainWorkload, rows: int, core: Core, threads: int) -> bool:
    """Whether what lies between the layers of a chain fits into its parts of L1 and L2."""
    between = 0
    l1 = (L1_PARTS_MOVING if moves_rows(chain) else L1_PARTS) * share_bytes(core, 1, threads)
    for w in reversed(chain.layers[1:]):
        rows = reach(w, rows)
        size = rows * w.ci * w.w * w.types.a_bytes
        if not w.is_depthwise and size > l1:
            return False
        between += size
    return not moves_rows(chain) or between <= L2_PART * share_bytes(core, 2, threads)


def _busiest(chain: ChainWorkload, rows: int, parts: int) -> float:
    """Return the rows of the largest part, and what small slabs lose."""
    height = chain.layers[-1].oh
    count = math.ceil(height / rows)
    largest = min(height, math.ceil(count / parts) * rows)
    loss = ROW_LOSS / math.gcd(rows, height % rows)
    for w in chain.layers[1:]:
        if w.is_depthwise:
            again = max(0, reach(w, 1) - w.stride[0])
            loss += MOVING_LOSS * again / (w.stride[0] * rows)
    return largest * (1 + loss)


def estimate(layers: Layers, config: SlabConfig, core: Core, threads: int) -> Estimate:
    """Predict the time of one call, with its breakdown.

    Parameters
    ----------
    layers : Layers
        As they are computed by themselves.
    """
    chain, geo = layers.chain, layers.geometry(config.rows, threads)
    first = chain.layers[0]
    parts = math.ceil(first.n * geo.used_parts / threads)
    cycles = {name: spent * parts for name, spent in _part_cycles(layers, geo, core).items()}
    busy = cycles["depthwise" if first.is_depthwise else "pointwise"]
    cycles["input"] = _input_cycles(first, busy, core, threads)
    slabs = parts * geo.per_part
    cycles["weights"] = sum(
        _weights_cycles(alone, w, slabs, core, threads)
        for alone, w in zip(layers.alone, chain.layers, strict=True)
        if not w.is_depthwise
    )
    cycles["fork"] = fork_cycles(core) if threads > 1 else 0.0
    footprint = (placed(core, "slab", sum(geo.buffer_bytes), threads),)
    return finish(core, threads, chain, cycles, footprint)


def _part_cycles(layers: Layers, geo: SlabGeometry, core: Core) -> dict[str, float]:
    """Cycles of the part of an image that takes longest, without those of weights."""
    spent = [{"depthwise": 0.0, "pointwise": 0.0, "kept rows": 0.0} for _ in range(geo.used_parts)]
    for number, w in enumerate(geo.layers):
        name = "depthwise" if w.is_depthwise else "pointwise"
        for step, slabs in geo.steps[number].items():
            cycles = _step_cycles(layers.alone[number], w, step, geo.units[number], core)
            moved = step.kept * geo.row_bytes[number] if step.moved else 0
            for slab in slabs:
                of_part = spent[slab // geo.per_part]
                of_part[name] += cycles
                of_part["kept rows"] += 2 * moved / bytes_per_cycle(core, 2)
    return max(spent, key=lambda part: sum(part.values()))


def _step_cycles(
    alone: Alone, workload: Conv2dWorkload, step: Step, unit: int, core: Core
) -> float:
    """Cycles of a layer's step."""
    if not step.rows:
        return 0.0
    w, times = of_step(workload, step), 1
    if not workload.is_depthwise:
        w, times = of_unit(workload, unit), step.rows // unit
    cycles = alone.implementation.estimate(w, alone.of_slab(w, core), core, 1).cycles
    return times * (sum(cycles.values()) - cycles.get("weights", 0.0))


def _input_cycles(workload: Conv2dWorkload, busy: float, core: Core, threads: int) -> float:
    """Cycles that a thread waits for its part of an image beyond L2."""
    w = workload
    size = w.types.a_bytes * w.n * w.ci * w.h * w.w / threads
    level = level_holding(core, int(size), threads)
    if level in (1, 2):
        return 0.0
    moving = size / bytes_per_cycle(core, level, threads)
    return max(0.0, moving - busy) + OVERLAP_LOSS * min(moving, busy)


def _weights_cycles(
    alone: Alone, workload: Conv2dWorkload, slabs: int, core: Core, threads: int
) -> float:
    """Cycles that the weights of a 1x1 layer add: all of them for each slab of a thread."""
    w = workload
    whole = alone.implementation.estimate(w, alone.config, core, threads)
    size = w.co * w.ci * w.types.b_bytes
    level = level_holding(core, 2 * size, threads)
    again = 0.0 if level in (1, 2) else size / bytes_per_cycle(core, level)
    return whole.cycles.get("weights", 0.0) + (slabs - 1) * again
