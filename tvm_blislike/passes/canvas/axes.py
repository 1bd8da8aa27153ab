"""Where the open sizes stand in tensors on a canvas."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, s_tir, tirx

from tvm_blislike.model.derived import derived
from tvm_blislike.passes.canvas.extents import Clash, Extents
from tvm_blislike.schedules.lowering.rewrite import collect

# The axes of width and height, by the number of axes: NCHWc, NCHW or NHWC.
_IMAGES = {5: ((3, 2),), 4: ((3, 2), (2, 1))}
# What a size is, by its number of axes of an image behind it.
WIDTH, HEIGHT = 0, 1


@dataclass(frozen=True)
class OpenAxes:
    """Where the open sizes of a model stand.

    Parameters
    ----------
    numbers : sequence of mapping
        For each open size, what follows from it: numbers on the canvas to those at all samples.
    kinds : sequence of int
        Of each size, `HEIGHT` or `WIDTH`.
    pairs : collection of tuple of int
        Heights and widths of tensors that have open sizes: 72 channels of a mean, (1, 1, 1, 72),
        are no width of 72.
    """

    numbers: Sequence[Mapping[int, Sequence[int]]]
    kinds: Sequence[int]
    pairs: Collection[tuple[int, ...]]

    @classmethod
    def of_extents(cls, extents: Extents) -> OpenAxes:
        """Return those of a model whose extents are known."""
        numbers = [{found[0]: found for found in each} for each in extents.found]
        return cls(numbers, extents.kinds, extents.pairs)

    @derived
    def samples(self) -> dict[int, Sequence[int]]:
        """Of whichever size, numbers on the canvas to those at all samples."""
        return {number: each for found in self.numbers for number, each in found.items()}

    def of(self, shape: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the open axes of a tensor of the model, each with its size and number.

        Raises
        ------
        Clash
            Where another layout would have open axes as well, or the layout is not that of images.
        """
        ways = [self._along(shape, places) for places in _IMAGES.get(len(shape), ())]
        most = max(map(len, ways), default=0)
        best = [way for way in ways if len(way) == most]
        if most and len(best) > 1:
            raise Clash(f"a tensor of {_shown(shape)} may have its image on other axes")
        if not most and self._may_have_others(shape):
            raise Clash(f"a tensor of {_shown(shape)} may have an open size")
        return dict(sorted(best[0].items())) if most else {}

    def by_number(self, shape: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the axes that may be open in a tensor of any layout, each with size and number."""
        places = _IMAGES.get(len(shape))
        return {
            axis: (size, number)
            for axis, number in enumerate(shape)
            for size, kind in enumerate(self.kinds)
            if number in self.numbers[size]
            and (places is None or axis in (each[kind] for each in places))
        }

    def _along(self, shape: Sequence[int], places: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the open axes of a tensor whose image lies along two."""
        found = {
            places[kind]: (size, shape[places[kind]])
            for size, kind in enumerate(self.kinds)
            if shape[places[kind]] in self.numbers[size]
        }
        across, along = places
        if len(found) > 1 or (shape[along], shape[across]) in self.pairs:
            return found
        if found and min(shape[along], shape[across]) > 1 and len(self.kinds) == 1:
            raise Clash(f"a tensor of {_shown(shape)} may have an open size")
        return {}

    def _may_have_others(self, shape: Sequence[int]) -> bool:
        """Whether a tensor that has no image on the usual axes may have one elsewhere.

        The last axes, such as those of groups of channels, or any one where there are fewer axes.
        """
        if len(shape) in _IMAGES:
            sizes = enumerate(self.kinds)
            behind = [shape[-1 - kind] in self.numbers[size] for size, kind in sizes]
            return len(shape) != len("NCHW") and all(behind)
        return any(size in found for size in shape for found in self.numbers)


@dataclass(frozen=True)
class OpenKernel:
    """Where the open sizes stand in a kernel.

    Parameters
    ----------
    func : PrimFunc
        Not scheduled.
    axes : sequence of dict
        For each parameter, open axes to the size that they follow from and their number.
    model : OpenAxes
        Those of the model.
    """

    func: tirx.PrimFunc
    axes: Sequence[dict[int, tuple[int, int]]]
    model: OpenAxes

    def inside(self, buffer: Any) -> dict[int, tuple[int, int]]:
        """Return the open axes of a buffer, each with its size and number.

        What a kernel keeps to itself may be laid out in any way: where it is no image each axis
        counts that may be one, by its number. A height of 16 and its padding, 18, is no width.
        """
        for param, axes in zip(self.func.params, self.axes, strict=True):
            if buffer.same_as(param):
                return axes
        shape = [int(size) for size in buffer.shape]
        try:
            found = self.model.of(shape)
        except Clash:
            found = {}
        return found or self.model.by_number(shape)

    def variables(self, block: s_tir.SBlock) -> dict[tirx.Var, int]:
        """Return the variables of a block that go along open axes, each with its size.

        Eight blocks of channels are no eight rows.
        """
        domains = {each.var: int(each.dom.extent) for each in block.iter_vars}
        return {
            var: size
            for buffer, indices in _accesses(block)
            for axis, (size, _) in self.inside(buffer).items()
            for var in collect(indices[axis], tirx.Var)
            if domains.get(var) in self.model.numbers[size]
        }


def _accesses(block: s_tir.SBlock) -> Iterator[tuple[Any, Sequence[Any]]]:
    for access in collect(block.body, (ir.TensorLoad, tirx.BufferStore)):
        is_load = isinstance(access, ir.TensorLoad)
        yield access.source if is_load else access.buffer, access.indices


def _shown(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
