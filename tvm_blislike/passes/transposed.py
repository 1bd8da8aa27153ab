"""Transposed convolutions as convolutions of stride 1, without a multiplication by inserted zeros.

Along one axis, a transposed convolution adds x[i] * w[k] to output o = s * i + d * k - p. Outputs
of equal remainder modulo s, a phase, meet every s-th element of the kernel only, and are a
convolution of stride 1 of the input with those. The phases are computed

    together    one convolution with phases * co output channels over the union of their windows
    apart       one convolution each, over exactly the elements that it meets

and then interleaved. Together fills vectors better (3 channels, 16 phases) and reads the input
once; apart multiplies less where the windows differ (kernel 3, stride 2: 9 products for a block
of four outputs instead of 16). The fewer multiplications by whole vectors decide.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from tvm import relax

from tvm_blislike.passes.image_operators import interleaved
from tvm_blislike.passes.phases import PhasedAxis
from tvm_blislike.passes.volumes import Triple, Window, convolution, rearranged
from tvm_blislike.tvm_seams import constant, constant_array, dtype_name, is_constant, static_shape

# What one convolution more costs, in multiplications of the others: it reads the input again.
APART = 1.15


def transposed_convolution(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    batch: int,
    weights: relax.Expr,
    axes: tuple[PhasedAxis, PhasedAxis, PhasedAxis],
    groups: int,
    lanes: int,
) -> relax.Var:
    """Emit a transposed convolution of volumes, carried as slices.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to emit.
    data : relax.Expr
        (batch * d, ci, h, w).
    batch : int
        Number of volumes.
    weights : relax.Expr
        (ci, co / groups, kd, kh, kw), constant or not.
    axes : tuple of PhasedAxis
        Depth, height, width.
    groups : int
        Channel groups.
    lanes : int
        Elements of a vector register: fewer output channels cost as much.

    Returns
    -------
    relax.Var
        (batch * od, co, oh, ow).
    """
    joint = tuple(axis.together() for axis in axes)
    channels = groups * static_shape(weights)[1]
    if are_apart(axes, joint, channels, groups, lanes):
        result = _apart(builder, data, batch, weights, axes, groups)
    else:
        axes = joint
        result = _phases(builder, data, batch, weights, axes, groups, _all_phases(axes))
    steps = tuple(axis.stride for axis in axes)
    result = interleaved(builder, result, steps)
    return _wanted(builder, result, batch, axes)


def _all_phases(axes: tuple[PhasedAxis, PhasedAxis, PhasedAxis]) -> tuple[range, range, range]:
    return tuple(range(axis.stride) for axis in axes)


def are_apart(
    axes: tuple[PhasedAxis, PhasedAxis, PhasedAxis],
    joint: tuple[PhasedAxis, PhasedAxis, PhasedAxis],
    channels: int,
    groups: int,
    lanes: int,
) -> bool:
    """Return whether one convolution for each phase costs less than one for all.

    Parameters
    ----------
    axes, joint : tuple of PhasedAxis
        As they are, and shifted to where the union of all phases costs least.
    channels : int
        Output channels of all groups.
    groups : int
        Channel groups.
    lanes : int
        Elements of a vector register.
    """
    phases = math.prod(axis.stride for axis in axes)
    if phases == 1:
        return False
    if groups > 1:
        # A group's channels lie together: those of several phases would lie between them.
        return True
    together = math.prod(a.count * a.elements(range(a.stride)) for a in joint)
    together *= _in_vectors(phases * channels, lanes)
    apart = math.prod(
        sum(axis.count * axis.met(phase) for phase in range(axis.stride)) for axis in axes
    )
    return APART * apart * _in_vectors(channels, lanes) < together


def _in_vectors(channels: int, lanes: int) -> int:
    return math.ceil(channels / lanes) * lanes


def _apart(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    batch: int,
    weights: relax.Expr,
    axes: tuple[PhasedAxis, PhasedAxis, PhasedAxis],
    groups: int,
) -> relax.Var:
    """Emit one convolution for each phase; their channels side by side."""
    parts = [
        _phases(builder, data, batch, weights, axes, groups, tuple(range(u, u + 1) for u in phase))
        for phase in itertools.product(*_all_phases(axes))
    ]
    return builder.emit(relax.op.concat(parts, axis=1))


def _phases(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    batch: int,
    weights: relax.Expr,
    axes: tuple[PhasedAxis, PhasedAxis, PhasedAxis],
    groups: int,
    phases: tuple[range, range, range],
) -> relax.Var:
    """Emit the convolution that computes some phases: (batch * count, phases * co, ...)."""
    unions = [axis.union(p) for axis, p in zip(axes, phases, strict=True)]
    window = Window(
        before=_triple(-first for first, _ in unions),
        after=_triple(
            axis.count - 1 + last - (axis.size - 1)
            for axis, (_, last) in zip(axes, unions, strict=True)
        ),
        dilation=_triple(axis.dilation if axis.stride == 1 else 1 for axis in axes),
    )
    kernel = _kernel(builder, weights, axes, groups, phases)
    return convolution(builder, data, batch, kernel, window, groups)


def _kernel(
    builder: relax.BlockBuilder,
    weights: relax.Expr,
    axes: tuple[PhasedAxis, PhasedAxis, PhasedAxis],
    groups: int,
    phases: tuple[range, range, range],
) -> relax.Expr:
    """Return the kernel that computes some phases: (phases * co, ci / groups, elements ...)."""
    ci, co_group = static_shape(weights)[:2]
    tables = [axis.table(p) for axis, p in zip(axes, phases, strict=True)]
    for position, table in enumerate(tables):
        weights = _elements(builder, weights, position + 2, table)
    (pd, ed), (ph, eh), (pw, ew) = (table.shape for table in tables)
    by_group = (groups, ci // groups, co_group, pd, ed, ph, eh, pw, ew)
    weights = rearranged(builder, weights, tuple(range(5)), by_group)
    # Several phases and several groups never meet (`are_apart`).
    order = (3, 5, 7, 0, 2, 1, 4, 6, 8)
    channels = pd * ph * pw * groups * co_group
    return rearranged(builder, weights, order, (channels, ci // groups, ed, eh, ew))


def _elements(
    builder: relax.BlockBuilder, weights: relax.Expr, position: int, table: np.ndarray
) -> relax.Expr:
    """Return the kernel elements of a table along one axis; those beyond the kernel are zero."""
    size = static_shape(weights)[position]
    if np.array_equal(table.reshape(-1), np.arange(size)):
        return weights
    width = [0, 0] * 5
    width[2 * position + 1] = 1
    if is_constant(weights):
        pairs = list(zip(width[::2], width[1::2], strict=True))
        array = np.pad(constant_array(weights), pairs)
        return constant(array.take(table.reshape(-1), axis=position), dtype_name(weights))
    padded = builder.emit(relax.op.nn.pad(weights, width))
    indices = relax.const(table.reshape(-1))
    return builder.emit(relax.op.take(padded, indices, axis=position, mode="clip"))


def _triple(values: object) -> Triple:
    first, second, third = values
    return first, second, third


def _wanted(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    batch: int,
    axes: tuple[PhasedAxis, PhasedAxis, PhasedAxis],
) -> relax.Expr:
    """Take off the outputs before the first and behind the last that are wanted."""
    depth, *image = axes
    cut = [(i + 2, a) for i, a in enumerate(image) if a.count * a.stride != a.out]
    if depth.count * depth.stride != depth.out:
        if batch > 1:
            return _wanted_of_batch(builder, data, batch, axes)
        cut.insert(0, (0, depth))
    if not cut:
        return data
    positions = [position for position, _ in cut]
    begin = [axis.skip for _, axis in cut]
    end = [axis.skip + axis.out for _, axis in cut]
    return builder.emit(relax.op.strided_slice(data, positions, begin, end))


def _wanted_of_batch(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    batch: int,
    axes: tuple[PhasedAxis, PhasedAxis, PhasedAxis],
) -> relax.Expr:
    slices, *image = static_shape(data)
    volumes = builder.emit(relax.op.reshape(data, (batch, slices // batch, *image)))
    begin = [axis.skip for axis in axes]
    end = [axis.skip + axis.out for axis in axes]
    kept = builder.emit(relax.op.strided_slice(volumes, [1, 3, 4], begin, end))
    return builder.emit(relax.op.reshape(kept, (batch * axes[0].out, *static_shape(kept)[2:])))
