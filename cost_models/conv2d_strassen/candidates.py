"""Configurations of a 1x1 convolution by seven products of half the size worth an estimate."""

from __future__ import annotations

from collections.abc import Iterator

from tvm_blislike.cost_models.conv2d_strassen.config import ConvStrassenConfig
from tvm_blislike.cost_models.conv2d_strassen.product import product_of
from tvm_blislike.cost_models.gemm_strassen import candidates as of_products
from tvm_blislike.hardware import Core
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.workload import Conv2dWorkload


def applies(workload: Conv2dWorkload, core: Core) -> str:
    """Return "" for 1x1 convolutions of one image whose channels have halves, else why not."""
    w = workload
    if w.kh * w.kw > 1 or any(w.padding) or w.groups > 1:
        return "only for 1x1 kernels without padding or groups"
    if w.n > 1:
        return "pixels of several images are no rows of one matrix in blocked layouts"
    if lacking := of_products.applies(product_of(w), core):
        return lacking
    lanes = core.lanes(w.types.a)
    if w.ci % (2 * lanes):
        return f"half of {w.ci} channels is no multiple of {lanes}"
    return ""


def configs(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[ConvStrassenConfig]:
    """Yield the configurations worth estimating, those of the product."""
    layout = layout_of(workload, core)
    for config in of_products.configs(product_of(workload), core, threads):
        fields = config.changed_fields()
        fields.pop("implementation")
        yield ConvStrassenConfig(**fields, data_layout=layout, out_layout=layout)


def layout_of(workload: Conv2dWorkload, core: Core) -> Layout:
    """Return the layout of both images."""
    return Layout.blocked(core.lanes(workload.types.a))


def least_seconds(workload: Conv2dWorkload, core: Core, threads: int) -> float:
    """Return the time of nothing but the FMAs of the products."""
    return of_products.least_seconds(product_of(workload), core, threads)


def derivation(
    workload: Conv2dWorkload, config: ConvStrassenConfig, core: Core, threads: int
) -> tuple[str, ...]:
    """Say what bounds a block."""
    return of_products.derivation(product_of(workload), config, core, threads)
