"""1x1 convolution as seven products of half the size: one level of Strassen's algorithm.

The product of `gemm_strassen` (its loops, its sums), whose rows are the pixels of an image and
whose halves of k and of columns are halves of the channels. Images are blocked, NCHWc: rows that
are a pair lie side by side, and vectors of a sum are blocks of channels. A stride is one of the
pixels that are read.

Layers of ResNet-50 and MobileNet, and where it does not pay: `benchmarks/results/strassen.txt`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te

from tvm_blislike.cost_models.conv2d_strassen import candidates
from tvm_blislike.cost_models.conv2d_strassen import estimate as model
from tvm_blislike.cost_models.conv2d_strassen.config import ConvStrassenConfig
from tvm_blislike.cost_models.conv2d_strassen.product import product_of
from tvm_blislike.cost_models.conv2d_strassen.space import space
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.registry import Template
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import stage
from tvm_blislike.schedules.conv2d_strassen.schedule import schedule
from tvm_blislike.schedules.gemm_strassen import definition as of_products


def pack_weights(
    workload: Conv2dWorkload, config: ConvStrassenConfig, weights: np.ndarray
) -> np.ndarray:
    """Add up quarters of the weights (co, ci, 1, 1) and cut the sums into panels.

    Returns
    -------
    numpy.ndarray
        `StrassenGeometry.packed_shape`.
    """
    return of_products.pack_b(product_of(workload), config, weights[:, :, 0, 0].T)


def pack_weights_te(
    workload: Conv2dWorkload, config: ConvStrassenConfig, weights: te.Tensor
) -> te.Tensor:
    """`pack_weights` as a TE stage, for weights that are not known at compile time."""
    product = product_of(workload)
    b = te.compute((product.k, product.n), lambda k, n: weights[n, k, 0, 0], name="b")
    return of_products.pack_b_te(product, config, b)


def compute(
    workload: Conv2dWorkload, config: ConvStrassenConfig, data: te.Tensor, packed: te.Tensor
) -> te.Tensor:
    """Define the convolution.

    Parameters
    ----------
    data : te.Tensor
        The image in `config.data_layout`.
    packed : te.Tensor
        Sums of weights as `pack_weights` makes them.

    Returns
    -------
    te.Tensor
        The result in `config.out_layout`.
    """
    w, images, results = workload, Layout(config.data_layout), Layout(config.out_layout)
    (sh, sw), ow = w.stride, w.ow

    def element(pixel: Any, channel: Any) -> Any:
        return data[images.index(0, channel, pixel // ow * sh, pixel % ow * sw)]

    products = of_products.products_of(product_of(w), config, element, packed)

    def result(*at: Any) -> Any:
        _, channel, y, x = results.element(*at)
        return of_products.result_at(products, config, y * ow + x, channel)

    shape = results.shape(1, w.co, w.oh, ow)
    return te.compute(shape, result, name="unpack", attrs=stage("unpack"))


def error_bound(workload: Conv2dWorkload, config: ConvStrassenConfig) -> float:
    """Return the error to expect relative to the largest output, that of the product."""
    return of_products.error_bound(product_of(workload), config)


IMPLEMENTATION = Template(
    name="conv2d_strassen",
    kind="conv2d",
    config_type=ConvStrassenConfig,
    applies=candidates.applies,
    configs=candidates.configs,
    estimate=model.estimate,
    least_seconds=candidates.least_seconds,
    workspace_bytes=model.workspace_bytes,
    pack=pack_weights,
    pack_te=pack_weights_te,
    compute=compute,
    schedule=schedule,
    error_bound=error_bound,
    every=space,
    derivation=candidates.derivation,
)
