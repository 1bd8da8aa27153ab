"""What the schedule templates share: stages of a TE definition, epilogues, blocks of C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import s_tir, te, tirx

from tvm_blislike.hardware import dtype_bits
from tvm_blislike.microkernels import Microkernel, UpdateShape, update_intrin
from tvm_blislike.model.directives import Vector
from tvm_blislike.model.loop_names import Named
from tvm_blislike.model.marks import LEFT, RIGHT, STAGE


def stage(name: str) -> dict[str, str]:
    """Return the `te.compute` attributes that mark a stage ("pad", "pack", "acc", "unpack")."""
    return {STAGE: name}


def root_block(sch: s_tir.Schedule) -> Any:
    """Return the outermost block, "root" but in functions of one opaque block (scans, sorts)."""
    return sch.get_sblock(sch.mod["main"].body.block.name_hint)


def stages(sch: s_tir.Schedule) -> dict[str, Any]:
    """Return the marked blocks of a schedule, by stage."""
    found = {}
    for block in sch.get_child_blocks(root_block(sch)):
        annotations = sch.get(block).annotations
        if STAGE in annotations:
            found[str(annotations[STAGE])] = block
    return found


def fuse_epilogue(sch: s_tir.Schedule) -> Any:
    """Inline everything fused behind the "unpack" stage into one block that stores the result.

    Bias, activation and residual add then run on the block of C while it is in registers,
    before its only store.

    Returns
    -------
    SBlockRV
        The block to tile: the fused epilogue, or "unpack" itself when what follows has another
        shape (a broadcast of the result), which then keeps its own loops.
    """
    marked = stages(sch)
    unpack = marked["unpack"]
    ours = [sch.get(block).name_hint for block in marked.values()]
    (output,) = sch.get_output_blocks(sch.get_sblock("root"))
    last = sch.get(output)
    if last.name_hint == sch.get(unpack).name_hint:
        return unpack
    same_shape = _written_shape(last) == _written_shape(sch.get(unpack))
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        name = sch.get(block).name_hint
        if name != last.name_hint and (name not in ours):
            sch.compute_inline(block)
    if not same_shape:
        _vectorize_plain(sch, output)
        return unpack
    sch.compute_inline(unpack)
    return output


def _written_shape(block: Any) -> list[int]:
    return [int(extent) for extent in block.writes[0].source.shape]


def _vectorize_plain(sch: s_tir.Schedule, block: Any) -> None:
    loops = sch.get_loops(block)
    Vector(16).on(sch, loops[-1])
    if len(loops) > 1:
        sch.parallel(loops[0])


def align_rows(sch: s_tir.Schedule, block: Any, axis: int, lanes: int) -> None:
    """Give the rows of a buffer, along an axis, an odd number of vectors.

    Rows, or matrices, a multiple of a page apart would share one cache set.
    """
    sch.storage_align(block, 0, axis, 2 * lanes, lanes)


def pad_columns(sch: s_tir.Schedule, pad: Any) -> list[int]:
    """Return the columns of zeros at the left and right of a "pad" stage."""
    annotations = sch.get(pad).annotations
    return [int(annotations[LEFT]), int(annotations[RIGHT])]


def padded(
    data: te.Tensor, spatial: int, padding: tuple[int, int, int, int], shape: tuple[int, ...]
) -> te.Tensor:
    """Return the zero-padded TE view of an image batch, or `data` when there is no padding.

    Parameters
    ----------
    data : te.Tensor
        NCHW or NCHWc.
    spatial : int
        Position of the height axis; the width follows it.
    padding : tuple of int
        (top, left, bottom, right).
    shape : tuple of int
        Shape of the result.
    """
    if not any(padding):
        return data
    top, left = padding[:2]
    h, w = (int(data.shape[spatial + i]) for i in range(2))
    attrs = {**stage("pad"), LEFT: left, RIGHT: max(0, shape[spatial + 1] - w - left)}

    def value(*index: Any) -> Any:
        y, x = index[spatial] - top, index[spatial + 1] - left
        inside = tirx.all(y >= 0, y < h, x >= 0, x < w)
        pixel = data[(*index[:spatial], y, x, *index[spatial + 2 :])]
        return tirx.if_then_else(inside, pixel, tirx.const(0, str(data.dtype)))

    return te.compute(shape, value, name="pad", attrs=attrs)


def rows_padded(
    data: te.Tensor, padding: tuple[int, int, int, int], shape: tuple[int, int, int]
) -> te.Tensor:
    """Return a zero-padded copy of an image batch whose rows have one axis for pixels and channels.

    Parameters
    ----------
    data : te.Tensor
        NHWC.
    padding : tuple of int
        (top, left, bottom, right).
    shape : tuple of int
        (n, rows, elements of a row) of the result.
    """
    h, w, c = (int(extent) for extent in data.shape[1:])
    top, first = padding[0], padding[1] * c
    attrs = {**stage("pad"), LEFT: first, RIGHT: max(0, shape[2] - first - w * c)}

    def value(n: Any, y: Any, e: Any) -> Any:
        inside = tirx.all(y >= top, y < top + h, e >= first, e < first + w * c)
        pixel = data[n, y - top, (e - first) // c, (e - first) % c]
        return tirx.if_then_else(inside, pixel, tirx.const(0, str(data.dtype)))

    return te.compute(shape, value, name="pad", attrs=attrs)


def result_lanes(sch: s_tir.Schedule, block: Any, kernel: Microkernel) -> int:
    """Return the elements of a vector of results that a block stores.

    As many as a register of C has; of fewer bits, where narrowing joins vectors, a whole register.
    """
    if not kernel.isa.narrows_pairs:
        return kernel.lanes
    (written,) = sch.get(block).writes
    return max(kernel.lanes, 8 * kernel.isa.vector_bytes // dtype_bits(written.source.dtype))


# --- blocks of C ------------------------------------------------------------------------------


def unroll_block(
    sch: s_tir.Schedule, stage: Any, kernel: Microkernel, rows: Sequence[str] = ("mw",)
) -> Any:
    """Unroll the loops over a block of C, such as its stores of zero; return that over lanes.

    Parameters
    ----------
    stage : SBlockRV
        Its innermost loops run over rows and columns of the block.
    rows : sequence of str
        The axes of the rows.
    """
    *over_rows, j = sch.get_loops(stage)[-1 - len(rows) :]
    columns, lane = sch.split(j, [None, kernel.lanes])
    for loop, axis in zip((*over_rows, columns), (*rows, "nr"), strict=True):
        sch.unroll(loop)
        Named(axis).on(sch, loop)
    return lane


def call_kernel(
    sch: s_tir.Schedule, acc: Any, nest: Sequence[Any], kernel: Microkernel, shape: UpdateShape
) -> None:
    """Put a micro-kernel call in the place of the loops over k and a block of C of a stage."""
    inner = _without_units(sch, nest)
    if shape.in_memory:
        # Blockized before tensorizing, zeroing stays with the first steps of k.
        sch.blockize(inner[0])
        inner = sch.get_loops(acc)[-len(inner) :]
    sch.tensorize(inner[0], update_intrin(kernel, shape))


def _without_units(sch: s_tir.Schedule, nest: Sequence[Any]) -> list[Any]:
    """Move unit loops outside, the intrinsic has no such axes; return the others."""
    units = [loop for loop in nest if int(sch.get(loop).extent) == 1]
    inner = [loop for loop in nest if loop not in units]
    sch.reorder(*units, *inner)
    return inner
