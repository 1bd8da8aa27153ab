"""What every micro-kernel shares: its shape, its register budget, and its TensorIntrin.

A micro-kernel updates one block of C that stays in vector registers:

    C[i, j] += sum_k A(i, k) * B[k, j]        0 <= i < mr, 0 <= j < nr, 0 <= k < kr

B is a packed panel (kr, nr), read with unit stride. A is read where it lies, through one of
three views, because a broadcast (x86) or a short vector load (NEON) takes any address:

    panel    A[k, i]                          packed micro-panel of BLIS (GEMM paper, figure 3)
    rows     A[ih * sh, iw * sw, k]           pixels of an NCHWc image, or rows of a matrix (mh = 1)
    window   A[ih * sh, iw * sw + k * dw]     overlapping windows of an NCHW image row (first layer)

The rows of the block are mh x mw (mr = mh * mw), so that narrow images fill a whole block too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_blislike import notes
from tvm_blislike.microkernels import neon_in_order, neon_panels

# Loop annotation: the block axis that a loop runs over, so that the edge of a tile can be
# cut off after scheduling (schedules/lowering.py). Values: "mh", "mw", "nr" (in vectors).
AXIS = "blislike.axis"
# Loop of one iteration around a k loop that is a function of LLVM (`neon_panels`): its call, yet
# without a name, and the plain loops, which show where the block has been cut. Holds the extents
# of the whole block as {"mw": ..., "nr": ..., "in_order": ...}.
PANELS = "blislike.panels"
# NEON, `rows` view: vectors of A for four k steps stay in registers beside the block and a row of
# B. With more than this LLVM 22 spills on some core (30: none; 31: 7x12 on Cortex-A53).
_MOST_WITH_VECTORS_OF_A = 30
# NEON, `panel` view: with more LLVM 22 spills on Cortex-A53 and A55 (4x24), and everywhere with 36.
_MOST_OF_A_LOOP_BY_LLVM = 30
# The same on cores that issue in order, for which LLVM spreads loads and so runs out of registers
# in cut blocks (3x24 cut to 3x4).
_MOST_VECTORS_IN_ORDER = 2


# What `_register` calls an intrinsic.
_INTRIN_NAME = re.compile(
    r"blislike_(?P<kernel>[a-z0-9]+_[a-z0-9]+_\d+x\d+)_(?P<mh>\d+)x(?P<mw>\d+)"
    r"_k(?P<kr>\d+)u(?P<unroll>\d+)_(?P<view>[a-z]+)_s(?P<sh>\d+)_(?P<sw>\d+)_d(?P<dw>\d+)"
    r"(?P<m>_m)?(?P<o>_o)?"
)


@dataclass(frozen=True)
class Microkernel:
    """One register block.

    Parameters
    ----------
    isa : str
        "avx512", "avx2" or "neon".
    mr, nr : int
        Rows and columns of the block, in elements.
    lanes : int
        Elements of one vector register; divides `nr`.
    dtype : str
        Data type of A, B and C.
    a_by_lane : bool
        A arrives by vector loads and is multiplied by element (NEON `fmla v, v, v.s[i]`);
        otherwise each element is a broadcast from memory (x86).
    """

    isa: str
    mr: int
    nr: int
    lanes: int
    dtype: str = "float32"
    a_by_lane: bool = False

    @property
    def name(self) -> str:
        """Derived name, such as `avx512_f32_14x32`."""
        return kernel_name(self.isa, self.mr, self.nr, self.dtype)

    @property
    def vectors(self) -> int:
        """Vector registers in one row of the block."""
        return self.nr // self.lanes

    @property
    def registers(self) -> int:
        """Vector registers that the k loop keeps alive: accumulators, one row of B, and A.

        Of a row of B that does not fit only the vectors that pass through are counted.
        """
        return neon_panels.REGISTERS if self.panels_only else self._block_and_operands

    @property
    def panels_only(self) -> bool:
        """Whether a row of B does not fit, so that only panels will do (`neon_panels`)."""
        return self.a_by_lane and self._block_and_operands > neon_panels.REGISTERS

    @property
    def _block_and_operands(self) -> int:
        if self.a_by_lane:
            a = -(-self.mr // self.lanes)
        else:
            # A one-vector row of AVX-512 folds the broadcast into the FMA: no register for A.
            a = 0 if self.isa == "avx512" and self.vectors == 1 else 1
        return self.mr * self.vectors + self.vectors + a

    @property
    def loads_a_vectors(self) -> bool:
        """Whether the `rows` view loads A as vectors along k, not one element at a time."""
        return self.a_by_lane and self.registers_in_place <= _MOST_WITH_VECTORS_OF_A

    @property
    def registers_in_place(self) -> int:
        """Vector registers of a k loop with a vector along k of every row of A (`rows` view)."""
        return self.mr * (self.vectors + 1) + self.vectors

    def a_loads(self, rows: int, view: str = "rows", in_order: bool = False) -> float:
        """Return the loads of A in one k step of a block of `rows` rows that take time.

        Beside the multiply-adds of a loop ordered for such a core (`neon_in_order`) none does.
        """
        if in_order and view == "panel" and _has_ordered_loop(self) and rows == self.mr:
            return 0.0
        if view == "panel" and self.a_by_lane:
            return float(sum(1 for _ in _pieces(rows, self.lanes)))
        return rows / self.lanes if self.loads_a_vectors else rows

    def loads_per_fma(self, view: str = "rows") -> float:
        """Return the elements and vectors loaded in one k step over its FMAs."""
        loads = self.a_loads(self.mr, view) + self.vectors
        return loads / (self.mr * self.vectors)


def kernel_name(isa: str, mr: int, nr: int, dtype: str = "float32") -> str:
    """Return the name of the micro-kernel with that shape."""
    return f"{isa}_{dtype.replace('float', 'f')}_{mr}x{nr}"


def within_budget(kernels: Sequence[Microkernel], registers: int) -> tuple[Microkernel, ...]:
    """Keep the kernels whose accumulators and operands fit into `registers` vector registers."""
    return tuple(k for k in kernels if k.registers <= registers)


@dataclass(frozen=True)
class UpdateShape:
    """How one use of a micro-kernel walks through A and k.

    Parameters
    ----------
    mh, mw : int
        Rows of the block as image rows and columns; mh * mw is the kernel's mr.
    kr : int
        k steps of one call.
    unroll : int
        k steps per iteration of the emitted loop.
    view : str
        "rows", "window" or "panel".
    sh, sw, dw : int
        Strides of the image rows and columns and step of k (`window`), in elements.
    in_memory : bool
        C lies in memory rather than in a register buffer: the call sums in registers and adds
        the sums to C at its end (LLVM would load and store C at every step of k).
    sums : str
        Data type of C where it lies in memory; "" for that of the kernel. fp16 blocks, summed in
        fp16 registers, are widened when they are added to C in fp32.
    in_order : bool
        The core issues in order: k loops on panels come in the order that such a core needs,
        where there is one (`neon_in_order`).
    """

    mh: int
    mw: int
    kr: int
    unroll: int = 4
    view: str = "rows"
    sh: int = 1
    sw: int = 1
    dw: int = 1
    in_memory: bool = False
    sums: str = ""
    in_order: bool = False

    @property
    def a_shape(self) -> tuple[int, ...]:
        """Extent of A that one call reads; rows of a single k step have no axis for it."""
        if self.view == "panel":
            return (self.kr, self.mh * self.mw)
        rows = (self.mh - 1) * self.sh + 1
        cols = (self.mw - 1) * self.sw + 1
        if self.view == "window":
            return (rows, cols + (self.kr - 1) * self.dw)
        return (rows, cols) if self.kr == 1 else (rows, cols, self.kr)

    def a_index(self, ih: Any, iw: Any, k: Any) -> tuple[Any, ...]:
        """Index of A(i, k) in `a_shape`."""
        if self.view == "panel":
            return (k, ih * self.mw + iw)
        if self.view == "window":
            return (ih * self.sh, iw * self.sw + k * self.dw)
        at = (ih * self.sh, iw * self.sw)
        return at if self.kr == 1 else (*at, k)


def update_intrin(kernel: Microkernel, shape: UpdateShape) -> str:
    """Register the TensorIntrin of `kernel` used with `shape`; return its name.

    The intrinsic's C is (mh, mw, nr), its A is `shape.a_shape`, its B is (kr, nr). Leading axes
    of extent one are dropped from all three, as `Schedule.tensorize` requires.

    Returns
    -------
    str
        Name for `Schedule.tensorize`; registering twice is free.

    Raises
    ------
    ValueError
        When the rows of `shape` do not match the kernel's mr, or the kernel is for panels only.
    """
    _check(kernel, shape)
    return _register(kernel, shape)


@functools.cache
def _register(kernel: Microkernel, shape: UpdateShape) -> str:
    strides = f"s{shape.sh}_{shape.sw}_d{shape.dw}"
    name = (
        f"blislike_{kernel.name}_{shape.mh}x{shape.mw}_k{shape.kr}u{shape.unroll}"
        f"_{shape.view}_{strides}{'_m' if shape.in_memory else ''}{shape.sums}"
        f"{'_o' if shape.in_order else ''}"
    )
    desc = _build(kernel, shape, symbolic=False, body=_desc_body)
    impl = _build(kernel, shape, symbolic=True, body=_impl_body)
    TensorIntrin.register(name, desc, impl, override=True)
    return name


def shape_named(intrin: str) -> tuple[str, UpdateShape] | None:
    """Return the micro-kernel's name and its use that the name of an intrinsic stands for.

    None for an intrinsic that is none of ours.
    """
    found = _INTRIN_NAME.fullmatch(intrin)
    if found is None:
        return None
    fields = found.groupdict()
    flags = {"in_memory": bool(fields.pop("m")), "in_order": bool(fields.pop("o"))}
    kernel, view = fields.pop("kernel"), fields.pop("view")
    return kernel, UpdateShape(**{k: int(v) for k, v in fields.items()}, view=view, **flags)


def standalone(kernel: Microkernel, shape: UpdateShape) -> PrimFunc:
    """Return a micro-kernel as a function of its own, (A, B, C) in memory.

    Raises
    ------
    ValueError
        As for `update_intrin`.
    """
    _check(kernel, shape)
    return _build(kernel, replace(shape, in_memory=True), symbolic=False, body=_impl_body)


def _check(kernel: Microkernel, shape: UpdateShape) -> None:
    if kernel.panels_only and shape.view != "panel":
        raise ValueError(f"{kernel.name} has no register for A in place; use the view panel")
    if shape.mh * shape.mw != kernel.mr:
        raise ValueError(f"{kernel.name} has {kernel.mr} rows, not {shape.mh} x {shape.mw}")


def _squeeze(shape: Sequence[int]) -> tuple[int, ...]:
    """Drop leading axes of extent one; those further in are there in every buffer."""
    first = next((axis for axis, extent in enumerate(shape) if extent != 1), len(shape) - 1)
    return tuple(shape[first:])


class _Operand:
    """A buffer declared without leading unit axes but indexed with all of them."""

    def __init__(self, shape: Sequence[int], dtype: str, contiguous: bool) -> None:
        self.shape = tuple(shape)
        self.kept = _squeeze(shape)
        handle = T.arg("p", T.handle())
        strides = None
        if not contiguous:
            strides = [T.int32() for _ in self.kept[:-1]] + [1]
        self.buffer = T.match_buffer(handle, self.kept, dtype, offset_factor=1, strides=strides)

    @classmethod
    def local(cls, shape: Sequence[int], dtype: str) -> _Operand:
        """Return a buffer of the micro-kernel's own."""
        operand = cls.__new__(cls)
        operand.shape = tuple(shape)
        operand.kept = _squeeze(shape)
        operand.buffer = T.alloc_buffer(operand.kept, dtype)
        return operand

    def at(self, *index: Any) -> list[Any]:
        return list(index[-len(self.kept) :])

    def region(self) -> Any:
        return self.buffer[tuple(slice(0, s) for s in self.kept)]


