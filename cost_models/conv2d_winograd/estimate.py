"""Predicted time of the Winograd convolutions.

Per block of tiles: the transforms of its patches and products, and one GEMM per point, whose A (V)
and C (P) lie in L2 and whose weights pass by once. What decides between tile sizes and against
direct convolution:

- F(4, 3) needs a quarter of the FMAs, and four times the weights (36 values for 9), which come
  from memory in the first pass over them and from L3 afterwards: more tiles per block mean fewer
  passes. With 512 channels on 7x7 pixels the weights alone take longer than direct convolution;
- tiles that reach beyond the image compute for nothing: 7x7 outputs are four tiles of 4x4;
- the transforms touch every point of V and P twice, whatever the number of channels they are
  multiplied with: few channels leave little to gain.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from tvm_blislike.cost_models.cache_room import conflict_bytes
from tvm_blislike.cost_models.conv2d_winograd.config import CHANNELS, BlockedConfig
from tvm_blislike.cost_models.conv2d_winograd.geometry import WinogradGeometry
from tvm_blislike.cost_models.conv2d_winograd.integers import transformed
from tvm_blislike.cost_models.issue import CALL_CYCLES, call_cycles
from tvm_blislike.cost_models.moving import (
    L2_BUSY_LOSS,
    apart_cycles,
    bytes_per_cycle,
    l2_bytes,
    l2_cycles,
    late_share,
    level_holding,
    missing_share,
    placed,
    weights_cycles,
)
from tvm_blislike.cost_models.parallel import passed_bytes_per_cycle, spanned
from tvm_blislike.cost_models.parallel import share as part_of_busiest
from tvm_blislike.cost_models.roofline import ROUNDED_DOWN, clock_hz, finish, fork_cycles
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernel_of
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.workload import Conv2dWorkload

# Part of L2 that V, P and weights may have together: images pass through the rest.
L2_PLANNED = 0.7
# What products of rows kept apart take longer (ring; 64 to 256 channels: 0 to 3 %).
ROWS_APART = 1.02
# Share of the weights' arrival that prefetching hides behind the products.
HIDDEN = 0.85
# Bytes that pass from L2 for each that `conflict_bytes` counts: 28 rows of 512 channels, in sets
# for 22, take twice the time.
CONFLICTS = 3.0
# Writing a cache line reads it first; on its way back nobody waits for it.
WRITE_PASSES = 1.0
# What is written once in a layer is read from memory first, and goes there: 64 channels of 112x112,
# whose V has 5.9 MB, take 3.54 ms instead of 2.63 in blocks, 128 of 56x56 2.69 and 2.52 (Zen 4).
FRESH_PASSES = 2.0
# Share of the L3 bandwidth of a few megabytes that tens of megabytes get (Golden Cove: 30 GB/s).
FAR_L3 = 0.75
# Cycles per vector that a transform loads, stores or computes (both passes, Golden Cove).
TRANSFORM_CYCLES = 1.5
# Passes over more points than this spill: F(6, 3) takes 1.5 to 3 times as long per vector (Golden
# Cove, of whose kind most cores' `spilled_passes` is).
POINTS_IN_REGISTERS = 36
# V and P beyond this part of L2 lose some of it to the weights and images that pass by: 64 channels
# of 56x56 take 2 % longer at 0.48 of L2, 10 % at 0.66; 128 channels of 112x112 13 % at 0.63 (Golden
# Cove, of whose kind most cores' `l2_crowding` is).
ROOMY = 0.45
# Part of the time that larger blocks of tiles may lose by crowding and be worth estimating.
LITTLE_LOST = 0.03
# Blocks of more than twice L2 lost by it wherever they were measured.
LEAST_CROWDING = 0.02


def estimate(
    workload: Conv2dWorkload,
    config: BlockedConfig,
    core: Core,
    threads: int,
    geometry: type[WinogradGeometry] = WinogradGeometry,
) -> Estimate:
    """Predict the time of one layer.

    Parameters
    ----------
    geometry : type
        Sizes of the algorithm.

    Returns
    -------
    Estimate
        Cycles by cause; the footprint of V, P and the weights per cache level.
    """
    geo = geometry(workload, config)
    v, p = geo.v_bytes, geo.p_bytes
    weights = transformed(workload.types).b_bytes * math.prod(geo.packed_shape)
    by_channels = config.loop_order == CHANNELS
    share, of_input = _shares(geo, threads)
    work = _work(geo, core, threads)
    cycles = {name: value * share for name, value in work.products.items()}
    # While L2 gives panels to L1 it takes less from beyond: 6x64 blocks hide less than 10x32.
    hiding = sum(cycles.values()) - L2_BUSY_LOSS * (work.from_l2 * share)
    # Parts of the weights that a thread needs, each for some of the blocks.
    part, own_parts = weights / geo.oc_parts, spanned(geo.parts, threads, geo.parts // geo.oc_parts)
    again = _again(core, part + v + p, threads)
    passes = geo.blocks * geo.oc_parts * share / own_parts
    # Threads that have blocks of the same part read it at about the same time.
    streams = math.ceil(geo.oc_parts / own_parts)
    cycles["weights"] = _stream(core, part * own_parts, again, passes, hiding, streams)
    if by_channels:
        cycles["V"] = _kept_cycles(core, geo, share, _again(core, v * geo.blocks, threads), threads)
    cycles["input transform"] = work.input_transform * of_input
    cycles["output transform"] = work.output_transform * share
    if not by_channels:
        if v + p > max(l2_bytes(core, threads), bytes_beyond_l2(core, threads)):
            cycles["crowding"] = _passing_cycles(core, geo, share, threads)
        else:
            cycles["crowding"] = _crowding(core, v + p, threads) * sum(cycles.values())
    cycles["fork"] = _forks_cycles(geo, core, threads)
    sizes = (("V", v), ("P", p), ("weights", weights))
    footprint = tuple(placed(core, name, size, threads) for name, size in sizes)
    return finish(core, threads, workload, cycles, footprint)


def least_of(
    workload: Conv2dWorkload,
    config: BlockedConfig,
    core: Core,
    threads: int,
    geometry: type[WinogradGeometry] = WinogradGeometry,
) -> float:
    """Return seconds that no estimate of a configuration is below: what it computes, from L2.

    Candidates that differ in chunks and orders alone are many, and compute the same.
    """
    geo = geometry(workload, config)
    share, of_input = _shares(geo, threads)
    work = _work(geo, core, threads)
    cycles = (sum(work.products.values()) + work.output_transform) * share
    cycles += work.input_transform * of_input + _forks_cycles(geo, core, threads)
    return ROUNDED_DOWN * cycles / clock_hz(core)


def workspace_bytes(
    workload: Conv2dWorkload,
    config: BlockedConfig,
    threads: int,
    geometry: type[WinogradGeometry] = WinogradGeometry,
) -> int:
    """Return the size of V and P: of all threads' blocks, or V of the whole batch."""
    geo = geometry(workload, config)
    v, p = geo.v_bytes, geo.p_bytes
    return v * geo.blocks + p * threads if config.loop_order == CHANNELS else (v + p) * threads


