"""Random nodes of pooling, resizing and sampling."""

from __future__ import annotations

import numpy as np
from graphs import Graph, RejectedError
from linear import _window


def pool(g: Graph) -> None:
    """MaxPool, AveragePool, LpPool with any of their attributes."""
    operator = g.pick(["MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"])
    x = g.tensor(rank=(3, 4, 4, 5), fits=lambda v: v.size > 0)
    window, kernel = _window(g, list(x.shape[2:]))
    since = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[operator]
    if g.opset < since:
        window.pop("dilations", None)
    if operator == "MaxPool" and g.opset >= since and g.chance(0.2):
        window["dilations"] = [g.integer(1, 3) for _ in kernel]
    if window.get("auto_pad", "").startswith("SAME"):
        window.pop("dilations", None)  # ONNX Runtime forgets them there
    window["kernel_shape"] = kernel
    if g.opset >= (18 if operator == "LpPool" else 10) and g.chance(0.35):
        window["ceil_mode"] = 1
    if operator == "AveragePool" and g.chance(0.4):
        window["count_include_pad"] = g.integer(0, 1)
    if operator == "LpPool" and g.chance(0.6):
        window["p"] = g.integer(1, 3)
    outputs = 1
    if operator == "MaxPool" and g.chance(0.1):
        outputs = 2
        window |= g.maybe(0.5, storage_order=1)
    g.node(operator, [x], outputs, **window)


