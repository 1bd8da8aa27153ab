"""Predicted time of a matrix product.

Where the operands live, for the loop order B3A2C0 (A3B2C0 with A and B exchanged):

- a block of C in registers, for all of kc;
- the panel of B (kc x nr) in L1 as far as it fits beside the panels of A (mr x kc) that pass by;
  what does not streams from L2 as they do, which costs nothing up to 36 bytes a cycle (14x32 needs
  13);
- the block of A (mc x kc) in L2, together with the present and the next panel of B;
- all of B passes once per block of A, from L3 or memory, while the FMAs run (`panels`).
"""

from __future__ import annotations

import math

from tvm_blislike.cost_models.cache_room import conflict_bytes, taken_bytes
from tvm_blislike.cost_models.data_types import sum_dtype
from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.cost_models.gemm.geometry import A_OUTSIDE, B_OUTSIDE, GemmGeometry
from tvm_blislike.cost_models.issue import (
    CALL_CYCLES,
    call_cycles,
    tile_store_cycles,
    useful_cycles,
)
from tvm_blislike.cost_models.moving import (
    EXPOSED_L2,
    apart_cycles,
    beyond_l2_cycles,
    bytes_per_cycle,
    l2_cycles,
    level_holding,
    line_cycles,
    lost_share,
    placed,
    share_bytes,
    vector_cycles,
    waits_for_rows,
)
from tvm_blislike.cost_models.roofline import finish, fork_cycles
from tvm_blislike.hardware import Core, dtype_bits
from tvm_blislike.microkernels import Microkernel, kernel_of
from tvm_blislike.model.estimate import Estimate, Placed
from tvm_blislike.model.workload import GemmWorkload

# Share of a stream from beyond L2 that shows although it is prefetched behind computation.
EXPOSED = 0.3
# Rows of C up to which a tile's lines follow one another closely enough to be fetched ahead.
_NEAR_ROW_BYTES = 2048
# Cycles to store a row of a block of C to another page than the row before: rows are the inner loop
# where B is outside. Measured for signs, whose sums are too short to hide it: 43 (22x16 to 4x64
# blocks, 2048 rows of 8 KB on Zen 4), 66 with rows of 16 KB, none with rows of 2 KB.
FAR_ROW_CYCLES = 45
_PAGE_BYTES, _NEAR_PAGES = 4096, 64


def estimate(workload: GemmWorkload, config: GemmConfig, core: Core, threads: int) -> Estimate:
    """Predict the time of one product.

    Returns
    -------
    Estimate
        Cycles by cause; the footprint of a panel, a block, and the operand that passes by.
    """
    geo = GemmGeometry(workload, config)
    kernel = kernel_of(core, config.mr, config.nr, workload.types, config.ks)
    loop = geo.parallel_loop(threads)
    share = geo.share(loop, threads) if loop else 1.0
    cycles = {name: value * share for name, value in _calls(geo, kernel, core).items()}
    cycles["rows of C"] = _far_row_cycles(geo) * share
    cycles["packing"] = _packing_cycles(geo, core, threads, share)
    busy = sum(cycles.values())
    cycles["beyond L2"] = _beyond_l2_cycles(geo, core, threads, loop, share, busy)
    cycles["fork"] = fork_cycles(core) if loop else 0.0
    return finish(core, threads, workload, cycles, _footprint(geo, core, threads))


def _far_row_cycles(geo: GemmGeometry) -> float:
    """Cycles of stores to other pages, of all of C."""
    w = geo.workload
    far = w.n * w.types.out_bytes >= _PAGE_BYTES and w.m > _NEAR_PAGES
    if not (w.types.is_bits and far and geo.config.loop_order == B_OUTSIDE):
        return 0.0
    return FAR_ROW_CYCLES * w.batch * w.m * geo.tiles_n


def workspace_bytes(workload: GemmWorkload, config: GemmConfig, threads: int) -> int:
    """Return the size of packed blocks of A, and of partial sums where C cannot hold them."""
    geo = GemmGeometry(workload, config)
    block = geo.block_m * config.mr * geo.kc if geo.packs(geo.kc) else 0
    in_place = geo.blocks_k == 1 or workload.types.out == sum_dtype(workload.types)
    sums = 0 if in_place else math.prod(geo.updated(geo.parallel_loop(threads)))
    return threads * (workload.types.a_bytes * block + _sum_bytes(workload) * sums)


def _sum_bytes(workload: GemmWorkload) -> int:
    """Size of a sum over blocks of k."""
    return dtype_bits(sum_dtype(workload.types)) // 8


