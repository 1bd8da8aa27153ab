"""Predicted time of a 1x1 convolution by seven products of half the size: that of the product."""

from __future__ import annotations

from tvm_blislike.cost_models.conv2d_strassen.config import ConvStrassenConfig
from tvm_blislike.cost_models.conv2d_strassen.product import product_of
from tvm_blislike.cost_models.gemm_strassen import estimate as of_products
from tvm_blislike.hardware import Core
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.workload import Conv2dWorkload

# Part of the time that has to be gained at least. Layers of ResNet-50 and MobileNetV1 that were
# predicted to be 1.004 to 1.02 times as fast with that of products were 0.93 to 1.06 times as fast
# in their models, those above 1.026 1.05 to 1.20 times (Zen 4).
LEAST_GAIN = 0.04


def estimate(
    workload: Conv2dWorkload, config: ConvStrassenConfig, core: Core, threads: int
) -> Estimate:
    """Predict the time of one image."""
    product = product_of(workload)
    return of_products.estimate(product, config, core, threads, least_gain=LEAST_GAIN)


def workspace_bytes(workload: Conv2dWorkload, config: ConvStrassenConfig, threads: int) -> int:
    """Return the size of the sums of pixels and of the products of all threads' blocks."""
    return of_products.workspace_bytes(product_of(workload), config, threads)