def global_pool(g: Graph) -> None:
    """One value of each channel."""
    operator = g.pick(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
    # ONNX's reference, which takes the place of ONNX Runtime for other types, drops axes.
    x = g.tensor(("float32",), rank=(3, 4, 5), fits=lambda v: v.size > 0)
    g.node(operator, [x], **(g.maybe(0.6, p=g.integer(1, 3)) if operator == "GlobalLpPool" else {}))


def resize(g: Graph) -> None:
    """Resize in any mode, by scales or to sizes."""
    if g.opset < 10:
        raise RejectedError("too early")
    # ONNX Runtime computes no others, and ONNX's reference divides by lengths that are no integers.
    x = g.tensor(("float32",), rank=(2, 3, 4, 4, 5), fits=lambda v: v.size > 0)
    mode = g.pick(["nearest", "linear", "linear", "cubic"])
    if g.opset == 10:
        scales = [1.0, 1.0][: x.rank] + [g.pick([0.5, 1.5, 2.0]) for _ in x.shape[2:]]
        mode = "nearest" if mode == "cubic" else mode
        g.node("Resize", [x, g.constant(scales, "float32")], mode=mode)
        return
    attributes = {"mode": mode, **g.maybe(0.7, coordinate_transformation_mode=_coordinates(g))}
    if mode == "nearest":
        attributes |= g.maybe(0.6, nearest_mode=_nearest(g))
    if mode == "cubic":
        attributes |= g.maybe(0.4, cubic_coeff_a=-0.5, exclude_outside=1)
    if g.opset >= 18 and mode != "nearest":
        attributes |= g.maybe(0.15, antialias=1)
    axes = list(range(x.rank))
    if g.opset >= 18 and g.chance(0.25):
        axes = axes[2:] if g.chance(0.5) else axes[-2:]
        attributes["axes"] = [a - x.rank if g.chance(0.5) else a for a in axes]
    keep = [] if g.chance(0.1) else [0, 1]  # sizes of batch and channels usually stay
    if g.chance(0.5):
        factors = (0.5, 0.6, 1.0, 1.5, 1.7, 2.0, 2.0, 3.0)
        scales = [1.0 if a in keep else g.pick(factors) for a in axes]
        operands = [x, None, g.constant(scales, "float32")]
    else:
        sizes = [x.shape[a] if a in keep else g.integer(1, 20) for a in axes]
        operands = [x, None, None, g.constant(sizes, "int64")]
        if g.opset >= 18:
            policies = ["stretch", "not_larger", "not_smaller"]
            attributes |= g.maybe(0.15, keep_aspect_ratio_policy=g.pick(policies))
            if "keep_aspect_ratio_policy" in attributes and "axes" in attributes:
                attributes["axes"] = axes  # ONNX Runtime takes no others with a policy
    if attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        # ONNX Runtime crops no axes that stay.
        if operands[2] is not None:
            stays = operands[2].value == 1
        else:
            stays = operands[3].value == np.array(x.shape)[axes]
        starts = np.where(stays, 0, g.rng.uniform(0, 0.3, len(axes)))
        ends = np.where(stays, 1, g.rng.uniform(0.6, 1.1, len(axes)))
        operands[1] = g.constant(np.round([*starts, *ends], 2), "float32")
        attributes |= g.maybe(0.5, extrapolation_value=0.5)
    g.node("Resize", operands, **attributes)


def upsample(g: Graph) -> None:
    """Upsample, which Resize took the place of."""
    if g.opset > 9:
        raise RejectedError("too late")
    x = g.tensor(rank=4)
    scales = [1.0, 1.0, g.pick([1.0, 1.5, 2.0, 3.0]), g.pick([1.0, 1.5, 2.0])]
    g.node("Upsample", [x, g.constant(scales, "float32")], mode=g.pick(["nearest", "linear"]))


def grid_sample(g: Graph) -> None:
    """GridSample at random places, some of them outside."""
    if g.opset < 16:
        raise RejectedError("too early")
    x = g.tensor(rank=4, fits=lambda v: v.size > 0 and min(v.shape[2:]) > 1)
    places = g.rng.uniform(-1.15, 1.15, (x.shape[0], g.integer(1, 6), g.integer(1, 6), 2))
    names = ["bilinear", "nearest", "bicubic"] if g.opset < 20 else ["linear", "nearest", "cubic"]
    attributes = g.maybe(
        0.7,
        mode=g.pick(names),
        padding_mode=g.pick(["zeros", "border", "reflection"]),
        align_corners=g.integer(0, 1),
    )
    g.node("GridSample", [x, g.input(places.astype(x.dtype))], **attributes)


def roi_align(g: Graph) -> None:
    """RoiAlign of a few boxes."""
    if g.opset < 10:
        raise RejectedError("too early")
    x = g.tensor(rank=4, fits=lambda v: v.size > 0 and min(v.shape[2:]) > 3)
    count = g.integer(1, 4)
    corners = np.sort(g.rng.uniform(0, min(x.shape[2:]), (count, 2, 2)), axis=1).reshape(count, 4)
    batches = g.constant(g.rng.integers(0, x.shape[0], count), "int64")
    attributes = g.maybe(
        0.6, output_height=g.integer(1, 4), output_width=g.integer(1, 4),
        sampling_ratio=g.integer(0, 2), spatial_scale=0.5, mode=g.pick(["avg", "max"]),
    )  # fmt: skip
    if g.opset >= 16:
        modes = ["half_pixel", "output_half_pixel"]
        attributes |= g.maybe(0.5, coordinate_transformation_mode=g.pick(modes))
    g.node("RoiAlign", [x, g.constant(corners, x.dtype), batches], **attributes)


def affine_grid(g: Graph) -> None:
    """AffineGrid, as in front of GridSample."""
    if g.opset < 20:
        raise RejectedError("too early")
    batch = g.integer(1, 2)
    theta = g.input(g.values((batch, 2, 3), g.float_type))
    size = g.constant([batch, 3, g.integer(1, 6), g.integer(1, 6)], "int64")
    g.node("AffineGrid", [theta, size], **g.maybe(0.7, align_corners=g.integer(0, 1)))


def _coordinates(g: Graph) -> str:
    modes = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    if g.chance(0.2):
        modes = ["tf_crop_and_resize"] + (["half_pixel_symmetric"] if g.opset >= 19 else [])
    return g.pick(modes)


def _nearest(g: Graph) -> str:
    return g.pick(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])


NODES = {
    pool: 8, global_pool: 2, resize: 5, upsample: 1, grid_sample: 1, roi_align: 1, affine_grid: 1,
}  # fmt: skip
