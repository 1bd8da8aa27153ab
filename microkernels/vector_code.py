"""The vector code of a micro-kernel: C stays in registers while k loops over A and B."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.microkernels.kernel import Microkernel, vector_loads
from tvm_blislike.microkernels.operands import Operand, Update
from tvm_blislike.microkernels.tile_loops import tile_rows
from tvm_blislike.microkernels.update_shape import UpdateShape
from tvm_blislike.model.directives import InTurn, KLoopCall, TileCall
from tvm_blislike.model.loop_names import Named

# Columns of a register that stay side by side where loads of B are divided: 128 bits of sums.
_GROUP = 4


def vector_code(update: Update) -> None:
    """Emit the code of a use, with C in registers."""
    kernel, shape, c = update.kernel, update.shape, update.c
    is_turned = kernel.product.joined > 1
    if not (shape.in_memory or is_turned):
        _k_loop(update)
        return
    sums = Operand.local((shape.mh, shape.mw, kernel.nr), kernel.types.acc)
    zero = T.broadcast(tirx.const(0, kernel.types.acc), kernel.lanes)
    for at in _block(update, cut=not is_turned):
        T.buffer_store(sums.buffer, zero, sums.at(*at))
    _k_loop(replace(update, c=sums))
    for at in _block(update):
        block = _turned(update, sums, at) if is_turned else sums.buffer[sums.at(*at)]
        T.buffer_store(c.buffer, c.buffer[c.at(*at)] + block, c.at(*at))


def _turned(update: Update, sums: Operand, at: tuple[Any, Any, Any]) -> Any:
    """Return a vector of sums of which each of the vectors of its square holds a group."""
    kernel, (ih, iw, columns) = update.kernel, at
    joined, lanes = kernel.product.joined, kernel.lanes
    width, group = joined * lanes, _GROUP
    square, part = columns.base // width * width, columns.base % width // (joined * group)
    # Of the registers of a square each has one of the groups that follow one another.
    places = (divmod(number, joined) for number in range(lanes // group))
    rows = (
        T.ramp(square + register * lanes + (part + further) * group, 1, group)
        for further, register in places
    )
    parts = [sums.buffer[sums.at(ih, iw, row)] for row in rows]
    return tirx.Shuffle(parts, [tirx.IntImm("int32", lane) for lane in range(lanes)])


def _rows(shape: UpdateShape) -> Iterator[tuple[Any, Any]]:
    """Unrolled loops over the rows of a block, as image rows and columns."""
    with T.unroll(0, shape.mh, annotations=Named("mh").note()) as ih:
        with T.unroll(0, shape.mw, annotations=Named("mw").note()) as iw:
            yield ih, iw


def _block(update: Update, cut: bool = True) -> Iterator[tuple[Any, Any, Any]]:
    """Unrolled loops over the registers of a block: (row, column, elements).

    Parameters
    ----------
    cut : bool
        Where columns of a block are cut off, so are these.
    """
    lanes, name = update.kernel.lanes, Named("nr").note() if cut else None
    for ih, iw in _rows(update.shape):
        with T.unroll(0, update.kernel.vectors, annotations=name) as jv:
            yield ih, iw, T.ramp(jv * lanes, 1, lanes)


# --- the loop over k -------------------------------------------------------------------------


def _k_loop(update: Update) -> None:
    """The loop over k, in both its forms where there are two."""
    kernel, shape, a, b, c = update.kernel, update.shape, update.a, update.b, update.c
    if kernel.tiles is not None:
        _tile_loop(update)
        return
    if not _is_function(update):
        _plain_k_loop(update)
        return
    is_panel, ks = shape.view == "panel", kernel.ks
    a_strides = (ks * shape.mw, ks, kernel.mr * ks) if is_panel else (*_strides(update), ks)
    way = (shape.view, int(shape.in_order))
    whole = KLoopCall(shape.mh, shape.mw, kernel.nr, kernel.lanes, *way)
    with T.serial(0, 1, annotations=whole.note()):
        at = [divmod(row, shape.mw) for row in range(kernel.mr)]
        rows = [T.address_of(c.buffer[c.at(*place, 0)]) for place in at]
        strides = [tirx.Cast("int64", stride) for stride in (*a_strides, kernel.nr * ks)]
        operands = (a.address(), *strides[:3], b.address(), strides[3])
        T.evaluate(T.call_extern("void", kernel.loop.name, *operands, T.int64(shape.steps), *rows))
        _plain_k_loop(update)


def _tile_loop(update: Update) -> None:
    """The call of a `TileLoop` beside the plain loops, which show where it is cut."""
    kernel, shape, a, b, c = update.kernel, update.shape, update.a, update.b, update.c
    strides = [tirx.Cast("int64", x * kernel.types.a_bytes) for x in _strides(update)]
    rows, streams = tile_rows(kernel.mr, shape.mh), int(shape.streams)
    whole = TileCall(kernel.nr, kernel.lanes, rows, shape.steps, streams)
    with T.serial(0, 1, annotations=whole.note()):
        operands = (a.address(), *strides, b.address(), c.address())
        T.evaluate(T.call_extern("void", kernel.tiles.name, *operands))
        _plain_k_loop(update)


def _strides(update: Update) -> tuple[Any, Any]:
    """Elements of A in place from an image row of a block to the next, and from a row to the next.

    Rows of a single element have no axis for it.
    """
    shape, a = update.shape, update.a
    rows = shape.view == "rows" and shape.steps * shape.ks > 1
    line = a.stride(-3 if rows else -2) * shape.sh if shape.mh > 1 else 0
    return line, shape.sw * (a.stride(-2) if rows else 1)


def _is_function(update: Update) -> bool:
    """Whether the k loop is a function of LLVM."""
    loop, shape = update.kernel.loop, update.shape
    if loop is None or shape.view not in loop.views or not isinstance(shape.steps, int):
        return False
    if shape.view != "panel" and shape.mh > 1 and not loop.image_rows:
        return False
    return loop.serves(update.kernel, shape.in_order)


def _plain_k_loop(update: Update) -> None:
    """A k loop of `unroll` steps, everything inside unrolled, then its tail."""
    if update.kernel.closing_rows:
        _add_closing_row(update)
    unroll, count = _unroll(update), update.shape.steps
    # A number that is known at run time only is one of whole iterations.
    steps, tail = divmod(count, unroll) if isinstance(count, int) else (count // unroll, 0)
    if tail == 0 or steps:
        with T.serial(0, steps, annotations=Named("k").note()) as ko:
            _k_steps(update, ko * unroll, unroll)
    if tail:
        _k_steps(update, steps * unroll, tail)


def _add_closing_row(update: Update) -> None:
    """Add what sums of products of the panel's groups lack, from the row behind them, to C.

    First of all: sums that begin with zero begin with it, and it costs nothing.
    """
    kernel, b, c = update.kernel, update.b, update.c
    behind = update.shape.steps * kernel.nr * kernel.ks
    halves = kernel.types.acc_bytes // kernel.types.b_bytes
    for ih, iw, columns in _block(update):
        elements = T.ramp(behind + columns.base * halves, 1, columns.lanes * halves)
        row = b.buffer[b.at(0, elements)]
        at = c.at(ih, iw, columns)
        offsets = T.reinterpret(f"{kernel.types.acc}x{kernel.lanes}", row)
        T.buffer_store(c.buffer, c.buffer[at] + offsets, at)


def _unroll(update: Update) -> int:
    """Steps of k in one iteration: 1 where no register is left for operands of further ones."""
    kernel, shape = update.kernel, update.shape
    by_element = kernel.isa.lane_operand and shape.view == "rows" and not kernel.loads_a_vectors
    return 1 if by_element else shape.unroll


# --- steps of k, by how A arrives ------------------------------------------------------------


def _k_steps(update: Update, k0: Any, count: int) -> None:
    """Emit `count` steps of k from step k0 on."""
    kernel, shape = update.kernel, update.shape
    if not kernel.isa.lane_operand:
        _by_element(update, k0, count, Named("ki").note() | _order(kernel))
    elif shape.view == "panel":
        _by_panel_vectors(update, k0, count)
    elif _k_is_contiguous(update) and count > 1 and kernel.loads_a_vectors:
        _by_row_vectors(update, k0, count)
    else:
        # NEON without room for vectors of A.
        _by_element(update, k0, count, None)


def _order(kernel: Microkernel) -> dict[str, str]:
    """Return the note that steps of k load in turn, where LLVM has no register to load ahead into.

    Of groups it does so all the same: a third of the layers with 14x32 blocks of bytes or bfloat16
    had an accumulator on the stack, and took 0.66 instead of 0.46 ms (256 channels of 14x14,
    bfloat16, Zen 5). One step in an iteration of the loop costs up to 8 %.
    """
    return InTurn().note() if kernel.takes_groups and kernel.is_tight else {}


def _k_is_contiguous(update: Update) -> bool:
    """Whether steps of k of a row in place lie side by side: of groups also in a window."""
    shape = update.shape
    return shape.view == "rows" or (shape.dw == 1 and update.kernel.ks > 1)


def _by_element(update: Update, k0: Any, count: int, annotations: dict[str, str] | None) -> None:
    """Each element of A, or group of some, is a load or broadcast of its own."""
    a, shape, product = update.a, update.shape, update.kernel.product
    with T.unroll(0, count, annotations=annotations) as ki:
        for ih, iw in _rows(shape):
            *outer, first = a.at(*shape.a_index(ih, iw, k0 + ki))
            group = T.ramp(first, 1, product.ks) if product.ks > 1 else first
            value = product.load(a.buffer[[*outer, group]], 1)
            _row_update(update, k0 + ki, ih, iw, value)


def _by_panel_vectors(update: Update, k0: Any, count: int) -> None:
    """NEON: A passes through registers as vectors of a panel's rows, and multiplies by element."""
    kernel, a, mw = update.kernel, update.a, update.shape.mw
    column = T.alloc_buffer((count, kernel.mr), kernel.group_type)
    for ki in range(count):
        for start, width in vector_loads(kernel.mr, kernel.operand_lanes):
            _load(update, column, ki, start, width, lambda s, k=ki: a.at(k0 + k, s))
        for ih, iw in _rows(update.shape):
            _row_update(update, k0 + ki, ih, iw, column[ki, ih * mw + iw])


