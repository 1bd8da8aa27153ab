"""Configurations of products whose number of rows stays open.

Each is the choice of one of some sizes (`samples`), or a rival of it: that which at its worst size
loses least, by the cost model, to what would be chosen there, with blocks as they suit the largest.
Of those that are about equal in that it is the one of the tallest register block, whose tiles read
panels of weights from L2 least often, and of the fewest blocks of k: the model takes weights to
come from memory, behind which that hides for few rows. For a hidden size of 384 it has 6x64 and
8x48 within a hundredth of each other; for 16 tokens in a model whose weights L3 holds 6x64 takes
1.2 times as long.

A product is scheduled for whole blocks of rows, of a size among those that may come of which every
product has whole tiles: that where the blocks that divide these lose least. Where there is none
(29, 14 and 8 rows, and no size up to 150), products take their next best choices until there is
one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.errors import SizesMeetError
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.config import Config
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.workload import GemmWorkload, Workload
from tvm_blislike.passes.lengths.samples import Affine, number_of
from tvm_blislike.passes.plan import Plan
from tvm_blislike.schedules import get_implementation

# Predicted times that count as equal.
_NEAR = 1.03
# Sizes of which few tiles have all rows, so that how they are cut shows.
_FEW_TILES = 32


@dataclass(frozen=True)
class OpenProduct:
    """A product whose number of rows follows from the size.

    Parameters
    ----------
    rows : Affine
        Of the size.
    choices : tuple of Choice
        At the sizes that are compared, the largest last.
    """

    rows: Affine
    choices: tuple[Choice, ...]

    def at(self, size: int) -> GemmWorkload:
        """Return the product of a size."""
        return replace(self.choices[-1].workload, m=self.rows.at(size))


@dataclass(frozen=True)
class Product:
    """A product with what is chosen for it at all sizes of a range.

    Parameters
    ----------
    rows : Affine
        Of the size.
    choice : Choice
        For all of them.
    least : int
        The smallest number of rows.
    """

    rows: Affine
    choice: Choice
    least: int

    def at(self, size: int) -> GemmWorkload:
        """Return the product of a size."""
        return replace(self.choice.workload, m=self.rows.at(size))


def opens(implementation: Implementation | None) -> bool:
    """Whether an implementation may have an open number of rows."""
    return getattr(implementation, "of_open_rows", None) is not None


def products_of(plans: Sequence[Plan], sizes: Sequence[int]) -> list[OpenProduct]:
    """Return the products that follow from the size, by the plans of some, the largest last.

    Raises
    ------
    SizesMeetError
        When a layer cannot have an open size.
    """
    layers = [list(plan.choices.values()) for plan in plans]
    if len({len(each) for each in layers}) > 1:
        raise SizesMeetError("other layers are computed at another size")
    found: dict[tuple[Workload, ...], OpenProduct] = {}
    for choices in zip(*layers, strict=True):
        workloads = tuple(choice.workload for choice in choices)
        if len(set(workloads)) == 1 or workloads in found:
            continue
        if not all(opens(choice.implementation) for choice in choices):
            raise SizesMeetError(f"{workloads[-1]} cannot have an open size")
        found[workloads] = OpenProduct(_rows(workloads, sizes), choices)
    return list(found.values())


def chosen_for(
    products: Sequence[OpenProduct], sizes: range, strategy: Strategy
) -> tuple[list[Product], int]:
    """Return products with what is chosen for a range of sizes, and the size to schedule them for.

    That is one of the range, or below it, of which each has whole tiles: where the blocks that
    divide these lose least.

    Raises
    ------
    SizesMeetError
        When there is none.
    """
    rated = [_Rated.of(product, sizes, strategy) for product in products]
    found = _of_a_common_size(rated, sizes[-1])
    if found is None:
        raise SizesMeetError(f"no size up to {sizes[-1]} has whole tiles of all products")
    choices, size = found
    pairs = zip(products, choices, strict=True)
    return [Product(p.rows, choice, p.rows.at(sizes[0])) for p, choice in pairs], size


def _of_a_common_size(rated: Sequence[_Rated], most: int) -> tuple[list[Choice], int] | None:
    """Return the choices that lose least where all have whole tiles, and that size; None for none.

    The largest of sizes that are equal in that.
    """
    best = None
    for size in range(most, 0, -1):
        fitting = [each.best_at(size) for each in rated]
        if not all(fitting):
            continue
        seconds = sum(fit.loss * each.weight for fit, each in zip(fitting, rated, strict=True))
        if best is None or seconds < best[0]:
            best = seconds, [fit.choice for fit in fitting], size
    return None if best is None else best[1:]


@dataclass(frozen=True)
class _Fit:
    """A choice with the part that it loses, at its worst size."""

    choice: Choice
    loss: float


@dataclass(frozen=True)
class _Rated:
    """A product beside what would be chosen at some sizes of a range.

    Parameters
    ----------
    least : int
        The smallest number of rows.
    alone : tuple of Choice
        At those sizes, the largest last.
    choices : tuple of Choice
        What may be chosen for all of them, first what is never far from the best.
    """

    product: OpenProduct
    strategy: Strategy
    least: int
    alone: tuple[Choice, ...]
    choices: tuple[Choice, ...]
    _losses: dict[Config, float] = field(default_factory=dict)

    @classmethod
    def of(cls, product: OpenProduct, sizes: range, strategy: Strategy) -> _Rated:
        """Rate the choices of a range, and their rivals.

        Raises
        ------
        SizesMeetError
            When none may have an open number of rows.
        """
        alone = alone_at(product, samples(sizes), strategy)
        ends = [product.rows.at(size) for size in (sizes[0], sizes[-1])]
        given = [c for c in product.choices if ends[0] <= c.workload.m <= ends[1]]
        found = {choice.config: choice for choice in (*given, *alone)}
        largest = product.at(sizes[-1])
        if all(choice.is_fastest_predicted for choice in found.values()):
            for config in _rivals(found, strategy.offers(largest)):
                found.setdefault(config, _rival(largest, config))
        able = [c for c in found.values() if opened(c, largest, ends[0], strategy.threads)]
        if not able or not alone:
            raise SizesMeetError(f"{largest} is none of single matrices in float32")
        rated = cls(product, strategy, ends[0], tuple(alone), tuple(able))
        return replace(rated, choices=tuple(rated._ordered(able, largest.m)))

    @property
    def weight(self) -> float:
        """What a loss counts for: the time at the largest size."""
        return self._alone_seconds(self.alone[-1])

    def best_at(self, size: int) -> _Fit | None:
        """Return the choice that loses least of those of whole tiles at a size; None for none."""
        rows = self.product.rows.at(size)
        whole = [c for c in self.choices if rows > 0 and rows % c.config.tile_rows == 0]
        ordered = self._ordered(whole, rows)
        return _Fit(ordered[0], self._loss(ordered[0], rows)) if ordered else None

    def _ordered(self, choices: Iterable[Choice], rows: int) -> list[Choice]:
        """Return choices in blocks as they suit so many rows, what loses least first."""
        losses = [(self._loss(choice, rows), choice) for choice in choices]
        near = _NEAR * min((loss for loss, _ in losses), default=1.0)

        def order(entry: tuple[float, Choice]) -> tuple[float, int, int, bool, float]:
            loss, choice = entry
            config = choice.config
            # A block of one tile, as of a size that has no more, shares no panel among tiles.
            is_single = config.mc == config.tile_rows
            return max(loss, near), -config.tile_rows, -_depth(config), is_single, loss

        return [choice for _, choice in sorted(losses, key=order)]

    def _loss(self, choice: Choice, rows: int) -> float:
        workload = replace(self.product.choices[-1].workload, m=rows)
        config = opened(choice, workload, self.least, self.strategy.threads)
        if config not in self._losses:
            self._losses[config] = max(
                self.strategy.seconds(one.workload, config) / self._alone_seconds(one)
                for one in self.alone
            )
        return self._losses[config]

    def _alone_seconds(self, choice: Choice) -> float:
        return self.strategy.seconds(choice.workload, choice.config)


def samples(sizes: range) -> list[int]:
    """Return the sizes of a range that stand for it: its ends, powers of two, and some small ones.

    Those between, and one more than these, which blocks of as many rows suit worst: 8x48 blocks
    take 1.2 times as long as others for 9 rows, but not for 8 and 16 (Zen 4).
    """
    powers = [1 << power for power in range(sizes[-1].bit_length())]
    whole = [n for power in powers for n in (power, 3 * power // 2) if n <= _FEW_TILES]
    small = [n for each in whole for n in (each, each + 1)]
    return sorted({sizes[0], *(n for n in (*powers, *small) if n in sizes), sizes[-1]})


def alone_at(product: OpenProduct, sizes: Iterable[int], strategy: Strategy) -> list[Choice]:
    """Return what would be chosen at each of some sizes, as far as that may have open rows."""
    found = (strategy.choose(product.at(size)) for size in sizes)
    return [choice for choice in found if opens(choice.implementation)]


def _rivals(chosen: Iterable[Config], offers: Iterable[tuple[Config, float]]) -> list[Config]:
    """Return the fastest offer of each register block and depth that some size would have."""
    wanted, fastest = {_block(config) for config in chosen}, {}
    for config, _ in sorted(offers, key=lambda offer: offer[1]):
        if _block(config) in wanted:
            fastest.setdefault(_block(config), config)
    return list(fastest.values())


def _rival(workload: Workload, config: Config) -> Choice:
    reason = "never far from the fastest"
    return Choice(workload, get_implementation(config.implementation), config, None, reason)


def _block(config: Config) -> tuple[str, int, int, int]:
    return config.implementation, config.mr, config.nr, _depth(config)


def _depth(config: Config) -> int:
    """Return the steps of a block of k; 0 where an algorithm has none."""
    return getattr(config, "kc", 0)


def _rows(workloads: Sequence[GemmWorkload], sizes: Sequence[int]) -> Affine:
    last = workloads[-1]
    if len({replace(w, m=1) for w in workloads}) > 1:
        raise SizesMeetError(f"more than the rows of {last} follow from the size")
    rows = number_of([w.m for w in workloads], sizes)
    if rows.at(0) < 0:
        raise SizesMeetError(f"{last} has fewer rows than the size")
    return rows


def pinned(strategy: Strategy, products: Sequence[Product], sizes: Sequence[int]) -> Strategy:
    """Return a strategy that chooses for the last of some sizes, and the same for the others."""
    configs: dict[Workload, Config] = {}
    for product in products:
        largest, least = product.at(sizes[-1]), product.least
        config = opened(product.choice, largest, least, strategy.threads)
        configs.update({product.at(size): config for size in sizes})

    def override(workload: Workload) -> object:
        if workload in configs:
            return configs[workload]
        return None if strategy.override is None else strategy.override(workload)

    return strategy.overruled(override)


def opened(choice: Choice, workload: GemmWorkload, least: int, threads: int) -> Config | None:
    """Return the configuration for any number of rows, of a product of about so many.

    None for what cannot have an open number of rows.

    Parameters
    ----------
    least : int
        The smallest number of rows that may come.
    """
    rows = choice.config.tile_rows
    whole = replace(workload, m=math.ceil(workload.m / rows) * rows)
    return choice.implementation.of_open_rows(whole, choice.config, threads, least)


def chosen_at(
    products: Sequence[Product], size: int, configs: Mapping[Workload, Config]
) -> list[Choice]:
    """Return the choices that the kernels of a scheduled size note, with their reasons."""
    return [
        replace(
            product.choice,
            workload=product.at(size),
            config=configs[product.at(size)],
            estimate=None,
            reason=f"any number of rows, as of {product.choice.workload}: {product.choice.reason}",
        )
        for product in products
    ]
