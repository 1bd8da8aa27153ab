"""A small matrix product around one micro-kernel: tiles, exact edges, nothing else.

    C[y, x, j] = sum_{kb, k} A(kb, y, x, k) * B[kb, k, j]

The rows of C are the pixels (y, x); `kb` counts calls of the micro-kernel into the same block.
A lies in memory as the view of the micro-kernel wants it: (kb, y, x, k) with strides for "rows",
(kb, y, x) for "window", packed (kb, tile, tile, k, mr) for "panel".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  names bfloat16 for NumPy
import numpy as np
import tvm
from tvm import s_tir, te, tirx

from tvm_blislike.microkernels import Microkernel, UpdateShape, update_intrin
from tvm_blislike.microkernels.panels import as_read
from tvm_blislike.microkernels.products import multiplied
from tvm_blislike.model.directives import Edge, Vector
from tvm_blislike.model.loop_names import Named
from tvm_blislike.model.marks import REGISTER_BYTES
from tvm_blislike.model.types import value_range, weights_range
from tvm_blislike.schedules.lowering import lower as lowering


@dataclass(frozen=True)
class Product:
    """One product: the micro-kernel, how it walks through A, and the size of C."""

    kernel: Microkernel
    shape: UpdateShape
    h: int
    w: int
    n: int
    calls: int = 2

    @property
    def tiles(self) -> tuple[int, int, int]:
        """Tiles of C along y, x and j."""
        sizes = zip((self.h, self.w, self.n), self.block, strict=True)
        return tuple(math.ceil(size / block) for size, block in sizes)

    @property
    def block(self) -> tuple[int, int, int]:
        """Rows, columns and channels of a block of C."""
        return self.shape.mh, self.shape.mw, self.kernel.nr

    @property
    def a_shape(self) -> tuple[int, ...]:
        """Shape of A."""
        shape, calls = self.shape, self.calls
        if shape.view == "panel":
            return (calls, *self.tiles[:2], shape.steps, self.kernel.mr * shape.ks)
        rows, columns = (self.h - 1) * shape.sh + 1, (self.w - 1) * shape.sw + 1
        if shape.view == "window":
            return (calls, rows, columns + (shape.steps - 1) * shape.dw)
        depth = shape.steps * shape.ks
        return (calls, rows, columns) if depth == 1 else (calls, rows, columns, depth)

    @property
    def b_shape(self) -> tuple[int, ...]:
        """Shape of B: packed panels, with what a kernel expects behind them."""
        rows = self.shape.steps + self.kernel.closing_rows
        return (self.calls, self.tiles[2], rows, self.kernel.nr * self.shape.ks)

    @property
    def plain_b_shape(self) -> tuple[int, ...]:
        """Shape of the elements of B, in panels."""
        return (self.calls, self.tiles[2], self.shape.steps, self.kernel.nr * self.shape.ks)

    def a_at(
        self, kb: Any, yt: Any, xt: Any, ih: Any, iw: Any, k: Any, s: Any = 0
    ) -> tuple[Any, ...]:
        """Index of A(kb, y, x, k * ks + s) in memory."""
        shape = self.shape
        if shape.view == "panel":
            return (kb, yt, xt, k, (ih * shape.mw + iw) * shape.ks + s)
        y, x = (yt * shape.mh + ih) * shape.sh, (xt * shape.mw + iw) * shape.sw
        if shape.view == "window":
            return (kb, y, x + k * shape.dw)
        return (kb, y, x, k * shape.ks + s) if shape.steps * shape.ks > 1 else (kb, y, x)


def primfunc(product: Product) -> tirx.PrimFunc:
    """Return the scheduled, tensorized PrimFunc (A, B, C)."""
    sch = s_tir.Schedule(te.create_prim_func(_define(product)).with_attr("tirx.noalias", True))
    (_schedule_in_memory if product.shape.in_memory else _schedule)(sch, product)
    return sch.mod["main"].with_attr(REGISTER_BYTES, 2048)


def compile_all(
    functions: dict[str, tirx.PrimFunc], target: dict[str, Any]
) -> tvm.runtime.Executable:
    """Compile PrimFuncs into one library, each under its name."""
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    return tvm.compile(lowering.lower(tvm.IRModule(named)), tvm.target.Target(target))


def run(function: Any, product: Product) -> float:
    """Run on random data; return the error over what rounding may cause (1 is the limit)."""
    a, b, out = arrays(product)
    panels = as_read(b, product.shape.steps, product.kernel.types)
    a, b, out = map(tvm.runtime.tensor, (a, panels, out))
    function(a, b, out)
    return error(product, out.numpy())


def arrays(product: Product) -> list[np.ndarray]:
    """Return random A and B, integers of the whole range, and C full of what is no result.

    B is in panels of the elements themselves.
    """
    rng = np.random.default_rng(3)
    types = product.kernel.types
    a = _random(rng, product.a_shape, types.a, value_range)
    # Where magnitudes and masks are made of them they have 8 bits.
    of_b = (lambda _: weights_range(types)) if types.is_masked else value_range
    b = _random(rng, product.plain_b_shape, types.b, of_b)
    c_shape, c_dtype = (product.h, product.w, product.n), np.dtype(types.acc)
    nothing = np.iinfo(c_dtype).min if c_dtype.kind == "i" else np.nan
    return [a, b, np.full(c_shape, nothing, c_dtype)]


def _random(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: str,
    range_of: Callable[[str], tuple[int, int]],
) -> np.ndarray:
    if np.dtype(dtype).kind in "iu":
        return rng.integers(*range_of(dtype), shape, np.dtype(dtype), endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def error(product: Product, c: np.ndarray) -> float:
    """Return the error of a result over what rounding may cause (1 is the limit).

    Integers are not rounded: any error is more.
    """
    a, b, _ = arrays(product)
    shape = product.shape
    depth = product.calls * shape.steps * shape.ks
    groups = b.reshape(*b.shape[:-1], product.kernel.nr, shape.ks).astype(np.float64)
    columns = groups.transpose(0, 2, 4, 1, 3).reshape(depth, -1)[:, : product.n]
    rows = _plain_a(product, a)
    expected = differing(rows, columns) if product.kernel.types.is_bits else rows @ columns
    errors = np.abs(c - expected)
    if np.dtype(product.kernel.types.acc).kind == "i":
        return float("inf") if errors.any() else 0.0
    # After YNNPACK: the sum of k products of magnitude below max |a| max |b|.
    largest = np.abs(a).max().astype(np.float64) * np.abs(b).max()
    bound = np.finfo(product.kernel.types.acc).eps * (depth + 1) * largest
    return float(errors.max() / bound)


def differing(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Bits that differ between the words of each row (.., k) and each column (k, n)."""
    words = rows.astype(np.uint32)[..., None] ^ columns.astype(np.uint32)
    bits = np.unpackbits(np.ascontiguousarray(words)[..., None].view(np.uint8), axis=-1)
    return bits.sum(axis=(-3, -1), dtype=np.int64)


