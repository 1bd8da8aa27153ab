"""Every configuration of a 1x1 convolution by seven products of half the size."""

from __future__ import annotations

from dataclasses import replace

from tvm_blislike.cost_models.conv2d_strassen.candidates import layout_of
from tvm_blislike.cost_models.conv2d_strassen.config import ConvStrassenConfig
from tvm_blislike.cost_models.conv2d_strassen.product import product_of
from tvm_blislike.cost_models.gemm_strassen.space import space as of_product
from tvm_blislike.hardware import Core
from tvm_blislike.model.space import Space
from tvm_blislike.model.workload import Conv2dWorkload


def space(workload: Conv2dWorkload, core: Core, threads: int) -> Space:
    """Return the choices of the product, in the layout of the images."""
    layout = layout_of(workload, core)
    start = ConvStrassenConfig(data_layout=layout, out_layout=layout)
    return replace(of_product(product_of(workload), core, threads), start=start)