def _build(
    kernel: Microkernel,
    shape: UpdateShape,
    symbolic: bool,
    body: Callable[..., None],
) -> PrimFunc:
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            a = _Operand(shape.a_shape, kernel.dtype, contiguous=not symbolic)
            b = _Operand((shape.kr, kernel.nr), kernel.dtype, contiguous=True)
            c = _Operand((shape.mh, shape.mw, kernel.nr), shape.sums or kernel.dtype, True)
            with T.sblock("root"):
                T.reads(c.region(), a.region(), b.region())
                T.writes(c.region())
                body(kernel, shape, a, b, c)
    return builder.get()


def _desc_body(
    kernel: Microkernel, shape: UpdateShape, a: _Operand, b: _Operand, c: _Operand
) -> None:
    """Plain semantics: one scalar multiply-add, block axes ordered (mh, mw, nr, k)."""
    extents = (shape.mh, shape.mw, kernel.nr, shape.kr)
    # k outermost: the order in which the schedules hand the loops to tensorize.
    order = (3, 0, 1, 2)
    kept = [axis for axis in order if extents[axis] != 1]
    with T.grid(*(extents[axis] for axis in kept)) as loops:
        loops = [loops] if len(kept) == 1 else list(loops)
        var = dict(zip(kept, loops, strict=True))
        with T.sblock("update"):
            v: list[Any] = [0, 0, 0, 0]
            for axis in sorted(kept):
                make = T.axis.reduce if axis == 3 else T.axis.spatial
                v[axis] = make(extents[axis], var[axis])
            ih, iw, j, k = v
            at_c, at_a = c.at(ih, iw, j), a.at(*shape.a_index(ih, iw, k))
            left, right = a.buffer[at_a], b.buffer[b.at(k, j)]
            if shape.sums:
                left, right = tirx.Cast(shape.sums, left), tirx.Cast(shape.sums, right)
            T.buffer_store(c.buffer, c.buffer[at_c] + left * right, at_c)


