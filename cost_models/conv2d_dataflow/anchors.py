"""The programs of the three anchors, and the names of the registers that stay filled.

Registers of an auxiliary stationarity are named by the column modulo how many of a row are kept:
the next window finds what it shares with this one where it is, and `unroll` columns later all names
are the same again (algorithm 4, figure 6; `period`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

from tvm_blislike.cost_models.conv2d_dataflow.config import INPUT, OUTPUT, DataflowConfig
from tvm_blislike.cost_models.conv2d_dataflow.program import (
    MEMORY,
    Columns,
    Rows,
    Sizes,
    Step,
    Tap,
    Use,
    alike_columns,
    runs,
)


def program(sizes: Sizes, config: DataflowConfig) -> tuple[Rows, ...]:
    """Return what a pass does, row by row."""
    c = config
    return _program(sizes, c.anchor, c.weights, c.inputs, c.outputs, c.unroll)


@functools.lru_cache(256)
def _program(
    sizes: Sizes, anchor: str, weights: int, inputs: int, outputs: int, unroll: int
) -> tuple[Rows, ...]:
    if anchor == OUTPUT:
        return _by_output(sizes, weights, inputs, unroll)
    if anchor == INPUT:
        return _by_input(sizes, weights, outputs, unroll)
    return tuple(_by_weight(sizes, inputs, outputs, unroll))


def period(sizes: Sizes, config: DataflowConfig) -> int:
    """Return the outputs of a row after which registers have the same names again."""
    if config.anchor == OUTPUT:
        kept = _kept_inputs(sizes, config.inputs).values()
        step = sizes.stride[1]
        return math.lcm(*(k // math.gcd(k, step) for k in kept if k))
    if config.anchor == INPUT:
        kept = [_kept_outputs(sizes, config.outputs, p) for p in range(sizes.stride[0])]
        return math.lcm(*(k for phase in kept for k in phase.values() if k))
    return 1


def _weight(sizes: Sizes, tap: Tap, kept: int) -> Use:
    """Weights that stay in registers are the first taps."""
    place = (tap[0] * sizes.kw + tap[1]) * sizes.channels + tap[2]
    return Use(place) if place < kept else MEMORY


# --- anchored at outputs (algorithms 3 and 5) ------------------------------------------------


def _kept_inputs(sizes: Sizes, inputs: int) -> dict[tuple[int, int], int]:
    """Inputs kept of each row of the window and group of channels: row by row, whole ones first.

    A row that keeps no more than a stride has nothing that the next window could use.
    """
    kept = {}
    for row in itertools.product(range(sizes.kh), range(sizes.channels)):
        kept[row] = min(sizes.kw, inputs - sum(kept.values()))
    return kept


def _by_output(sizes: Sizes, weights: int, inputs: int, unroll: int) -> tuple[Rows, ...]:
    kept, step = _kept_inputs(sizes, inputs), sizes.stride[1]
    before = dict(zip(kept, itertools.accumulate((0, *kept.values())), strict=False))

    def data(x: int, tap: Tap, is_first: bool) -> Use:
        ry, rx, group = tap
        count = kept[ry, group]
        if rx >= count:
            return MEMORY
        return Use(before[ry, group] + (x * step + rx) % count, is_first or rx >= count - step)

    def steps(first: int, width: int) -> Iterator[Step]:
        for x in range(width):
            for tap in sizes.taps:
                out = Use(0, tap == sizes.taps[0], tap == sizes.taps[-1])
                is_first = first == 1 and x == 0
                yield Step(tap, 0, x, out, data(x, tap, is_first), _weight(sizes, tap, weights))

    def alike(chunk: int) -> tuple[int, int]:
        return int(chunk == 0 and inputs > 0), min(unroll, sizes.columns - chunk * unroll)

    columns = alike_columns(-(-sizes.columns // unroll), alike, steps)
    return (Rows(0, sizes.rows, columns, sizes.taps[:weights]),)


# --- anchored at inputs (algorithms 1 and 6) -------------------------------------------------


def _kept_outputs(sizes: Sizes, outputs: int, phase: int) -> dict[int, int]:
    """Outputs kept for each row of the window that input rows of a phase of the stride meet."""
    (sh, sw), kept = sizes.stride, {}
    for ry in (ry for ry in range(sizes.kh) if (phase - ry * sizes.dilation[0]) % sh == 0):
        kept[ry] = min(-(-sizes.kw // sw), outputs - sum(kept.values()))
    return kept


def window_outputs(sizes: Sizes) -> int:
    """Return the outputs that one input contributes to, the most of all phases of the stride."""
    most = sizes.kh * sizes.kw
    return max(sum(_kept_outputs(sizes, most, p).values()) for p in range(sizes.stride[0]))


def _by_input(sizes: Sizes, weights: int, outputs: int, unroll: int) -> tuple[Rows, ...]:
    """Rows and columns are those of inputs, `stride` of which are a row or column of outputs."""
    (sh, sw), (dh, dw) = sizes.stride, sizes.dilation
    height, width = sizes.inputs
    reach_h, reach_w = (sizes.kh - 1) * dh // sh, (sizes.kw - 1) * dw // sw

    def alike_rows(row: int) -> tuple[int, int]:
        return min(row, reach_h), min(sizes.rows - row, 1)

    def alike(chunk: int) -> tuple[int, int]:
        return min(chunk * unroll, reach_w), min(sizes.columns - chunk * unroll, unroll)

    def row_of_inputs(phase: int, above: int, below: int) -> tuple[Columns, ...]:
        rows = _kept_outputs(sizes, outputs, phase)
        met = {ry: (phase - ry * dh) // sh for ry in rows}
        inside = {ry: y for ry, y in met.items() if -above <= y < below}

        def steps(left: int, right: int) -> Iterator[Step]:
            return _inputs(sizes, rows, inside, (left, right), (weights, unroll))

        return alike_columns(-(-width // (unroll * sw)), alike, steps)

    def columns(*key: int) -> tuple[Columns, ...]:
        rows = (row_of_inputs(phase, *key) for phase in range(sh))
        return tuple(itertools.chain(*rows))

    found = runs(-(-height // sh), alike_rows)
    rows = [Rows(first, count, columns(*key)) for first, count, key in found]
    return (Rows(0, 0, (), sizes.taps[:weights]), *rows)


def _inputs(
    sizes: Sizes,
    kept: dict[int, int],
    inside: dict[int, int],
    border: tuple[int, int],
    options: tuple[int, int],
) -> Iterator[Step]:
    """Yield the steps of the inputs of one row and iteration: all outputs that each one meets."""
    sw, dw = sizes.stride[1], sizes.dilation[1]
    before = dict(zip(kept, itertools.accumulate((0, *kept.values())), strict=False))
    weights, unroll = options
    for column, group in itertools.product(range(unroll * sw), range(sizes.channels)):
        is_first = True
        for ry, rx in itertools.product(inside, range(sizes.kw)):
            x, rest = divmod(column - rx * dw, sw)
            if rest or not -border[0] <= x < border[1]:
                continue
            tap, count = (ry, rx, group), kept[ry]
            last = min(sizes.kw, count * sw) - 1
            out = MEMORY
            if rx <= last:
                load = rx == 0 and group == 0
                store = rx == last and group == sizes.channels - 1
                out = Use(before[ry] + x % count, load, store)
            weight = _weight(sizes, tap, weights)
            yield Step(tap, inside[ry], x, out, Use(0, is_first), weight)
            is_first = False


# --- anchored at weights (algorithms 2 and 7) ------------------------------------------------


def _by_weight(sizes: Sizes, inputs: int, outputs: int, unroll: int) -> Iterator[Rows]:
    """The earliest inputs and outputs stay in registers, from the first weight to the last."""
    (sh, sw), (dh, dw) = sizes.stride, sizes.dilation
    width, chunks = sizes.inputs[1], -(-sizes.columns // unroll)
    places = itertools.product(range(sizes.rows), range(sizes.columns))
    kept = tuple(itertools.islice(places, outputs))
    pixels = itertools.product(*map(range, (*sizes.inputs, sizes.channels)))
    loaded = tuple(itertools.islice(pixels, inputs))

    def out(y: int, x: int) -> Use:
        place = y * sizes.columns + x
        return Use(place) if place < outputs else MEMORY

    def data(y: int, x: int, tap: Tap) -> Use:
        place = (y * sh + tap[0] * dh) * width + x * sw + tap[1] * dw
        place = place * sizes.channels + tap[2]
        return Use(place) if place < inputs else MEMORY

    def columns(row: int, tap: Tap) -> tuple[Columns, ...]:
        def steps(first: int, count: int) -> Iterator[Step]:
            for x in range(count):
                place = max(row, 0), max(first, 0) + x
                known = (out(*place), data(*place, tap)) if min(row, first) >= 0 else ()
                yield Step(tap, 0, x, *(known or (MEMORY, MEMORY)), Use(0))

        def alike(chunk: int) -> tuple[int, int]:
            first = chunk * unroll
            last = min(first + unroll, sizes.columns)
            special = row >= 0 and any(
                MEMORY != use
                for x in range(first, last)
                for use in (out(row, x), data(row, x, tap))
            )
            return first if special else -1, last - first

        return alike_columns(chunks, alike, steps)

    def alike_rows(row: int, tap: Tap) -> tuple[int]:
        touches = out(row, 0) != MEMORY or data(row, 0, tap) != MEMORY
        return (row if touches else -1,)

    for tap in sizes.taps:
        found = list(runs(sizes.rows, functools.partial(alike_rows, tap=tap)))
        for first, count, (row,) in found:
            is_start = tap == sizes.taps[0] and first == 0
            is_end = tap == sizes.taps[-1] and first + count == sizes.rows
            yield Rows(
                first,
                count,
                columns(row, tap),
                (tap,) if first == 0 else (),
                loaded if is_start else (),
                kept if is_start else (),
                kept if is_end else (),
            )
