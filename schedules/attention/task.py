"""What a thread works on while the code of attention is being built: its buffers, and where it is.

Numbers are expressions of TIR where they depend on loops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.cost_models.attention.blocks import Blocks
from tvm_blislike.microkernels.products import groups
from tvm_blislike.model.attention import Attention

_FLOAT = "float32"


def ceil_div(count: Any, size: int) -> Any:
    """Return how many groups of `size` hold `count`, which may be an expression."""
    return (count + (size - 1)) // size


@dataclass(frozen=True)
class Task:
    """Some rows of queries of one head.

    Parameters
    ----------
    operands : tuple
        Flat buffers of Q, K, V and of the result.
    masks : tuple
        Flat buffers of the masks that have views, in their order.
    head, first : expression
        Which of the batch, and the first of its rows.
    queries, sums : buffer
        (rows, depth, in whole groups of k) of Q, scaled, and (rows, whole panels of V) of O.
    most : buffer
        (strips, rows of a strip): the largest score so far.
    total : buffer
        (rows, lanes): the sum of the weights, of each lane by itself.
    keys, values : buffer
        Panels of a block of K and V, in groups of k: (panels, groups of depth, nr * ks), (panels,
        groups of steps, nr * ks).
    scores, weights : buffer
        Of a strip: (rows, whole panels of K). One buffer where both are float32.
    peak, less, rescale : buffer
        Of a strip, a number for each row: the largest score of the block, what is subtracted from
        scores, and the factor of what was summed before.
    """

    attention: Attention
    blocks: Blocks
    operands: tuple[Any, Any, Any, Any]
    masks: tuple[Any, ...]
    head: Any
    first: Any
    queries: Any
    sums: Any
    most: Any
    total: Any
    keys: Any
    values: Any
    scores: Any
    weights: Any
    peak: Any
    less: Any
    rescale: Any

    @classmethod
    def of(
        cls,
        attention: Attention,
        blocks: Blocks,
        operands: tuple[Any, Any, Any, Any],
        masks: tuple[Any, ...],
        head: Any,
        group: Any,
    ) -> Task:
        """Return a task with buffers of its own, the `group`th block of queries of a head."""
        kernel, factors = blocks.kernel, attention.factors
        nr, lanes, ks = kernel.nr, kernel.lanes, kernel.ks
        rows = math.ceil(blocks.strip / lanes) * lanes
        panels, steps = math.ceil(attention.width / nr), max(2, blocks.keys)
        depth = groups(attention.depth, ks)
        scores = (blocks.strip, math.ceil(steps / nr) * nr)
        made = {
            "queries": T.alloc_buffer((blocks.queries, depth * ks), factors),
            "sums": T.alloc_buffer((blocks.queries, panels * nr), _FLOAT),
            "most": T.alloc_buffer((blocks.queries // blocks.strip, rows), _FLOAT),
            "total": T.alloc_buffer((blocks.queries, lanes), _FLOAT),
            "keys": T.alloc_buffer((math.ceil(blocks.keys / nr), depth, nr * ks), factors),
            "values": T.alloc_buffer((panels, groups(steps, ks), nr * ks), factors),
            "scores": T.alloc_buffer(scores, _FLOAT),
            **{name: T.alloc_buffer((rows,), _FLOAT) for name in ("peak", "less", "rescale")},
        }
        is_wide = factors == _FLOAT
        made["weights"] = made["scores"] if is_wide else T.alloc_buffer(scores, factors)
        first = group * blocks.queries
        return cls(attention, blocks, operands, masks, head, first, **made)

    def rounded(self, value: Any) -> Any:
        """Return a value of float32 as products take it."""
        factors = self.attention.factors
        return value if factors == _FLOAT else tirx.Cast(factors, value)

    @property
    def count(self) -> Any:
        """Rows that there are, no more than `blocks.queries`."""
        rows, queries = self.attention.rows, self.blocks.queries
        is_even = isinstance(rows, int) and rows % queries == 0
        return queries if is_even else T.min(queries, rows - self.first)

    @property
    def tiles(self) -> Any:
        """Tiles of rows, the last of which may be cut."""
        mr = self.blocks.kernel.mr
        return (self.count + (mr - 1)) // mr

    @property
    def panels(self) -> int:
        """Panels of V."""
        return math.ceil(self.attention.width / self.blocks.kernel.nr)

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.blocks.kernel.lanes

    def last_column(self, row: Any) -> Any:
        """Return the last column that rows in front of one, of this task, may not leave out."""
        return self.first + row + (self.attention.diagonal - 1)


@dataclass(frozen=True)
class Block:
    """Some keys and values: `count` columns of scores from `first` on."""

    task: Task
    first: Any
    count: Any

    @property
    def panels(self) -> Any:
        """Panels of K."""
        return ceil_div(self.count, self.task.blocks.kernel.nr)

    @property
    def steps(self) -> Any:
        """Steps of the product with V: two at least, as micro-kernels take them.

        Whole vectors where it is known at run time only how many there are.
        """
        if isinstance(self.count, int):
            return max(2, self.count)
        return ceil_div(self.count, self.task.lanes) * self.task.lanes

    @property
    def groups(self) -> Any:
        """Groups of k of those steps."""
        return ceil_div(self.steps, self.task.blocks.kernel.ks)


@dataclass(frozen=True)
class Strip:
    """Some rows of a task before a block of keys."""

    block: Block
    number: Any

    @property
    def first(self) -> Any:
        """The first row of the task."""
        return self.number * self.block.task.blocks.strip

    @property
    def tiles(self) -> Any:
        """Tiles of rows."""
        task = self.block.task
        return T.min(task.blocks.tiles, task.tiles - self.number * task.blocks.tiles)

    @property
    def rows(self) -> Any:
        """Rows that there are."""
        task = self.block.task
        return T.min(task.blocks.strip, task.count - self.first)