def _by_row_vectors(update: Update, k0: Any, count: int) -> None:
    """NEON: one vector of k steps per row of the block; unit stride in k makes it a plain load."""
    kernel, shape, a = update.kernel, update.shape, update.a
    values = T.alloc_buffer((kernel.mr, count), kernel.group_type)
    for ih, iw in _rows(shape):

        def steps(s: Any, ih: Any = ih, iw: Any = iw) -> Any:
            return a.at(*shape.a_index(ih, iw, k0, s))

        for start, width in vector_loads(count, kernel.operand_lanes):
            _load(update, values, ih * shape.mw + iw, start, width, steps)
    with T.unroll(0, count) as ki:
        for ih, iw in _rows(shape):
            _row_update(update, k0 + ki, ih, iw, values[ih * shape.mw + iw, ki])


def _load(
    update: Update, local: Any, row: Any, start: int, width: int, at: Callable[[Any], list[Any]]
) -> None:
    """Load groups of A from the `start`th on, which lie side by side, into a row of `local`."""
    product = update.kernel.product
    elements = update.a.buffer[at(_span(product.ks * start, product.ks * width))]
    T.buffer_store(local, product.load(elements, width), [row, _span(start, width)])


def _span(start: int, width: int) -> Any:
    return T.ramp(start, 1, width) if width > 1 else start


