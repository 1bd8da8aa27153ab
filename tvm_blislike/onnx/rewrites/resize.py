"""`Resize` and `Upsample`: as the importer reads them right, or as gathers and weighted sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_blislike.onnx.rewrites.resize_taps import ResizedAxis, Sampling, Taps, taps_of
from tvm_blislike.onnx.rewrites.site import Site

# Where TVM samples as ONNX does.
_SMOOTH = frozenset(["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
_STEPPED = frozenset(["half_pixel", "pytorch_half_pixel", "asymmetric"])
# Where coordinates depend on the length of the result.
_CROPPING = "tf_crop_and_resize"
_BY_LENGTH = frozenset(["align_corners", _CROPPING])
# More taps than cubic interpolation has are a matrix product. It reads all of an axis for each
# element of the result, so that an infinite element spreads along it.
_MOST_TAPS = 4


@dataclass(frozen=True)
class _Request:
    """A Resize whose sizes are settled."""

    axes: dict[int, ResizedAxis]
    new_shape: tuple[int, ...]
    sampling: Sampling
    value_outside: float = 0.0


def resize(site: Site) -> Sequence[str]:
    """Write `Resize` with sizes instead of scales, or as gathers where TVM would differ."""
    return [_sampled(site, _request_of_10(site) if site.opset < 11 else _request(site))]


def upsample(site: Site) -> Sequence[str]:
    """Write `Upsample`, which became `Resize`."""
    scales = site.attribute("scales") if site.opset < 9 else site.value(1)
    return [_sampled(site, _old(site, scales, "floor"))]


def _request(site: Site) -> _Request:
    shape = site.shape()
    sampling = Sampling(
        mode=site.attribute("mode", "nearest"),
        coordinate_transformation_mode=site.attribute(
            "coordinate_transformation_mode", "half_pixel"
        ),
        nearest_mode=site.attribute("nearest_mode", "round_prefer_floor"),
        cubic_coeff_a=site.attribute("cubic_coeff_a", -0.75),
        exclude_outside=bool(site.attribute("exclude_outside", 0)),
        antialias=bool(site.attribute("antialias", 0)),
    )
    if sampling.antialias and sampling.mode == "nearest":
        site.refuse("antialias with mode nearest means nothing")
    named = [axis % len(shape) for axis in site.attribute("axes", range(len(shape)))]
    scales, sizes = _scales_and_sizes(site, [shape[axis] for axis in named])
    starts, ends = _region(site, sampling, len(named))
    is_single = _has_scales(site) or sampling.coordinate_transformation_mode == _CROPPING
    axes = {
        axis: ResizedAxis(shape[axis], *rest, is_single=is_single)
        for axis, *rest in zip(named, sizes, scales, starts, ends, strict=True)
    }
    new_shape = tuple(axes[i].new_size if i in axes else size for i, size in enumerate(shape))
    _require_one_reading(site, axes.values(), sampling.coordinate_transformation_mode)
    return _Request(axes, new_shape, sampling, site.attribute("extrapolation_value", 0.0))


def _request_of_10(site: Site) -> _Request:
    """Return the request of the first Resize, which did not say where its samples lie.

    ONNX Runtime rounds up where it makes an image smaller, and so did the exporters mean it.
    """
    scales = site.value(1)
    return _old(site, scales, "ceil" if np.any(scales < 1) else "floor")


def _old(site: Site, scales: Sequence[float], nearest_mode: str) -> _Request:
    shape = site.shape()
    sampling = Sampling(site.attribute("mode", "nearest"), "asymmetric", nearest_mode)
    if sampling.mode == "bilinear":  # Upsample's name before opset 9
        sampling = Sampling("linear", "asymmetric")
    axes = {
        axis: ResizedAxis(size, _scaled(site, size, scale), float(scale), is_single=True)
        for axis, (size, scale) in enumerate(zip(shape, scales, strict=True))
    }
    return _Request(axes, tuple(axis.new_size for axis in axes.values()), sampling)


def _scaled(site: Site, size: int, scale: float) -> int:
    """Return how many elements a scale leaves."""
    exact = int(np.floor(size * float(scale)))
    single = int(np.floor(np.float32(size) * np.float32(scale)))
    if exact != single:
        site.refuse(
            f"{size} elements scaled by {scale:.9g} are {exact} or, in single precision, {single}",
            "ONNX and ONNX Runtime disagree there; say it with sizes instead of scales",
        )
    return exact


def _has_scales(site: Site) -> bool:
    scales = site.value(2)
    return scales is not None and scales.size > 0


def _scales_and_sizes(site: Site, olds: Sequence[int]) -> tuple[Sequence[float], Sequence[int]]:
    scales, sizes = site.value(2), site.value(3)
    given = scales if _has_scales(site) else sizes
    if given is None or given.size != len(olds):
        site.refuse("it has neither scales nor sizes for each of its axes")
    if given is scales:
        return scales.tolist(), [_scaled(site, *pair) for pair in zip(olds, scales, strict=True)]
    ratios = [int(size) / old for size, old in zip(sizes, olds, strict=True)]
    policy = site.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return ratios, [int(size) for size in sizes]
    if policy not in ("not_larger", "not_smaller"):
        site.refuse(f"its keep_aspect_ratio_policy is {policy}")
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [scale] * len(olds), [int(scale * old + 0.5) for old in olds]


def _require_one_reading(site: Site, axes: Iterable[ResizedAxis], where: str) -> None:
    """Refuse what ONNX's text and its reference implementation compute differently.

    ONNX divides by the length of the result: by that of the tensor, says its text; by the one that
    the scale gives, a fraction, do its reference implementation and its cases.
    """
    for axis in axes:
        asks_for_one = where == "pytorch_half_pixel" and axis.new_size == 1
        depends = axis.new_size > 0 and (where in _BY_LENGTH or asks_for_one)
        if depends and not _is_whole(axis):
            site.refuse(
                f"with {where}, {axis.size} elements scaled by {axis.scale:.6g} are "
                f"{axis.new_size} or {axis.scale * axis.size:.6g}",
                "ONNX and ONNX Runtime disagree there; say it with sizes instead of scales",
            )


def _is_whole(axis: ResizedAxis) -> bool:
    return abs(axis.scale * axis.size - axis.new_size) <= 1e-6 * axis.new_size


def _region(site: Site, sampling: Sampling, count: int) -> tuple[Sequence[float], Sequence[float]]:
    """Return where the region begins and ends along each axis, all of it unless it is cropped."""
    if sampling.coordinate_transformation_mode != _CROPPING:
        return [0.0] * count, [1.0] * count
    region = site.value(1)
    if region is None or region.size != 2 * count:
        site.refuse("it crops, but its roi does not say what")
    return [float(v) for v in region[:count]], [float(v) for v in region[count:]]


def _sampled(site: Site, request: _Request) -> str:
    """Put the nodes here that compute a request, and return their result."""
    known = site.result_shape()
    if known is not None and known != request.new_shape:
        site.refuse(f"its result would be {request.new_shape}, but ONNX infers {known}")
    if 0 in request.new_shape:
        site.refuse(f"its result of shape {request.new_shape} has no elements")
    if _read_right(request, site.dtype()):
        return _canonical(site, request)
    try:
        taps = {i: taps_of(axis, request.sampling) for i, axis in request.axes.items()}
    except ValueError as error:
        site.refuse(str(error))
    taps = {i: t for i, t in taps.items() if not _changes_nothing(t, request.axes[i])}
    result = _weighted(site, request, taps)
    outside = {i: t.outside for i, t in taps.items() if t.outside.any()}
    return _with_value_outside(site, request, result, outside) if outside else result


def _read_right(request: _Request, dtype: np.dtype) -> bool:
    """Whether TVM's importer computes a canonical Resize right.

    It knows sizes only and takes their ratios for the scales, in single precision; and no more
    than three axes after two that stay.
    """
    if len(request.new_shape) not in (3, 4, 5) or dtype not in (np.float32, np.float16):
        return False
    if any(axis.new_size != axis.size for i, axis in request.axes.items() if i < 2):
        return False
    axes = [axis for i, axis in request.axes.items() if i >= 2]
    if not all(map(_is_whole, axes)):
        return False
    sampling = request.sampling
    where = sampling.coordinate_transformation_mode
    if sampling.mode == "nearest":
        return where in _STEPPED and all(map(_has_exact_ratio, axes))
    if sampling.mode not in ("linear", "cubic") or sampling.antialias or sampling.exclude_outside:
        return False
    # TVM divides by the distance of the corners.
    has_corners = where != "align_corners" or all(axis.new_size > 1 for axis in axes)
    return where in _SMOOTH and has_corners


def _has_exact_ratio(axis: ResizedAxis) -> bool:
    """Whether coordinates have no rounding errors, which would make steps of others."""
    ratio, rest = divmod(max(axis.size, axis.new_size), min(axis.size, axis.new_size))
    return not rest and ratio & (ratio - 1) == 0


def _canonical(site: Site, request: _Request) -> str:
    sizes = site.constant(np.array(request.new_shape, np.int64))
    sampling = request.sampling
    return site.add(
        "Resize",
        site.node.input[0],
        "",
        "",
        sizes,
        mode=sampling.mode,
        coordinate_transformation_mode=sampling.coordinate_transformation_mode,
        nearest_mode=sampling.nearest_mode,
        cubic_coeff_a=sampling.cubic_coeff_a,
    )


def _changes_nothing(taps: Taps, axis: ResizedAxis) -> bool:
    same = axis.size == axis.new_size and not taps.outside.any()
    return same and np.array_equal(taps.matrix(axis.size), np.eye(axis.size))


def _weighted(site: Site, request: _Request, taps: dict[int, Taps]) -> str:
    """Put gathers and weighted sums here, along one axis after the other."""
    image, given = site.node.input[0], site.dtype()
    if request.sampling.mode == "nearest":
        for axis in _order(request, taps):
            indices = taps[axis].indices[:, 0]
            image = site.add("Gather", image, site.constant(indices), axis=axis)
        return image
    if given.kind in "iu" and request.sampling.mode == "cubic":
        site.refuse("cubic interpolation of integers may leave their range")
    # Half precision is summed in single, integers in double precision. These are rounded down, as
    # ONNX Runtime and TVM do; ONNX does not say.
    wide = np.dtype(np.float32 if given in (np.float16, np.float32) else np.float64)
    if given != wide:
        image = site.cast(image, wide)
    for axis in _order(request, taps):
        along = _sum if taps[axis].indices.shape[1] <= _MOST_TAPS else _product
        image = along(site, image, axis, request, taps[axis], wide)
    return image if given == wide else site.cast(image, given)


def _order(request: _Request, taps: dict[int, Taps]) -> list[int]:
    """Return the axes, those first that leave the least to do for the others."""
    return sorted(taps, key=lambda i: request.axes[i].new_size / request.axes[i].size)


def _sum(site: Site, image: str, axis: int, request: _Request, taps: Taps, dtype: np.dtype) -> str:
    """Put a sum of gathered elements, each times its weight."""
    shape = [-1] + [1] * (len(request.new_shape) - axis - 1)
    terms = []
    for indices, weights in zip(taps.indices.T, taps.weights.T, strict=True):
        if weights.any():
            gathered = site.add("Gather", image, site.constant(indices), axis=axis)
            factors = site.constant(weights.reshape(shape).astype(dtype))
            terms.append(site.add("Mul", gathered, factors))
    total = terms[0]
    for term in terms[1:]:
        total = site.add("Add", total, term)
    return total


def _product(
    site: Site, image: str, axis: int, request: _Request, taps: Taps, dtype: np.dtype
) -> str:
    """Put a matrix product along an axis."""
    matrix = site.constant(taps.matrix(request.axes[axis].size).astype(dtype))
    order = list(range(len(request.new_shape)))
    order[axis], order[-1] = order[-1], order[axis]
    turned = site.add("Transpose", image, perm=order)
    return site.add("Transpose", site.add("MatMul", turned, matrix), perm=order)


def _with_value_outside(
    site: Site, request: _Request, result: str, outside: dict[int, np.ndarray]
) -> str:
    """Put the value of elements outside where a mask says so."""
    rank = len(request.new_shape)
    mask = np.zeros([1] * rank, bool)
    for axis, flags in outside.items():
        mask = mask | flags.reshape([-1 if i == axis else 1 for i in range(rank)])
    value = np.array(request.value_outside).astype(site.dtype())
    return site.add("Where", site.constant(mask), site.constant(value), result)
