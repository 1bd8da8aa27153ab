"""Predicted time of a 1x1 convolution by seven products of half the size: that of the product."""

from __future__ import annotations

from tvm_blislike.cost_models.conv2d_strassen.config import ConvStrassenConfig
from tvm_blislike.cost_models.conv2d_strassen.product import product_of
from tvm_blislike.cost_models.gemm_strassen import estimate as of_products
from tvm_blislike.hardware import Core
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.workload import Conv2dWorkload


def estimate(
    workload: Conv2dWorkload, config: ConvStrassenConfig, core: Core, threads: int
) -> Estimate:
    """Predict the time of one image."""
    return of_products.estimate(product_of(workload), config, core, threads)


def workspace_bytes(workload: Conv2dWorkload, config: ConvStrassenConfig, threads: int) -> int:
    """Return the size of the sums of pixels and of the products of all threads' blocks."""
    return of_products.workspace_bytes(product_of(workload), config, threads)