def _calls(geo: GemmGeometry, kernel: Microkernel, core: Core) -> dict[str, float]:
    """Cycles of all micro-kernel calls on one thread, by what limits them."""
    w, c = geo.workload, geo.config
    rows = [(geo.tiles_m - 1, c.mr), (1, w.m - (geo.tiles_m - 1) * c.mr)]
    columns = [(geo.tiles_n - 1, c.nr), (1, w.n - (geo.tiles_n - 1) * c.nr)]
    depths = (*((geo.blocks_k - 1) * [geo.kc]), geo.last_k)
    causes = ("fma", "loads and edges", "L2", "rows apart", "calls")
    total = dict.fromkeys(causes, 0.0)
    for count_m, height in rows:
        for count_n, width in columns:
            number = w.batch * count_m * count_n
            vectors = math.ceil(width / kernel.lanes)
            issue = sum(
                call_cycles(core, kernel, height, vectors, steps // c.ks) for steps in depths
            )
            useful = w.k / c.ks * useful_cycles(core, kernel, height, width)
            arrival = w.k * _l2_bytes(geo, core, height, vectors * kernel.lanes)
            apart = w.k * _apart_cycles(geo, core, kernel, height, vectors * kernel.lanes)
            total["fma"] += number * useful
            total["loads and edges"] += number * max(0.0, issue - useful)
            arrival /= bytes_per_cycle(core, 2)
            total["L2"] += number * _panel_cycles(geo, arrival, issue, kernel)
            total["rows apart"] += number * apart
            stores = height * vectors / core.stores_per_cycle
            total["calls"] += number * geo.blocks_k * (CALL_CYCLES + 1.5 * stores)
            if kernel.tiles is not None:
                total["calls"] += number * geo.blocks_k * tile_store_cycles(kernel, height, vectors)
            # Blocks of k but the first load what they add to; all but the last store it.
            total["calls"] += number * (geo.blocks_k - 1) * 2.5 * stores
    return total


def _panel_cycles(geo: GemmGeometry, arrival: float, issue: float, kernel: Microkernel) -> float:
    """Cycles that panels on their way from L2 add to the instructions of a call.

    The more of L2's rate they want the longer they queue, until nothing is hidden: panels of kc
    steps are longer than those of a convolution. 1024x1024x1024 with 2x128 blocks takes 2.4 times
    as long as with 13x32, 2000x2000x2000 with 4x96 blocks 1.9 times as long as with 14x32
    (Emerald Rapids). Where one tile of rows uses each panel of B it comes from beyond L2.
    """
    if kernel.tiles is not None or geo.tiles_m == 1:
        return l2_cycles(arrival, issue, kernel)
    return arrival * EXPOSED_L2 / max(EXPOSED_L2, 1 - arrival / issue)


def _l2_bytes(geo: GemmGeometry, core: Core, height: int, width: int) -> float:
    """Bytes from L2 per step of k: the panel that passes by, and the other if L1 is too small."""
    types = geo.workload.types
    a, b = height * types.a_bytes, width * types.b_bytes
    if not geo.packs(geo.kc):
        a += conflict_bytes(core, height, geo.workload.k * types.a_bytes)
    lost = _lost_share(geo, core, height, width)
    return a + lost * b if geo.config.loop_order == B_OUTSIDE else lost * a + b


def _lost_share(geo: GemmGeometry, core: Core, height: int, width: int) -> float:
    """Share of the panel that stays which L1 has lost before the next call."""
    if geo.calls_per_panel() == 1:
        return 1.0
    types = geo.workload.types
    panels = (height * types.a_bytes + width * types.b_bytes) * geo.kc
    return lost_share(panels, share_bytes(core, 1, 1))


def _apart_cycles(
    geo: GemmGeometry, core: Core, kernel: Microkernel, height: int, width: int
) -> float:
    """Cycles per step of k that a call waits for rows of A in place, from L2 or beyond.

    Whole rows, one behind the other, are prefetched as packed panels are: 2000x2000x2000 with
    kc = 2000 takes 93 ms in place and 95 packed, with kc = 1000 101 and 98 (Emerald Rapids). Not
    on every core (`waits_for_rows`).
    """
    if geo.packs(geo.kc) or (geo.blocks_k == 1 and not waits_for_rows(core, kernel)):
        return 0.0
    passes = geo.config.loop_order == B_OUTSIDE
    share = 1.0 if passes else _lost_share(geo, core, height, width)
    return share * apart_cycles(core, height, geo.workload.types.a_bytes)


def _packing_cycles(geo: GemmGeometry, core: Core, threads: int, share: float) -> float:
    """Cycles of copying a thread's part of A into panels."""
    w = geo.workload
    if not geo.packs(geo.kc):
        return 0.0
    a_bytes = share * w.batch * w.m * w.k * w.types.a_bytes
    vectors, lines = a_bytes * 8 / core.vector_bits, a_bytes / core.line_bytes
    cycles = vectors * vector_cycles(core) + lines * line_cycles(core, 2)
    cycles += a_bytes * beyond_l2_cycles(core, level_holding(core, int(a_bytes), threads))
    return cycles * _passes(geo)[0]


def _panel_bytes(geo: GemmGeometry) -> tuple[int, int]:
    """Sizes of a panel of A and of one of B."""
    types, c = geo.workload.types, geo.config
    return types.a_bytes * geo.kc * c.mr, types.b_bytes * geo.kc * c.nr


def _passes(geo: GemmGeometry) -> tuple[int, int]:
    """How often A and B are read from where they lie, if L2 holds what it should."""
    return geo.blocks_n, geo.blocks_m


def _beyond_l2_cycles(
    geo: GemmGeometry, core: Core, threads: int, loop: str, share: float, busy: float
) -> float:
    """Cycles by which one thread's traffic beyond L2 lengthens `busy` cycles of all else.

    The operand that passes by comes while other panels are in use. A block of the other is in use
    for long, but comes during the first tile of all that use it: 128x3072x768 in fp32, A outside,
    has 0.69 to 0.86 of the peak where B outside has 0.89 to 0.94 (Golden Cove). Rows of C are
    written one after the other where A is outside, and their lines fetched ahead; where B is
    outside each tile's lines are new rows', and each waits for its own: 13 cycles a line, 0.85
    instead of 0.94 for 1024x1024x1024 in bytes. Not again where rows of other pages count.
    """
    a, b, c = _stream_cycles(geo, core, threads, loop, share)
    if geo.config.loop_order == B_OUTSIDE:
        block, passing, users = a, b, geo.block_n
    else:
        block, passing, users = b, a, geo.block_m
    row_bytes = geo.workload.n * geo.workload.types.out_bytes
    counted = _far_row_cycles(geo) > 0
    if geo.config.loop_order == A_OUTSIDE or row_bytes <= _NEAR_ROW_BYTES or counted:
        passing, c = passing + c, 0.0
    return c + sum(
        max(stream - (1 - EXPOSED) * behind, EXPOSED * stream)
        for stream, behind in ((block, busy / users), (passing, busy))
    )


def _stream_cycles(
    geo: GemmGeometry, core: Core, threads: int, loop: str, share: float
) -> tuple[float, float, float]:
    """Cycles of one thread's traffic beyond L2: of A, of B, of C."""
    w, c = geo.workload, geo.config
    # Panels of B are whole: 1000 columns are 1056 in panels of 96 and as much slower, 1008 in 48.
    columns = geo.tiles_n * c.nr
    a_bytes, b_bytes = w.types.a_bytes * w.m * w.k, w.types.b_bytes * w.k * columns
    c_bytes = w.types.out_bytes * w.m * w.n
    a_panel, b_panel = _panel_bytes(geo)
    passes_a, passes_b = _passes(geo)
    room = share_bytes(core, 2, threads)
    if c.loop_order == B_OUTSIDE and _block_of_a(geo, core) + 2 * b_panel > room:
        passes_a = geo.tiles_n
    if c.loop_order == A_OUTSIDE and geo.block_n * b_panel + 2 * a_panel > room:
        passes_b = geo.tiles_m
    # A thread that has a part of the rows reads that part of A, but all of B.
    part_a = share if loop in ("b", "ic") else 1.0
    part_b = share if loop in ("b", "jc") else 1.0
    # Blocks of k but the last store sums, which the next one loads.
    sums = 2 * (geo.blocks_k - 1) * w.m * w.n * _sum_bytes(w)
    # A cache that threads share holds one copy for all of them.
    total = w.batch * (a_bytes + b_bytes + c_bytes)
    cost = beyond_l2_cycles(core, level_holding(core, total, threads=1))
    # Weights are in no cache when a layer starts: all others' passed since.
    first_b = beyond_l2_cycles(core, 0)
    return (
        w.batch * a_bytes * passes_a * part_a * cost,
        w.batch * b_bytes * part_b * (first_b + (passes_b - 1) * cost),
        w.batch * (c_bytes + sums) * share * cost,
    )


def _block_of_a(geo: GemmGeometry, core: Core) -> float:
    """Bytes of L2 that a block of A takes; in place its rows are as far apart as A's."""
    size, item = geo.block_m * _panel_bytes(geo)[0], geo.workload.types.a_bytes
    if geo.packs(geo.kc):
        return size
    return taken_bytes(core, 2, size, geo.kc * item, geo.workload.k * item)


def _footprint(geo: GemmGeometry, core: Core, threads: int) -> tuple[Placed, ...]:
    c = geo.config
    a_panel, b_panel = _panel_bytes(geo)
    a_block, b_block = geo.block_m * a_panel, geo.block_n * b_panel
    if c.loop_order == B_OUTSIDE:
        sizes = [("Br", b_panel), ("Ac", a_block), ("Bc", b_block)]
    else:
        sizes = [("Ar", a_panel), ("Bc", b_block), ("Ac", a_block)]
    return tuple(placed(core, operand, size, threads) for operand, size in sizes)
