"""Ranges of sizes that have functions of their own.

Products of many rows are fastest otherwise than those of few: seven products of half the size take
less time only where all rows together use their weights. So there are two ranges where the cost
model finds that one configuration of each product for all sizes would lose at some size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.passes.lengths.products import OpenProduct, alone_at, opened, samples

# What a second range has to gain at some size, as a part of the time: with it go weights in another
# order, a function and kernels.
_LEAST_GAIN = 0.02
# The smallest size at which a second range begins.
_LEAST_CUT = 32


def ranges_of(products: Sequence[OpenProduct], sizes: range, strategy: Strategy) -> list[range]:
    """Return the ranges that some sizes fall into, in order: one or two."""
    strategy.estimate_all(p.at(size) for p in products for size in samples(sizes))
    tables = [_Table.of(product, sizes, strategy) for product in products]
    if not tables or not all(table.configs for table in tables):
        return [sizes]
    cuts = [size for size in samples(sizes)[1:-1] if size >= _LEAST_CUT]
    parted = [[range(sizes[0], cut), range(cut, sizes[-1] + 1)] for cut in cuts]
    whole, best = [sizes], min(parted, key=lambda parts: sum(_losses(tables, parts)), default=None)
    if best is None:
        return whole
    both = zip(_losses(tables, whole), _losses(tables, best), strict=True)
    return best if max(one - other for one, other in both) >= _LEAST_GAIN else whole


def _losses(tables: Sequence[_Table], parts: Sequence[range]) -> list[float]:
    """Return, for each sample, the time of all products in terms of the best for that size."""
    return [loss for part in parts for loss in _losses_in(tables, part)]


def _losses_in(tables: Sequence[_Table], part: range) -> list[float]:
    best = [table.best(part) for table in tables]
    inside = [size for size in tables[0].alone if size in part]
    return [
        sum(each[size] for each in best) / sum(table.alone[size] for table in tables)
        for size in inside
    ]


@dataclass(frozen=True)
class _Table:
    """Predicted seconds of a product.

    Parameters
    ----------
    alone : dict
        Size to what takes least there.
    configs : list of dict
        Size to seconds, of each configuration that may be for all sizes.
    """

    alone: dict[int, float]
    configs: list[dict[int, float]]

    @classmethod
    def of(cls, product: OpenProduct, sizes: range, strategy: Strategy) -> _Table:
        """Return the seconds at the samples of some sizes."""
        points = samples(sizes)
        choices = alone_at(product, points, strategy)
        if len(choices) < len(points):
            return cls({}, [])
        seconds = strategy.seconds
        alone = {
            size: seconds(c.workload, c.config) for size, c in zip(points, choices, strict=True)
        }
        largest, least = product.at(sizes[-1]), product.rows.at(sizes[0])
        found = dict.fromkeys(opened(c, largest, least, strategy.threads) for c in choices)
        configs = [config for config in found if config is not None]
        table = [{size: seconds(product.at(size), c) for size in points} for c in configs]
        return cls(alone, table)

    def best(self, part: range) -> dict[int, float]:
        """Return the seconds of the configuration that loses least in a range."""

        def lost(seconds: dict[int, float]) -> float:
            return sum(seconds[size] / self.alone[size] for size in seconds if size in part)

        return min(self.configs, key=lost)
