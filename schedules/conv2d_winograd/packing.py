"""Weights of Winograd convolutions: transformed, in panels of nr output channels."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_blislike.cost_models.conv2d_winograd.config import WinogradConfig
from tvm_blislike.cost_models.conv2d_winograd.geometry import WinogradGeometry
from tvm_blislike.cost_models.conv2d_winograd.integers import transformed as transformed_types
from tvm_blislike.microkernels.products import panels_of_b, place_in_b
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_winograd import integers
from tvm_blislike.schedules.conv2d_winograd.passes import one_pass, transforms_of, where
from tvm_blislike.schedules.conv2d_winograd.transforms import transform_weights


def pack_weights(
    workload: Conv2dWorkload, config: WinogradConfig, weights: np.ndarray
) -> np.ndarray:
    """Transform OIHW weights and cut them into panels: `WinogradGeometry.packed_shape`."""
    geo = WinogradGeometry(workload, config)
    weights = _joined(weights, geo)
    rows, columns = transforms_of(workload, config)
    if workload.types.is_integer_dot:
        points = integers.transform_weights(weights, rows, columns)
    else:
        points = transform_weights(weights, rows, columns).astype(weights.dtype, copy=False)
    missing = geo.chunks * config.nc - workload.co
    if missing:
        points = np.pad(points, ((0, 0), (0, 0), (0, 0), (0, missing)))
    panels = points.reshape(*points.shape[:3], geo.chunks, geo.panels, config.nr)
    packed = np.ascontiguousarray(panels.transpose(3, 0, 1, 4, 2, 5))
    if config.ks > 1:
        packed = panels_of_b(packed.reshape(-1, geo.summed, config.nr), config.nr, config.ks)
    return packed.reshape(geo.packed_shape)


def _joined(weights: np.ndarray, geo: WinogradGeometry) -> np.ndarray:
    """Return weights for the input channels of all groups that are multiplied as one."""
    joined, (co, ci, kh, kw) = geo.joined, weights.shape
    if joined == 1:
        return weights
    groups = weights.reshape(geo.groups, joined, co // geo.workload.groups, ci, kh, kw)
    result = np.zeros((*groups.shape[:3], joined, *groups.shape[3:]), weights.dtype)
    for place in range(joined):
        result[:, place, :, place] = groups[:, place]
    return result.reshape(co, geo.summed, kh, kw)


def pack_weights_te(
    workload: Conv2dWorkload, config: WinogradConfig, weights: te.Tensor
) -> te.Tensor:
    """`pack_weights` as TE stages, for weights that are not known at compile time."""
    geo = WinogradGeometry(workload, config)
    rows, columns = transforms_of(workload, config)
    dtype = transformed_types(workload.types).b

    def along_height(xi: Any, kw: Any, co: Any, ci: Any) -> Any:
        channels = workload.ci // workload.groups
        kernel_rows = [weights[co, ci % channels, i, kw].astype(dtype) for i in range(workload.kh)]
        value = one_pass(rows.g, xi, kernel_rows, dtype)
        group = co // (workload.co // workload.groups)
        is_own = ci // channels == group % geo.joined
        return value if geo.joined == 1 else tirx.if_then_else(is_own, value, tirx.const(0, dtype))

    half = te.compute(
        (geo.patch_h, workload.kw, workload.co, geo.summed), along_height, name="half_weights"
    )

    def value(chunk: Any, xi: Any, nu: Any, panel: Any, group: Any, lane: Any) -> Any:
        ci, j = place_in_b(group, lane, config.ks)
        co = chunk * config.nc + panel * config.nr + j
        kernel_columns = [half[xi, i, co, ci] for i in range(workload.kw)]
        value = one_pass(columns.g, nu, kernel_columns, dtype)
        return where(co, workload.co, value, tirx.const(0, dtype))

    return te.compute(geo.packed_shape, value, name="packed_weights")
