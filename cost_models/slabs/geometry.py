"""Slabs of a chain of convolutions: the rows that each layer computes in each of them.

A slab is some rows of the last layer's result. What a layer has to compute for it follows from the
layer behind: the rows that are read and that the slab before has not left. Threads have parts of
the slabs, one after the other; the first of a part finds nothing left and computes the rows that
two parts share again.

Between two layers lie rows of a padded image: those of padding are written once, as zeros, and the
layer behind is one convolution without padding above and below in all slabs. Of the image that
the first layer reads padding is left out, and its first and last slabs are convolutions of their
own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tvm_blislike.model.derived import derived
from tvm_blislike.model.workload import Conv2dWorkload


@dataclass(frozen=True)
class Step:
    """What a layer does in some slabs, alike but for their places.

    Rows of its result, and of the image that the first layer reads, are beside those of the slab:
    `SlabGeometry.pitch` for each slab before, of the image times the stride.

    Parameters
    ----------
    rows : int
        Rows that are computed; none where the slab before has left all.
    above, below : int
        Rows of padding that the first layer reads.
    blank_above, blank_below : int
        Rows of padding that are written before and behind these, for the layer behind.
    start : int
        The first row, of the layer's result.
    read : int
        The first row that the first layer reads, of the image; the others read all that is held.
    written : int
        The first row that is written, of the layer's buffer; of the result for the last layer.
    kept, moved : int
        So many rows of the buffer are those of the slab before, so many rows further down.
    """

    rows: int
    above: int
    below: int
    blank_above: int
    blank_below: int
    start: int
    read: int
    written: int
    kept: int
    moved: int


class _Span(NamedTuple):
    """Rows of a layer's result, padded: its buffer holds [base, stop), [start, stop) are new."""

    base: int
    start: int
    stop: int


@dataclass(frozen=True)
class SlabGeometry:
    """Sizes that follow from the layers, the rows of a slab and the parts of an image.

    Parameters
    ----------
    layers : tuple of Conv2dWorkload
        From the image on; each one but the first reads the result of the one before it.
    rows : int
        Of the last layer's result.
    parts : int
        Of an image, one behind the other; fewer where there are fewer slabs.
    """

    layers: tuple[Conv2dWorkload, ...]
    rows: int
    parts: int = 1

    @derived
    def count(self) -> int:
        """Slabs of an image; the last one may have fewer rows."""
        return math.ceil(self.layers[-1].oh / self.rows)

    @derived
    def per_part(self) -> int:
        """Slabs of a part; the last part may have fewer."""
        return math.ceil(self.count / self.parts)

    @derived
    def used_parts(self) -> int:
        """Parts that have slabs."""
        return math.ceil(self.count / self.per_part)

    def pitch(self, layer: int) -> int:
        """Return how many rows further down each slab is, in a layer's result."""
        return self.rows * math.prod(w.stride[0] for w in self.layers[layer + 1 :])

    @derived
    def steps(self) -> list[dict[Step, list[int]]]:
        """For each layer what it does, and the numbers of the slabs in which it does so."""
        return _steps(self)

    @derived
    def units(self) -> list[int]:
        """Rows that divide what each layer computes in any slab."""
        return [math.gcd(*(step.rows for step in steps)) for steps in self.steps]

    @derived
    def buffer_rows(self) -> list[int]:
        """Rows of the buffer of each layer but the last one."""
        return [
            max(step.written + step.rows + step.blank_below for step in steps)
            for steps in self.steps[:-1]
        ]

    @derived
    def row_bytes(self) -> list[int]:
        """Bytes of a row of each layer's result."""
        return [w.co * w.ow * w.types.out_bytes for w in self.layers]

    @derived
    def buffer_bytes(self) -> list[int]:
        """Bytes of these buffers."""
        return [rows * row for rows, row in zip(self.buffer_rows, self.row_bytes, strict=False)]


def of_step(whole: Conv2dWorkload, step: Step) -> Conv2dWorkload:
    """Return a layer of which a step is the whole, of a single image."""
    left, right = whole.padding[1], whole.padding[3]
    read = reach(whole, step.rows) - step.above - step.below
    return dataclasses.replace(whole, n=1, h=read, padding=(step.above, left, step.below, right))


def of_unit(whole: Conv2dWorkload, rows: int) -> Conv2dWorkload:
    """Return a 1x1 layer of so many rows of a single image."""
    return dataclasses.replace(whole, n=1, h=rows)


def _steps(geo: SlabGeometry) -> list[dict[Step, list[int]]]:
    found: list[dict[Step, list[int]]] = [{} for _ in geo.layers]
    before: list[_Span] = []
    for number in range(geo.count):
        left = before if number % geo.per_part else []
        spans = _spans(geo, number, left)
        for layer in range(len(geo.layers)):
            step = _step(geo, layer, number, spans, left)
            found[layer].setdefault(step, []).append(number)
        before = spans
    return found


def _spans(geo: SlabGeometry, number: int, left: Sequence[_Span]) -> list[_Span]:
    """Return what each layer holds and computes, given what the slab before has left."""
    start = number * geo.rows
    stop = min(start + geo.rows, geo.layers[-1].oh)
    spans = [_Span(start, start, stop)]
    for layer in range(len(geo.layers) - 2, -1, -1):
        spans.insert(0, _read(geo.layers[layer + 1], spans[0], left[layer] if left else None))
    return spans


def _read(reader: Conv2dWorkload, span: _Span, left: _Span | None) -> _Span:
    """Return what has to be there for a layer to compute a span, where some is left."""
    start, stop = _inside(reader.oh, span)
    if start == stop and left:
        return _Span(left.base, left.stop, left.stop)
    base = start * reader.stride[0] - reader.padding[0]
    stop = base + reach(reader, stop - start)
    return _Span(base, min(max(base, left.stop), stop) if left else base, stop)


def _inside(height: int, span: _Span) -> tuple[int, int]:
    """Return where the new rows of a span begin and end that are none of padding."""
    start = min(max(0, span.start), height)
    return start, max(start, min(span.stop, height))


def _step(
    geo: SlabGeometry, layer: int, number: int, spans: Sequence[_Span], left: Sequence[_Span]
) -> Step:
    """Return what a layer does in a slab, beside the slab's place."""
    w, span = geo.layers[layer], spans[layer]
    start, stop = _inside(w.oh, span)
    place, is_last = number * geo.pitch(layer), layer == len(geo.layers) - 1
    kept = max(0, left[layer].stop - span.base) if left and not is_last else 0
    read = above = below = 0
    if layer == 0 and start < stop:
        top = start * w.stride[0] - w.padding[0]
        above, below = max(0, -top), max(0, top + reach(w, stop - start) - w.h)
        read = top + above - place * w.stride[0]
    return Step(
        rows=stop - start,
        above=above,
        below=below,
        blank_above=max(0, start - span.start),
        blank_below=span.stop - max(stop, span.start),
        start=start - place if start < stop else 0,
        read=read,
        written=max(start, span.start) - (place if is_last else span.base),
        kept=kept,
        moved=span.base - left[layer].base if kept else 0,
    )


def reach(workload: Conv2dWorkload, rows: int) -> int:
    """Return the rows of the padded image that some rows of the result read."""
    w = workload
    return (rows - 1) * w.stride[0] + (w.kh - 1) * w.dilation[0] + 1
