"""Configurations of products whose number of rows stays open.

Each is the choice of one of the sizes that are compared: that which at its worst size loses least,
by the cost model, to what would be chosen there. A product is scheduled for whole blocks of rows,
of a size among those that may come: the largest of which every product has whole tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.errors import SizesMeetError
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.config import Config
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.workload import GemmWorkload, Workload
from tvm_blislike.passes.lengths.samples import Affine, number_of
from tvm_blislike.passes.plan import Plan
from tvm_blislike.schedules import all_implementations


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
    found = []
    for choices in zip(*layers, strict=True):
        workloads = [choice.workload for choice in choices]
        if len(set(workloads)) == 1:
            continue
        if not all(_opens(choice.implementation) for choice in choices):
            raise SizesMeetError(f"{workloads[-1]} cannot have an open size")
        found.append(Product(_rows(workloads, sizes), _for_all(choices, strategy)))
    return found


def _for_all(choices: Sequence[Choice], strategy: Strategy) -> Choice:
    """Return the choice of some sizes that is never far from the best."""
    candidates = list({choice.config: choice for choice in reversed(choices)}.values())

    def seconds(choice: Choice, workload: Workload) -> float:
        estimate = choice.implementation.estimate
        return estimate(workload, choice.config, strategy.core, strategy.threads).seconds

    workloads = [choice.workload for choice in choices]
    best = [min(seconds(c, w) for c in candidates) for w in workloads]

    def worst(choice: Choice) -> float:
        return max(seconds(choice, w) / least for w, least in zip(workloads, best, strict=True))

    return min(candidates, key=worst)


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
        if all(p.rows.at(size) % p.choice.config.mr == 0 for p in products):
            return size
    raise SizesMeetError(f"no size up to {most} has whole tiles of all products")


def pinned(strategy: Strategy, products: Sequence[Product], sizes: Sequence[int]) -> Strategy:
    """Return a strategy that chooses for the last of some sizes, and the same for the others."""
    configs: dict[Workload, Config] = {}
    for product in products:
        config = _open(product, sizes[-1], strategy.threads)
        configs.update({product.at(size): config for size in sizes})

    def override(workload: Workload) -> object:
        if workload in configs:
            return configs[workload]
        return None if strategy.override is None else strategy.override(workload)

    return strategy.overruled(override)


def _open(product: Product, size: int, threads: int) -> Config:
    """Return the configuration for any number of rows, scheduled for those of a size."""
    choice, workload = product.choice, product.at(size)
    config = choice.implementation.of_open_rows(workload, choice.config, threads)
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