def _impl_body(
    kernel: Microkernel, shape: UpdateShape, a: _Operand, b: _Operand, c: _Operand
) -> None:
    """Vector code, with C in registers."""
    if not shape.in_memory:
        _k_loop(kernel, shape, a, b, c)
        return
    sums = _Operand.local((shape.mh, shape.mw, kernel.nr), kernel.dtype)
    zero = T.broadcast(tirx.const(0.0, kernel.dtype), kernel.lanes)
    for at in _block(kernel, shape):
        T.buffer_store(sums.buffer, zero, sums.at(*at))
    _k_loop(kernel, shape, a, b, sums)
    for at in _block(kernel, shape):
        block = sums.buffer[sums.at(*at)]
        if shape.sums:
            block = tirx.Cast(f"{shape.sums}x{kernel.lanes}", block)
        T.buffer_store(c.buffer, c.buffer[c.at(*at)] + block, c.at(*at))


def _block(kernel: Microkernel, shape: UpdateShape) -> Iterator[tuple[Any, Any, Any]]:
    """Unrolled loops over the registers of a block: (row, column, elements)."""
    for ih, iw in _rows(shape):
        with T.unroll(0, kernel.vectors, annotations={AXIS: "nr"}) as jv:
            yield ih, iw, T.ramp(jv * kernel.lanes, 1, kernel.lanes)