class _Work(NamedTuple):
    """Cycles of what a layer computes, on one thread.

    `from_l2` is the time that L2 is busy with products, no part of their sum.
    """

    products: dict[str, float]
    from_l2: float
    input_transform: float
    output_transform: float


def _work(geo: WinogradGeometry, core: Core, threads: int) -> _Work:
    """Return the work of a configuration, which those of the same blocks share."""
    known = _known(geo.workload, core, threads, type(geo))
    if geo.blocking not in known:
        c = geo.config
        kernel = kernel_of(core, c.mr, c.nr, transformed(geo.workload.types), c.ks)
        products = _products(geo, kernel, core)
        from_l2 = products.pop("from L2")
        transforms = _input_cycles(geo, core, threads), _output_cycles(geo, core, threads)
        known[geo.blocking] = _Work(products, from_l2, *transforms)
    return known[geo.blocking]


@functools.lru_cache(maxsize=2)
def _known(
    _workload: Conv2dWorkload, _core: Core, _threads: int, _geometry: type[WinogradGeometry]
) -> dict[tuple[int | str, ...], _Work]:
    """Return what is known of a layer by `blocking`: configurations of one follow each other."""
    return {}


def _shares(geo: WinogradGeometry, threads: int) -> tuple[float, float]:
    """Return how much the busiest thread computes of the products, and transforms of the input."""
    share = part_of_busiest(geo.parts, threads)
    if geo.config.loop_order == CHANNELS:
        return share, geo.transform_share(threads)
    transformed_again = geo.oc_parts * geo.part_channels / geo.workload.ci
    return share, transformed_again * share


