"""Transposed convolutions as convolutions of stride 1, without a multiplication by inserted zeros.

Along one axis, a transposed convolution adds x[i] * w[k] to output o = s * i + d * k - p. Outputs
of equal remainder modulo s, a phase, meet every s-th element of the kernel only, and are a
convolution of stride 1 of the input with those. The phases are computed

    together    one convolution with phases * co output channels over the union of their windows
    apart       one convolution each, over exactly the elements that it meets

and then interleaved. Together fills vectors better (3 channels, 16 phases) and reads the input
once; apart multiplies less where the windows differ (kernel 3, stride 2: 9 products for a block
of four outputs instead of 16). The fewer multiplications by whole vectors decide.

Windows may also coincide after a shift: with kernel 4, stride 2, padding 1 the four phases of
outputs (2t, 2t + 1) meet 3 inputs per axis in all, those of (2t - 1, 2t) the same 2. Then one
output is computed too many at either end.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvm_blislike.adapter import static_shape
from tvm_blislike.passes.moves import interleaved
from tvm_blislike.passes.volumes import Triple, Window, convolution

# A vector of a vector instruction set: fewer output channels cost as much.
LANES = 16
# What one convolution more costs, in multiplications of the others: it reads the input again.
APART = 1.15


@dataclass(frozen=True)
class Axis:
    """One axis of a transposed convolution: outputs o = stride * t + u - skip, phases u.

    Parameters
    ----------
    size, out : int
        Inputs and outputs.
    kernel, stride, dilation, padding : int
        As of the operator; `padding` at the beginning.
    skip : int
        Outputs that are computed before the first one that is wanted.
    """

    size: int
    out: int
    kernel: int
    stride: int
    dilation: int
    padding: int
    skip: int = 0

    @property
    def count(self) -> int:
        """Outputs of one phase."""
        return math.ceil((self.out + self.skip) / self.stride)

    @property
    def reach(self) -> int:
        """Kernel elements with the gaps between them."""
        return (self.kernel - 1) * self.dilation + 1

    def first(self, phase: int) -> int:
        """Return the first kernel element that a phase meets."""
        return (phase - self.skip + self.padding) % self.stride

    def met(self, phase: int) -> int:
        """Return how many kernel elements a phase meets, gaps included; 1 instead of none."""
        if self.stride == 1:
            return self.kernel
        return max(1, math.ceil((self.reach - self.first(phase)) / self.stride))

    def window(self, phase: int) -> tuple[int, int]:
        """Return the first and last input, relative to t, of a phase."""
        last = (phase - self.skip + self.padding) // self.stride
        step = self.dilation if self.stride == 1 else 1
        return last - (self.met(phase) - 1) * step, last

    def union(self, phases: range) -> tuple[int, int]:
        """Return the first and last input that any of the phases meets."""
        windows = [self.window(phase) for phase in phases]
        return min(first for first, _ in windows), max(last for _, last in windows)

    def elements(self, phases: range) -> int:
        """Return the kernel elements of the union of windows."""
        first, last = self.union(phases)
        return (last - first) // (self.dilation if self.stride == 1 else 1) + 1

    def together(self) -> Axis:
        """Return the axis with the shift at which the union of all phases costs least."""
        shifted = [
            Axis(*(getattr(self, f) for f in _FIELDS), skip=skip) for skip in range(self.stride)
        ]
        return min(shifted, key=lambda a: a.count * a.elements(range(a.stride)))


_FIELDS = ("size", "out", "kernel", "stride", "dilation", "padding")


def transposed_convolution(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    batch: int,
    weights: np.ndarray,
    axes: tuple[Axis, Axis, Axis],
    groups: int,
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
    weights : numpy.ndarray
        (ci, co / groups, kd, kh, kw).
    axes : tuple of Axis
        Depth, height, width.
    groups : int
        Channel groups.

    Returns
    -------
    relax.Var
        (batch * od, co, oh, ow).
    """
    kernel = _as_forward(weights, groups)
    joint = tuple(axis.together() for axis in axes)
    if _are_apart(axes, joint, kernel.shape[0], groups):
        result = _apart(builder, data, batch, kernel, axes, groups)
    else:
        axes = joint
        result = _phases(builder, data, batch, kernel, axes, groups, _all_phases(axes))
    steps = tuple(axis.stride for axis in axes)
    result = interleaved(builder, result, steps)
    return _wanted(builder, result, batch, axes)