def _k_loop(kernel: Microkernel, shape: UpdateShape, a: _Operand, b: _Operand, c: _Operand) -> None:
    """The loop over k, in both its forms where there are two."""
    if not (_is_in_order(kernel, shape) or _is_streamed(kernel, shape)):
        _plain_k_loop(kernel, shape, a, b, c)
        return
    extents = {"mw": kernel.mr, "nr": kernel.vectors, "in_order": int(shape.in_order)}
    with T.serial(0, 1, annotations={PANELS: notes.write(extents)}):
        rows = [T.address_of(c.buffer[c.at(0, row, 0)]) for row in range(kernel.mr)]
        panels = [T.address_of(panel.buffer[panel.at(0, 0)]) for panel in (a, b)]
        T.evaluate(T.call_extern("void", "", *panels, T.int64(shape.kr), *rows))
        _plain_k_loop(kernel, shape, a, b, c)


def _is_in_order(kernel: Microkernel, shape: UpdateShape) -> bool:
    return shape.in_order and shape.view == "panel" and _has_ordered_loop(kernel)


def _has_ordered_loop(kernel: Microkernel) -> bool:
    single = kernel.isa == "neon" and kernel.dtype == "float32"
    return single and neon_in_order.fits(kernel.mr, kernel.nr)


def _is_streamed(kernel: Microkernel, shape: UpdateShape) -> bool:
    most = _MOST_VECTORS_IN_ORDER if shape.in_order else kernel.vectors
    tight = kernel.registers > _MOST_OF_A_LOOP_BY_LLVM or kernel.vectors > most
    single = kernel.isa == "neon" and kernel.dtype == "float32"
    return shape.view == "panel" and single and tight


def _plain_k_loop(
    kernel: Microkernel, shape: UpdateShape, a: _Operand, b: _Operand, c: _Operand
) -> None:
    """A k loop of `unroll` steps, everything inside unrolled, then its tail."""
    unroll = _unroll(kernel, shape)
    steps, tail = divmod(shape.kr, unroll)
    if steps:
        with T.serial(0, steps, annotations={AXIS: "k"}) as ko:
            _k_steps(kernel, shape, a, b, c, ko * unroll, unroll)
    if tail:
        _k_steps(kernel, shape, a, b, c, steps * unroll, tail)


