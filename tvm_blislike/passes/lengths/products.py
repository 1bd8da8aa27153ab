"""Configurations of products whose number of rows stays open.

Each is the choice of one of the sizes, powers of two and the largest: that which at its worst size
loses least, by the cost model, to what would be chosen there, with blocks as they suit the largest.
Of those that are about equal in that it is the one of the tallest register block, whose tiles read
panels of weights from L2 least often, and of the fewest blocks of k: the model takes weights to
come from memory, behind which that hides for few rows. For a hidden size of 384 it has 6x64 and
8x48 within a hundredth of each other; for 16 tokens in a model whose weights L3 holds 6x64 takes
1.2 times as long.

A product is scheduled for whole blocks of rows, of a size among those that may come: the largest of
which every product has whole tiles. Where there is none (29, 14 and 8 rows, and no size up to 150),
products take their next best choices until there is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.errors import SizesMeetError
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.config import Config
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.workload import GemmWorkload, Workload
from tvm_blislike.passes.lengths.samples import Affine, number_of
from tvm_blislike.passes.plan import Plan
from tvm_blislike.schedules import all_implementations, get_implementation

# Predicted times that count as equal.
_NEAR = 1.03


@dataclass(frozen=True)
class Product:
    """A product of an open number of rows.

    Parameters
    ----------
    rows : Affine
        Of the size.
    choice : Choice
        For all sizes.
    """

    rows: Affine
    choice: Choice

    def at(self, size: int) -> GemmWorkload:
        """Return the product of a size."""
        return replace(self.choice.workload, m=self.rows.at(size))


def for_open_rows(strategy: Strategy) -> Strategy:
    """Return the strategy without the implementations that have to know the rows of a product."""
    every = all_implementations()
    kinds = {each.kind for each in every if _opens(each)}
    return strategy.leaving_out(i.name for i in every if i.kind in kinds and not _opens(i))


def _opens(implementation: Implementation | None) -> bool:
    return getattr(implementation, "of_open_rows", None) is not None


def products_of(plans: Sequence[Plan], sizes: Sequence[int], strategy: Strategy) -> list[Product]:
    """Return the products that follow from the size, by the plans of some, the largest last.

    Raises
    ------
    SizesMeetError
        When a layer cannot have an open size.
    """
    layers = [list(plan.choices.values()) for plan in plans]
    if len({len(each) for each in layers}) > 1:
        raise SizesMeetError("other layers are computed at another size")
    found: dict[tuple[Workload, ...], tuple[Affine, list[Choice]]] = {}
    for choices in zip(*layers, strict=True):
        workloads = tuple(choice.workload for choice in choices)
        if len(set(workloads)) == 1 or workloads in found:
            continue
        if not all(_opens(choice.implementation) for choice in choices):
            raise SizesMeetError(f"{workloads[-1]} cannot have an open size")
        rows = _rows(workloads, sizes)
        found[workloads] = rows, _for_all(choices, rows, sizes[-1], strategy)
    return _of_a_common_size(list(found.values()), sizes[-1])


def _of_a_common_size(found: Sequence[tuple[Affine, Sequence[Choice]]], most: int) -> list[Product]:
    """Return products that have whole tiles at some size up to `most`, where there is one.

    Each is of the first of its choices, or of one as little further back as possible.
    """
    longest = max((len(choices) for _, choices in found), default=0)
    for depth in range(1, longest + 1):
        for size in range(most, 0, -1):
            fitting = [_whole_at(rows, choices[:depth], size) for rows, choices in found]
            if all(fitting):
                return [Product(rows, c) for (rows, _), c in zip(found, fitting, strict=True)]
    return [Product(rows, choices[0]) for rows, choices in found]


def _whole_at(rows: Affine, choices: Iterable[Choice], size: int) -> Choice | None:
    """Return the first choice that has whole tiles at a size."""
    return next((c for c in choices if rows.at(size) % c.config.tile_rows == 0), None)


def _for_all(
    choices: Sequence[Choice], rows: Affine, most: int, strategy: Strategy
) -> list[Choice]:
    """Return choices of sizes and their rivals, first what is never far from the best."""
    largest = choices[-1].workload
    steps = (rows.at(1 << power) for power in range(most.bit_length()))
    workloads = [*(replace(largest, m=m) for m in steps if 0 < m < largest.m), largest]
    alone = [c for c in map(strategy.choose, workloads) if _opens(c.implementation)]
    candidates = {choice.config: choice for choice in (*choices, *alone)}
    if all(choice.is_fastest_predicted for choice in candidates.values()):
        for config in _rivals(candidates, strategy.offers(largest)):
            candidates.setdefault(config, _rival(largest, config))

    def worst(choice: Choice) -> float:
        config = _open(choice, largest, strategy.threads)
        return max(
            strategy.seconds(one.workload, config) / strategy.seconds(one.workload, one.config)
            for one in alone
        )

    losses = [(worst(choice), choice) for choice in candidates.values()]
    near = _NEAR * min(loss for loss, _ in losses)

    def order(entry: tuple[float, Choice]) -> tuple[float, int, int, float]:
        loss, choice = entry
        return max(loss, near), -choice.config.mr, -_depth(choice.config), loss

    return [choice for _, choice in sorted(losses, key=order)]


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


def scheduled_size(products: Sequence[Product], most: int) -> int:
    """Return the size that products are scheduled for: whole tiles of each.

    Raises
    ------
    SizesMeetError
        When there is none up to `most`.
    """
    for size in range(most, 0, -1):
        if all(p.rows.at(size) % p.choice.config.tile_rows == 0 for p in products):
            return size
    raise SizesMeetError(f"no size up to {most} has whole tiles of all products")


def pinned(strategy: Strategy, products: Sequence[Product], sizes: Sequence[int]) -> Strategy:
    """Return a strategy that chooses for the last of some sizes, and the same for the others."""
    configs: dict[Workload, Config] = {}
    for product in products:
        config = _open(product.choice, product.at(sizes[-1]), strategy.threads)
        configs.update({product.at(size): config for size in sizes})

    def override(workload: Workload) -> object:
        if workload in configs:
            return configs[workload]
        return None if strategy.override is None else strategy.override(workload)

    return strategy.overruled(override)


def _open(choice: Choice, workload: GemmWorkload, threads: int) -> Config:
    """Return the configuration for any number of rows, of a product of about so many."""
    rows = choice.config.tile_rows
    whole = replace(workload, m=math.ceil(workload.m / rows) * rows)
    config = choice.implementation.of_open_rows(whole, choice.config, threads)
    if config is None:
        raise SizesMeetError(f"{workload} is none of single matrices in float32")
    return config


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