def _as_forward(weights: np.ndarray, groups: int) -> np.ndarray:
    """Return weights (co, ci / groups, kd, kh, kw); the kernel is not flipped yet."""
    ci, co_group, *kernel = weights.shape
    by_group = weights.reshape(groups, ci // groups, co_group, *kernel).swapaxes(1, 2)
    return by_group.reshape(groups * co_group, ci // groups, *kernel)


def _all_phases(axes: tuple[Axis, Axis, Axis]) -> tuple[range, range, range]:
    return tuple(range(axis.stride) for axis in axes)


def _are_apart(
    axes: tuple[Axis, Axis, Axis], joint: tuple[Axis, Axis, Axis], channels: int, groups: int
) -> bool:
    phases = math.prod(axis.stride for axis in axes)
    if phases == 1:
        return False
    if groups > 1:
        # A group's channels lie together: those of several phases would lie between them.
        return True
    together = math.prod(a.count * a.elements(range(a.stride)) for a in joint)
    together *= _in_vectors(phases * channels)
    apart = math.prod(
        sum(axis.count * axis.met(phase) for phase in range(axis.stride)) for axis in axes
    )
    return APART * apart * _in_vectors(channels) < together


def _in_vectors(channels: int) -> int:
    return math.ceil(channels / LANES) * LANES


def _apart(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    batch: int,
    kernel: np.ndarray,
    axes: tuple[Axis, Axis, Axis],
    groups: int,
) -> relax.Var:
    """Emit one convolution for each phase; their channels side by side."""
    parts = [
        _phases(builder, data, batch, kernel, axes, groups, tuple(range(u, u + 1) for u in phase))
        for phase in itertools.product(*_all_phases(axes))
    ]
    return builder.emit(relax.op.concat(parts, axis=1))


def _phases(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    batch: int,
    kernel: np.ndarray,
    axes: tuple[Axis, Axis, Axis],
    groups: int,
    phases: tuple[range, range, range],
) -> relax.Var:
    """Emit the convolution that computes some phases: (batch * count, phases * co, ...)."""
    # (co, ci, kernel ...) becomes (co, ci, [phases, elements] ...) axis by axis, last one first.
    for number in (2, 1, 0):
        kernel = _split(kernel, number + 2, axes[number], phases[number])
    order = (2, 4, 6, 0, 1, 3, 5, 7)
    count = math.prod(map(len, phases))
    co, ci = kernel.shape[:2]
    elements = [kernel.shape[i] for i in (3, 5, 7)]
    weights = kernel.transpose(order).reshape(count * co, ci, *elements)
    unions = [axis.union(p) for axis, p in zip(axes, phases, strict=True)]
    window = Window(
        before=_triple(-first for first, _ in unions),
        after=_triple(
            axis.count - 1 + last - (axis.size - 1)
            for axis, (_, last) in zip(axes, unions, strict=True)
        ),
        dilation=_triple(axis.dilation if axis.stride == 1 else 1 for axis in axes),
    )
    constant = relax.const(np.ascontiguousarray(weights))
    return convolution(builder, data, batch, constant, window, groups)


def _split(kernel: np.ndarray, position: int, axis: Axis, phases: range) -> np.ndarray:
    """Replace a kernel axis by two: phases, and the elements of the union of their windows."""
    kernel = np.moveaxis(kernel, position, -1)
    if axis.stride == 1:
        return np.moveaxis(kernel[..., None, ::-1], (-2, -1), (position, position + 1))
    spread = np.zeros((*kernel.shape[:-1], axis.reach), kernel.dtype)
    spread[..., :: axis.dilation] = kernel
    start, _ = axis.union(phases)
    result = np.zeros((*kernel.shape[:-1], len(phases), axis.elements(phases)), kernel.dtype)
    for number, phase in enumerate(phases):
        met = spread[..., axis.first(phase) :: axis.stride][..., ::-1]
        at = axis.window(phase)[0] - start
        result[..., number, at : at + met.shape[-1]] = met
    return np.moveaxis(result, (-2, -1), (position, position + 1))


def _triple(values: object) -> Triple:
    first, second, third = values
    return first, second, third


def _wanted(
    builder: relax.BlockBuilder, data: relax.Expr, batch: int, axes: tuple[Axis, Axis, Axis]
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
    builder: relax.BlockBuilder, data: relax.Expr, batch: int, axes: tuple[Axis, Axis, Axis]
) -> relax.Expr:
    slices, *image = static_shape(data)
    volumes = builder.emit(relax.op.reshape(data, (batch, slices // batch, *image)))
    begin = [axis.skip for axis in axes]
    end = [axis.skip + axis.out for axis in axes]
    kept = builder.emit(relax.op.strided_slice(volumes, [1, 3, 4], begin, end))
    return builder.emit(relax.op.reshape(kept, (batch * axes[0].out, *static_shape(kept)[2:])))