def _row_update(update: Update, k: Any, ih: Any, iw: Any, value: Any) -> None:
    """Add an element of A, or a group, times a row of B to a row of the block."""
    kernel, product, c = update.kernel, update.kernel.product, update.c
    for vector in _vectors(kernel):
        at_c = c.at(ih, iw, T.ramp(vector * kernel.lanes, 1, kernel.lanes))
        groups = _groups_of_b(update, k, vector)
        sums = product.multiply_add(c.buffer[at_c], value, groups, kernel.lanes)
        T.buffer_store(c.buffer, sums, at_c)


def _vectors(kernel: Microkernel) -> Iterator[Any]:
    """Numbers of the vectors of a row: of an unrolled loop, or each one where loads are joined.

    The latter are never cut.
    """
    if kernel.product.joined > 1:
        yield from range(kernel.vectors)
        return
    with T.unroll(0, kernel.vectors, annotations=Named("nr").note()) as vector:
        yield vector


def _groups_of_b(update: Update, k: Any, vector: Any) -> Any:
    """Load what a vector of sums is multiplied by, alone or with that of its neighbours."""
    kernel, product, b = update.kernel, update.kernel.product, update.b
    width = product.joined * kernel.lanes * product.ks
    if product.joined == 1:
        return product.load(b.buffer[b.at(k, T.ramp(vector * width, 1, width))], kernel.lanes)
    first, number = divmod(vector, product.joined)
    return product.part(b.buffer[b.at(k, T.ramp(first * width, 1, width))], number)
