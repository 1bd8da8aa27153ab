"""Which blocks of queries and keys attention takes, by predicted time.

A thread takes `queries` rows of Q of one head, copied side by side, and keeps their sums of V. Keys
and values pass by in blocks of `keys`, packed into panels: with Q and the sums they stay in L2. In
front of each block a strip of `strip` rows of scores is in L1, where its softmax reads it twice;
the tiles of a strip share each panel of K, and of V, while that is in L1.

    larger blocks of queries    share the packing of keys and values
    smaller ones                divide evenly among threads, and leave fewer rows of a last tile
    larger blocks of keys       rescale the sums of V less often
    smaller ones                keep a strip in L1
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from tvm_blislike.cost_models.issue import CALL_CYCLES, call_cycles
from tvm_blislike.cost_models.roofline import clock_hz, fork_cycles
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.microkernels.products import groups
from tvm_blislike.model.attention import Attention

# Share of L2 that a thread's blocks may take, and of L1 that a strip of scores may.
_L2_SHARE, _L1_SHARE = 0.75, 0.4
# Tiles of a strip, and columns of a block of keys.
_TILES = (1, 2, 4)
_MOST_KEYS = 384
# Kernels for which blocks are tried: those whose products take least.
_KERNELS = 3
# Cycles for a vector of scores: exponential, maximum, sum, and what masks take; for what a row of
# a block has beside its vectors (Sapphire Rapids).
_EXP_CYCLES, _MASK_CYCLES, _ROW_CYCLES = 8.0, 2.0, 12.0
# Cycles for a vector of K and V to be packed, of Q to be copied, and of sums to be rescaled.
_PACK_CYCLES, _COPY_CYCLES, _RESCALE_CYCLES = 5.0, 1.5, 2.0
_BYTES = 4
# Rows up to which an open number of rows has blocks of its own: what those of many rows take is all
# copies of rows and columns that do not exist (12 heads of 32, 1 to 4 rows: 11 microseconds with
# 26x16 blocks, where a kernel of that number takes 3; Zen 4).
FEW_ROWS = 8
# Steps of k that a product of a block may take at once: panels are packed for as many.
_MOST_STEPS = 2


@dataclass(frozen=True)
class Blocks:
    """How an attention is cut.

    Parameters
    ----------
    kernel : Microkernel
        Of both products.
    queries : int
        Rows of a block that a thread takes at once: whole strips.
    tiles : int
        Of `kernel.mr` rows, in a strip.
    keys : int
        Columns of a block of scores: whole panels.
    """

    kernel: Microkernel
    queries: int
    tiles: int
    keys: int

    @property
    def strip(self) -> int:
        """Rows of a strip."""
        return self.tiles * self.kernel.mr

    def __str__(self) -> str:
        return f"{self.kernel.name}, {self.queries} queries by {self.keys} keys"


@dataclass(frozen=True)
class Few:
    """Blocks for so many rows and fewer, where running tells how many there are."""

    rows: int
    blocks: Blocks


@functools.cache
def blocks_of(attention: Attention, core: Core, threads: int) -> Blocks:
    """Return the blocks of smallest predicted time."""
    return min(_candidates(attention, core), key=lambda b: seconds(attention, b, core, threads))


def seconds(attention: Attention, blocks: Blocks, core: Core, threads: int) -> float:
    """Return the predicted time."""
    tasks = attention.batch * math.ceil(attention.rows / blocks.queries)
    turns = math.ceil(tasks / threads)
    # The last block of queries has fewer rows.
    share = max(turns / tasks, 1 / threads)
    cycles = attention.batch * _cycles(attention, blocks, core) * share
    return (cycles + (fork_cycles(core) if threads > 1 else 0.0)) / clock_hz(core)


def workspace_bytes(attention: Attention, blocks: Blocks) -> int:
    """Return the memory that a thread needs beside operands and result."""
    nr, strip = blocks.kernel.nr, blocks.strip
    width = _up(attention.width, nr)
    types = blocks.kernel.types
    rows = blocks.queries * (width + blocks.kernel.lanes + 1)
    factors = blocks.queries * attention.depth * types.a_bytes
    factors += blocks.keys * (attention.depth + width) * types.b_bytes
    if types.a != "float32":
        factors += strip * blocks.keys * types.a_bytes
    return factors + _BYTES * (rows + strip * (blocks.keys + 3))


def able_kernels(attention: Attention, core: Core) -> tuple[Microkernel, ...]:
    """Return the micro-kernels that both products may take, of the types of their factors."""
    return tuple(filter(_is_able, kernels_for(core, attention.types)))


def _is_able(kernel: Microkernel) -> bool:
    """Whether operands are packed for a micro-kernel, and C is its own registers."""
    product = kernel.product
    plain = kernel.tiles is None and product.rows == product.joined == 1
    return plain and kernel.ks <= _MOST_STEPS


def _candidates(attention: Attention, core: Core) -> Iterator[Blocks]:
    able = able_kernels(attention, core)
    kernels = sorted(able, key=lambda k: _products(attention, k, core))
    for kernel in kernels[:_KERNELS]:
        for tiles in _TILES:
            for keys in _key_blocks(attention, kernel):
                yield from _query_blocks(attention, kernel, tiles, keys, core)


def _key_blocks(attention: Attention, kernel: Microkernel) -> Iterator[int]:
    """Yield blocks of keys of about equal size, whole panels."""
    panels = math.ceil(attention.columns / kernel.nr)
    sizes = {math.ceil(panels / blocks) for blocks in range(1, panels + 1)}
    fitting = [kernel.nr * size for size in sizes if kernel.nr * size <= _MOST_KEYS]
    yield from fitting


def _query_blocks(
    attention: Attention, kernel: Microkernel, tiles: int, keys: int, core: Core
) -> Iterator[Blocks]:
    """Yield the largest block of queries that fits into the caches, and smaller ones."""
    strip = tiles * kernel.mr
    strips = math.ceil(attention.rows / strip)
    l1, l2 = (core.cache(level) for level in (1, 2))
    if l1 is not None and _BYTES * strip * keys > _L1_SHARE * l1.bytes and tiles > 1:
        return
    most = _L2_SHARE * l2.bytes / l2.shared_by if l2 is not None else math.inf
    sizes = sorted({math.ceil(strips / parts) for parts in range(1, strips + 1)}, reverse=True)
    fitting = (Blocks(kernel, strip * size, tiles, keys) for size in sizes)
    small = [b for b in fitting if workspace_bytes(attention, b) <= most or b.queries == strip]
    yield from small[:8]


def _cycles(attention: Attention, blocks: Blocks, core: Core) -> float:
    """Return the cycles of one of the batch."""
    kernel, (rows, columns) = blocks.kernel, (attention.rows, attention.columns)
    passes, last = divmod(rows, blocks.queries)
    tiles = passes * blocks.queries // kernel.mr + math.ceil(last / kernel.mr)
    passes += last > 0
    key_blocks, wide = math.ceil(columns / blocks.keys), math.ceil(attention.width / kernel.nr)
    calls = CALL_CYCLES * (math.ceil(columns / kernel.nr) + wide * key_blocks)
    vectors = rows * math.ceil(columns / kernel.lanes)
    softmax = vectors * (_EXP_CYCLES + _MASK_CYCLES * len(attention.masks))
    softmax += _ROW_CYCLES * rows * key_blocks
    packed = columns * (attention.depth + attention.width) / kernel.lanes * passes
    sums = rows * wide * kernel.vectors * key_blocks
    loads = _panel_cycles(attention, blocks, core) * tiles / blocks.tiles
    return (
        tiles * (_tile_cycles(attention, kernel, core) + calls)
        + softmax
        + loads
        + _PACK_CYCLES * packed
        + _RESCALE_CYCLES * sums
        + _COPY_CYCLES * rows * attention.depth / kernel.lanes
    )


def _products(attention: Attention, kernel: Microkernel, core: Core) -> float:
    """Return the cycles of the products of one of the batch, all rows of which are one block."""
    tiles = math.ceil(attention.rows / kernel.mr)
    wide = sum(math.ceil(size / kernel.nr) for size in (attention.columns, attention.width))
    return tiles * (_tile_cycles(attention, kernel, core) + CALL_CYCLES * wide)


@functools.lru_cache(maxsize=256)
def _tile_cycles(attention: Attention, kernel: Microkernel, core: Core) -> float:
    """Return the cycles of both products of a tile of rows."""
    panels, wide = (math.ceil(n / kernel.nr) for n in (attention.columns, attention.width))
    sizes = (kernel, kernel.mr, kernel.vectors)
    steps, keys = (groups(n, kernel.ks) for n in (attention.depth, attention.columns))
    first = panels * call_cycles(core, *sizes, steps)
    return first + wide * call_cycles(core, *sizes, keys)


def _panel_cycles(attention: Attention, blocks: Blocks, core: Core) -> float:
    """Return the cycles in which the panels of all keys come from L2 to L1, for one strip.

    Half of that way is in front of the calls that use them.
    """
    l2 = core.cache(2)
    if l2 is None:
        return 0.0
    size = blocks.kernel.types.b_bytes * attention.columns * (attention.depth + attention.width)
    return 0.5 * size / l2.bytes_per_cycle


def _up(size: int, block: int) -> int:
    return math.ceil(size / block) * block