def _unroll(kernel: Microkernel, shape: UpdateShape) -> int:
    """Steps of k in one iteration: 1 where no register is left for operands of further ones."""
    by_element = kernel.a_by_lane and shape.view == "rows" and not kernel.loads_a_vectors
    return 1 if by_element else shape.unroll


def _rows(shape: UpdateShape) -> Iterator[tuple[Any, Any]]:
    with T.unroll(0, shape.mh, annotations={AXIS: "mh"}) as ih:
        with T.unroll(0, shape.mw, annotations={AXIS: "mw"}) as iw:
            yield ih, iw


def _k_steps(
    kernel: Microkernel,
    shape: UpdateShape,
    a: _Operand,
    b: _Operand,
    c: _Operand,
    k0: Any,
    count: int,
) -> None:
    if kernel.a_by_lane:
        _k_steps_by_lane(kernel, shape, a, b, c, k0, count)
        return
    with T.unroll(0, count, annotations={AXIS: "ki"}) as ki:
        for ih, iw in _rows(shape):
            value = a.buffer[a.at(*shape.a_index(ih, iw, k0 + ki))]
            _row_update(kernel, b, c, k0 + ki, ih, iw, value)


def _row_update(
    kernel: Microkernel, b: _Operand, c: _Operand, k: Any, ih: Any, iw: Any, value: Any
) -> None:
    lanes = kernel.lanes
    with T.unroll(0, kernel.vectors, annotations={AXIS: "nr"}) as jv:
        columns = T.ramp(jv * lanes, 1, lanes)
        at_c = c.at(ih, iw, columns)
        product = T.broadcast(value, lanes) * b.buffer[b.at(k, columns)]
        T.buffer_store(c.buffer, c.buffer[at_c] + product, at_c)


def _k_steps_by_lane(
    kernel: Microkernel,
    shape: UpdateShape,
    a: _Operand,
    b: _Operand,
    c: _Operand,
    k0: Any,
    count: int,
) -> None:
    """NEON: copy A into a register-sized buffer by vector loads, then multiply by element.

    Where there is no room for those vectors, an element is a load of its own.
    """
    if shape.view == "panel":
        _panel_by_lane(kernel, shape, a, b, c, k0, count)
    elif shape.view == "rows" and count > 1 and kernel.loads_a_vectors:
        _rows_by_lane(kernel, shape, a, b, c, k0, count)
    else:
        with T.unroll(0, count) as ki:
            for ih, iw in _rows(shape):
                value = a.buffer[a.at(*shape.a_index(ih, iw, k0 + ki))]
                _row_update(kernel, b, c, k0 + ki, ih, iw, value)


def _pieces(total: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Split `total` elements into vector loads: (start, width), widths powers of two."""
    start = 0
    while start < total:
        width = lanes
        while width > total - start:
            width //= 2
        yield start, width
        start += width


def _load(local: Any, row: int, start: int, width: int, value: Callable[[Any], Any]) -> None:
    span = T.ramp(start, 1, width) if width > 1 else start
    T.buffer_store(local, value(span), [row, span])


def _panel_by_lane(
    kernel: Microkernel,
    shape: UpdateShape,
    a: _Operand,
    b: _Operand,
    c: _Operand,
    k0: Any,
    count: int,
) -> None:
    column = T.alloc_buffer((count, kernel.mr), kernel.dtype)
    for ki in range(count):
        for start, width in _pieces(kernel.mr, kernel.lanes):
            _load(column, ki, start, width, lambda s, k=ki: a.buffer[a.at(k0 + k, s)])
        for ih, iw in _rows(shape):
            _row_update(kernel, b, c, k0 + ki, ih, iw, column[ki, ih * shape.mw + iw])


def _rows_by_lane(
    kernel: Microkernel,
    shape: UpdateShape,
    a: _Operand,
    b: _Operand,
    c: _Operand,
    k0: Any,
    count: int,
) -> None:
    """One vector of k steps per row of the block; unit stride in k makes it a plain load."""
    values = T.alloc_buffer((kernel.mr, count), kernel.dtype)
    for ih, iw in _rows(shape):
        row = ih * shape.mw + iw
        for start, width in _pieces(count, kernel.lanes):
            _load(
                values,
                row,
                start,
                width,
                lambda s, i=ih, j=iw: a.buffer[a.at(*shape.a_index(i, j, k0 + s))],
            )
    with T.unroll(0, count) as ki:
        for ih, iw in _rows(shape):
            _row_update(kernel, b, c, k0 + ki, ih, iw, values[ih * shape.mw + iw, ki])