def _plain_a(product: Product, a: np.ndarray) -> np.ndarray:
    """A as (y, x, kb * k), one element after the other."""
    mh, mw = product.block[:2]
    shape = product.shape
    plain = np.empty((product.h, product.w, product.calls, shape.steps, shape.ks))
    for y, x, kb, k, s in np.ndindex(plain.shape):
        plain[y, x, kb, k, s] = a[product.a_at(kb, y // mh, x // mw, y % mh, x % mw, k, s)]
    return plain.reshape(product.h, product.w, -1)


def _define(product: Product) -> list[te.Tensor]:
    mh, mw, nr = product.block
    types = product.kernel.types
    a = te.placeholder(product.a_shape, types.a, name="A")
    b = te.placeholder(product.b_shape, types.b, name="B")
    kb = te.reduce_axis((0, product.calls), "kb")
    k = te.reduce_axis((0, product.shape.steps), "k")
    ks = product.shape.ks
    s = [te.reduce_axis((0, ks), "s")] if ks > 1 else []

    def block(yt: Any, xt: Any, jt: Any, ih: Any, iw: Any, j: Any) -> Any:
        factors = a[product.a_at(kb, yt, xt, ih, iw, k, *s)], b[(kb, jt, k, sum(s, j * ks))]
        return te.sum(multiplied(types, *factors), axis=[kb, k, *s])

    acc = te.compute((*product.tiles, mh, mw, nr), block, name="acc")

    def element(y: Any, x: Any, j: Any) -> Any:
        at = (y // mh, x // mw, j // nr, y % mh, x % mw)
        value = acc[(*at, j % nr)]
        if product.tiles[2] > 1 or product.n == nr:
            return value
        # As in the schedules: keeps `compute_at` from cutting the block of C.
        return tirx.if_then_else(j < product.n, value, acc[(*at, nr - 1)])

    return [a, b, te.compute((product.h, product.w, product.n), element, name="C")]


def _edges(product: Product) -> list[dict[str, int]]:
    """Extents of the last tile along y, x and j, empty where it is whole."""
    mh, mw, nr = product.block
    cut = product.n % nr
    return [
        {"mh": product.h % mh} if product.h % mh else {},
        {"mw": product.w % mw} if product.w % mw else {},
        {"nr": math.ceil(cut / product.kernel.lanes), "lanes": cut} if cut else {},
    ]


def _annotate_edges(sch: s_tir.Schedule, product: Product, loops: list[Any]) -> None:
    for loop, edge in zip(loops, _edges(product), strict=True):
        if edge:
            Edge(edge).on(sch, loop)


def _tile_output(sch: s_tir.Schedule, product: Product) -> list[Any]:
    loops = sch.get_loops(sch.get_sblock("C"))
    outer, inner = [], []
    for loop, size in zip(loops, product.block, strict=True):
        tile, rest = sch.split(loop, [None, size])
        outer.append(tile)
        inner.append(rest)
    sch.reorder(outer[2], *outer[:2], *inner)
    for loop, axis in zip(inner, ("mh", "mw", "lanes"), strict=True):
        Named(axis).on(sch, loop)
    for loop in inner[:2]:
        sch.unroll(loop)
    Vector(product.kernel.lanes).on(sch, inner[2])
    _annotate_edges(sch, product, outer)
    return outer


def _schedule(sch: s_tir.Schedule, product: Product) -> None:
    """C in registers until its only store."""
    outer = _tile_output(sch, product)
    acc = sch.get_sblock("acc")
    sch.compute_at(acc, outer[1], preserve_unit_loops=True)
    ih, iw, j, kb, k, *s = sch.get_loops(acc)[-5 - (product.shape.ks > 1) :]
    sch.reorder(kb, k, ih, iw, j, *s)
    _zero(sch, sch.decompose_reduction(acc, kb), product)
    sch.tensorize(
        _kernel_loops(sch, k, ih, iw, j, *s)[0], update_intrin(product.kernel, product.shape)
    )


def _schedule_in_memory(sch: s_tir.Schedule, product: Product) -> None:
    """Every call adds to blocks of C in memory."""
    _tile_output(sch, product)
    acc = sch.get_sblock("acc")
    yt, xt, jt, ih, iw, j, kb, k, *s = sch.get_loops(acc)
    sch.reorder(jt, yt, xt, kb, k, ih, iw, j, *s)
    _annotate_edges(sch, product, [yt, xt, jt])
    inner = _kernel_loops(sch, k, ih, iw, j, *s)
    sch.blockize(inner[0])
    inner = sch.get_loops(acc)[-len(inner) :]
    sch.tensorize(inner[0], update_intrin(product.kernel, product.shape))


def _kernel_loops(sch: s_tir.Schedule, *nest: Any) -> list[Any]:
    """Move unit loops outside: the intrinsic has no such axes."""
    units = [loop for loop in nest if int(sch.get(loop).extent) == 1]
    kept = [loop for loop in nest if loop not in units]
    sch.reorder(*units, *kept)
    return kept


def _zero(sch: s_tir.Schedule, init: Any, product: Product) -> None:
    ih, iw, j = sch.get_loops(init)[-3:]
    columns, lane = sch.split(j, [None, product.kernel.lanes])
    for loop, axis in ((ih, "mh"), (iw, "mw"), (columns, "nr")):
        sch.unroll(loop)
        Named(axis).on(sch, loop)
    sch.vectorize(lane)