def _forks_cycles(geo: WinogradGeometry, core: Core, threads: int) -> float:
    """Cycles of handing work out, twice where the whole image is transformed first."""
    forks = 2 if geo.config.loop_order == CHANNELS else 1
    return forks * fork_cycles(core) if threads > 1 else 0.0


def _crowding(core: Core, size: int, threads: int) -> float:
    """Part of the time that is added where V and P leave too little of L2."""
    return core.l2_crowding * max(0.0, size / l2_bytes(core, threads) - ROOMY)


def _passing_cycles(core: Core, geo: WinogradGeometry, share: float, threads: int) -> float:
    """Cycles of V and P of blocks that pass by L2, to the level beyond and back.

    They buy fewer passes of the weights: 2048 channels of 64x64 to 512 take 172 ms in blocks of 44
    tiles whose V and P are 29 MB, 199 in ones of 16 tiles, 326 in what fits into L2 (Zen 4).
    """
    level = level_holding(core, geo.v_bytes + geo.p_bytes, threads)
    shown = _shown(core, geo)
    v, p, chunks = geo.v_bytes, geo.p_bytes, geo.chunks
    blocks = max(1.0, geo.blocks * share)
    # The memory that the first block writes has not been used since a layer before this one.
    written = (blocks - 1) * WRITE_PASSES * (v + p) + blocks * WRITE_PASSES * (chunks - 1) * p
    read = blocks * chunks * shown * (v + p)
    fresh = FRESH_PASSES * (v + p) / _bytes_per_cycle(core, 0, threads)
    return fresh + (written + read) / _bytes_per_cycle(core, level, threads)


def _shown(core: Core, geo: WinogradGeometry) -> float:
    """Share of the way of V and P from beyond L2 that products do not hide."""
    return 1 - HIDDEN * (1 - late_share(core, geo.config.mr))


def bytes_beyond_l2(core: Core, threads: int) -> float:
    """Return what V and P may take where blocks beyond L2 lose little by it; 0 elsewhere."""
    room = ROOMY + LITTLE_LOST / max(core.l2_crowding, LEAST_CROWDING)
    return room * l2_bytes(core, threads) if room > 1.0 else 0.0


def _products(geo: WinogradGeometry, kernel: Microkernel, core: Core) -> dict[str, float]:
    """Cycles of all micro-kernel calls of the layer on one thread.

    "from L2" is the time that L2 is busy with them, no part of the sum.
    """
    c, steps = geo.config, geo.steps
    full, cut = divmod(geo.row_tiles, c.mr)
    vectors = kernel.vectors
    total = dict.fromkeys(("fma", "L2", "rows apart", "calls", "from L2"), 0.0)
    for number, rows in ((full, c.mr), (1 if cut else 0, cut)):
        blocks = number * geo.rows * geo.blocks * geo.panels * geo.chunks
        count = blocks * geo.multiplications
        if count == 0:
            continue
        apart = ROWS_APART if geo.rows > 1 else 1.0
        issue = apart * call_cycles(core, kernel, rows, vectors, steps)
        arrival = steps * _l2_bytes(geo, core, rows) / bytes_per_cycle(core, 2)
        total["fma"] += count * issue
        total["from L2"] += count * min(arrival, issue)
        total["L2"] += count * l2_cycles(arrival, issue)
        total["rows apart"] += count * steps * _apart_cycles(geo, core, rows)
        stores = 1.5 * rows * vectors / core.stores_per_cycle
        total["calls"] += count * CALL_CYCLES + blocks * geo.points * stores
    return total


def _l2_bytes(geo: WinogradGeometry, core: Core, rows: int) -> float:
    """Bytes from L2 per step of a product: V and the panel of weights."""
    item = transformed(geo.workload.types).a_bytes
    conflicts = CONFLICTS * conflict_bytes(core, rows, geo.workload.ci * item)
    return item * geo.config.ks * (rows + geo.config.nr) + conflicts


def _apart_cycles(geo: WinogradGeometry, core: Core, rows: int) -> float:
    """Cycles per step of a product that it waits for rows of V, which are `ci` elements apart."""
    item = transformed(geo.workload.types).a_bytes
    near = geo.workload.ci * item <= core.line_bytes
    return 0.0 if near else apart_cycles(core, rows, item * geo.config.ks)


