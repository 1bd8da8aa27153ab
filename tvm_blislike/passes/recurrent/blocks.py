"""Register blocks of a recurrent kernel, and what its threads divide.

A block has mr rows of the batch and, for each of them, all gates of `vectors` vectors of units.
Every step reads the recurrent weights once, from the cache that they fit into, so a block of one
row is bound by its loads, one of several by its multiply-adds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm_blislike.cost_models.issue import CALL_CYCLES
from tvm_blislike.cost_models.moving import bytes_per_cycle
from tvm_blislike.hardware import Core

# Accumulators of one sum, added at its end: they hide the latency of few multiply-adds.
_CHAINS = (1, 2, 4)
_MOST_VECTORS, _MOST_ROWS = 4, 8
_FLOAT = 4
# Cycles in which threads wait for each other at the end of a step: lines that pass between cores,
# and a yield. 0.3 to 0.6 microseconds on two cores of Zen 3.
BARRIER_CYCLES = 2000


@dataclass(frozen=True)
class Block:
    """A register block, and the parts into which threads divide the units.

    Parameters
    ----------
    mr : int
        Rows of the batch.
    vectors, lanes : int
        Vectors of units, and units of a vector.
    chains : int
        Accumulators of each sum.
    parts : int
        Parts of the units, each a thread's; 0 where threads divide directions and rows.
    row_parts : int
        Parts of the rows of the batch, each a thread's, where they divide these.
    """

    mr: int
    vectors: int
    lanes: int
    chains: int = 1
    parts: int = 0
    row_parts: int = 1

    @property
    def nr(self) -> int:
        """Units of a block."""
        return self.vectors * self.lanes

    def each(self, batch: int) -> int:
        """Blocks of rows that a thread has where threads divide them."""
        return math.ceil(math.ceil(batch / self.mr) / self.row_parts)

    def groups(self, hidden: int) -> int:
        """Blocks of all units."""
        return -(-hidden // self.nr)

    def padded(self, hidden: int) -> int:
        """Units with those that fill the last block."""
        return self.groups(hidden) * self.nr


@dataclass(frozen=True)
class Sizes:
    """What a step of a layer multiplies.

    Parameters
    ----------
    batch, hidden, directions : int
        Rows, units, directions.
    phases : tuple of int
        Gates of each product of a step.
    """

    batch: int
    hidden: int
    directions: int
    phases: tuple[int, ...]


def block_for(sizes: Sizes, core: Core, threads: int) -> Block:
    """Return the block of smallest predicted time for a step, and the parts of threads.

    Threads divide directions first, then rows of the batch, which do not know of each other either,
    or instead of both the units: then they wait for each other, and read what others have written.
    An LSTM of 256 units and 8 rows, two cores of Zen 4: 2.2 ms by units and 2.1 by rows for 100
    steps where they share an L3; where they do not, the model took 0.4 to 0.9 ms more by units.
    """
    blocks = list(_fitting(sizes, core))
    by_rows = max(1, min(sizes.batch, threads // sizes.directions))
    options = [replace(block, row_parts=by_rows) for block in blocks]
    if threads > sizes.directions:
        parts = ((block, min(threads, block.groups(sizes.hidden))) for block in blocks)
        options += [replace(block, parts=count) for block, count in parts if count > 1]
    return min(options, key=lambda block: (thread_cycles(sizes, block, core), block.nr))


def thread_cycles(sizes: Sizes, block: Block, core: Core) -> float:
    """Return the predicted cycles of a step by the thread that has most to do."""
    if not block.parts:
        rows = min(sizes.batch, block.mr * block.each(sizes.batch))
        return step_cycles(replace(sizes, batch=rows), block, core)
    groups = block.groups(sizes.hidden)
    share = -(-groups // block.parts) / groups
    waiting = len(sizes.phases) * BARRIER_CYCLES
    return sizes.directions * share * step_cycles(sizes, block, core) + waiting


def _fitting(sizes: Sizes, core: Core) -> Iterator[Block]:
    """Yield the blocks that stay in registers."""
    for mr in range(1, min(_MOST_ROWS, sizes.batch) + 1):
        for vectors in range(1, _MOST_VECTORS + 1):
            for chains in _CHAINS:
                block = Block(mr, vectors, core.lanes(), chains)
                if _registers(max(sizes.phases), block, core) <= core.vector_registers:
                    yield block


def _registers(gates: int, block: Block, core: Core) -> int:
    """Registers of sums, of states and of weights.

    Of one row the weights are operands in memory where the instruction set has such; of several,
    either all states of a step stay, or all weights.
    """
    weights = gates * block.vectors
    sums = block.mr * weights * block.chains
    if core.isa.lane_operand:
        return sums + block.mr + 2
    return sums + (1 if block.mr == 1 else min(block.mr, weights) + 1)


def step_cycles(sizes: Sizes, block: Block, core: Core) -> float:
    """Return the predicted cycles of a step of one direction, by one thread."""
    whole, rest = divmod(sizes.batch, block.mr)
    level = _level(sizes, block, core)
    cycles = 0.0
    for gates in sizes.phases:
        weights = gates * block.vectors
        arrives = weights * block.lanes * _FLOAT / bytes_per_cycle(core, level)
        blocks = [block.mr] * whole + [rest] * bool(rest)
        for number, rows in enumerate(blocks):
            busy = max(
                rows * weights / core.fma_per_cycle,
                (rows + weights) / core.loads_per_cycle,
                core.fma_latency / block.chains,
                0.0 if number else arrives,
            )
            cycles += sizes.hidden * busy + CALL_CYCLES
    return cycles * block.groups(sizes.hidden)


def _level(sizes: Sizes, block: Block, core: Core) -> int:
    """Return the nearest cache that holds the recurrent weights of a direction, 0 for none."""
    size = sum(sizes.phases) * sizes.hidden * block.padded(sizes.hidden) * _FLOAT
    return next((cache.level for cache in core.caches if size <= cache.bytes), 0)


def flops(sizes: Sizes, steps: int) -> int:
    """Return the operations of the recurrent products of all steps."""
    return (
        2 * steps * math.prod((sizes.batch, sizes.hidden**2, sizes.directions, sum(sizes.phases)))
    )