def _again(core: Core, between: float, threads: int) -> tuple[float, int]:
    """Return the share of an operand that L2 has lost when it passes again, and where that is.

    So many bytes pass in between, the operand among them: 64 to 192 channels of 56x56, whose
    weights, V and P take 2.2 MB, run at 1.07 of the speed of those with 2.7 MB (Emerald Rapids).
    """
    level = level_holding(core, int(between / L2_PLANNED), threads)
    return missing_share(between, L2_PLANNED * l2_bytes(core, threads)), level


def _stream(
    core: Core,
    size: float,
    again: tuple[float, int],
    passes: float,
    compute: float,
    streams: int = 1,
) -> float:
    """Cycles that the weights add: from memory in the first pass, later a share from a level.

    So many `streams` of other weights come at the same time.
    """
    passes = max(passes, 1.0)
    first = size / _bytes_per_cycle(core, 0, streams)
    share, level = again
    later = 0.0 if level in (1, 2) else share * size / _bytes_per_cycle(core, level, streams)
    return weights_cycles(first, later, passes, HIDDEN, compute / passes)


def _bytes_per_cycle(core: Core, level: int, threads: int) -> float:
    return bytes_per_cycle(core, level, threads) * (FAR_L3 if level == 3 else 1.0)


def _kept_cycles(
    core: Core, geo: WinogradGeometry, share: float, again: tuple[float, int], threads: int
) -> float:
    """Cycles of writing V of all blocks, reading it again for each chunk, getting others' parts.

    Rows of V from beyond L2 are read mr at a time: 256 channels of 56x56, whose V of 6 MB passes
    for each of four chunks, take 6.6 ms with 6x64 blocks and 7.4 with 13x32 (Emerald Rapids).
    """
    kept = geo.v_bytes * geo.blocks
    read = geo.v_bytes * math.ceil(geo.parts * share)
    # Of the blocks that a thread multiplies, the others have transformed their part.
    foreign = min(kept, read) * (1 - 1 / threads) / passed_bytes_per_cycle(core, threads)
    missing, level = again
    if level in (1, 2):
        return foreign
    written = FRESH_PASSES * kept * geo.transform_share(threads)
    written /= _bytes_per_cycle(core, 0, threads)
    shown = _shown(core, geo)
    again = shown * read / _bytes_per_cycle(core, level, threads)
    return missing * (written + again) + foreign


def _input_cycles(geo: WinogradGeometry, core: Core, threads: int) -> float:
    """Cycles of transforming all patches: each point is loaded, stored and computed twice."""
    w = geo.workload
    vectors = geo.blocks * math.ceil(w.ci / core.lanes(transformed(w.types).a))
    work = vectors * geo.input_work * _transform_cycles(geo, core)
    return work + _image_cycles(core, w.n * w.ci * w.h * w.w * w.types.a_bytes, work, threads)


def _output_cycles(geo: WinogradGeometry, core: Core, threads: int) -> float:
    """Cycles of transforming all products and of the epilogue."""
    w = geo.workload
    vectors = geo.blocks * math.ceil(w.co / core.lanes(w.types.acc))
    work = vectors * geo.output_work * _transform_cycles(geo, core)
    return work + _image_cycles(core, w.n * w.co * w.oh * w.ow * w.types.out_bytes, work, threads)


def _image_cycles(core: Core, size: int, work: float, threads: int) -> float:
    """Cycles that an image beyond L2 adds to those of its transform, which hides most of its way.

    Shown in full it makes layers of 224x224 and 112x112 take 1.15 to 1.35 times as long as
    measured, those of 56x56 1.07 (Emerald Rapids).
    """
    level = level_holding(core, size, threads)
    if level in (1, 2):
        return 0.0
    way = size / bytes_per_cycle(core, level, threads)
    return way - HIDDEN * min(way, work)


def _transform_cycles(geo: WinogradGeometry, core: Core) -> float:
    # A flat transform holds the whole patch: in registers, or in memory again and again.
    held = max(1.0, geo.points / core.vector_registers) if geo.flat else 1.0
    spilled = core.spilled_passes if geo.points > POINTS_IN_REGISTERS else 1.0
    return TRANSFORM_CYCLES * spilled * held
