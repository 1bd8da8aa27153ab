"""Attention by NumPy, and kernels that are built and run by themselves."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import ml_dtypes  # noqa: F401  names bfloat16 for NumPy
import numpy as np
import tvm

from tvm_blislike.cost_models.attention.blocks import Blocks, blocks_of
from tvm_blislike.hardware import Core
from tvm_blislike.model.attention import Attention
from tvm_blislike.model.marks import REGISTER_BYTES, marked
from tvm_blislike.model.views import View
from tvm_blislike.passes import tir_pipeline
from tvm_blislike.schedules.attention.kernel import kernel
from tvm_blislike.schedules.lowering import lower as lowering
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED

Shape = tuple[int, ...]


def by_heads(batch: int, rows: int, heads: int, size: int) -> View:
    """Return (batch * heads, rows, size) of a tensor (batch, rows, heads * size)."""
    split = View.of((batch, rows, heads, size)).permuted((0, 2, 1, 3))
    return split.reshaped((batch * heads, rows, size))


def built(
    attention: Attention,
    operands: Sequence[Shape],
    result: Shape,
    core: Core,
    threads: int = 1,
    blocks: Blocks | None = None,
) -> tvm.runtime.Executable:
    """Return the compiled kernel, "main"."""
    blocks = blocks or blocks_of(attention, core, threads)
    return compiled_kernel(attention, operands, result, core, blocks, threads)


def compiled_kernel(
    attention: Attention,
    operands: Sequence[Shape],
    result: Shape,
    core: Core,
    blocks: Blocks,
    threads: int = 1,
) -> tvm.runtime.Executable:
    """Return the compiled kernel of some blocks; sizes may be expressions."""
    registers = core.vector_registers * core.vector_bits // 8
    func = kernel(attention, operands, result, blocks, threads)
    func = func.with_attr({REGISTER_BYTES: registers, **IS_SCHEDULED})
    target = tvm.target.Target(core.target_config(threads))
    with target:
        mod = marked(lowering.lower(tvm.IRModule({"main": func})))
        return tir_pipeline.build(mod, target, None)


def computed(
    attention: Attention, arrays: Sequence[np.ndarray], result: Shape, core: Core, **options: object
) -> np.ndarray:
    """Return what the kernel makes of operands."""
    library = built(attention, [a.shape for a in arrays], result, core, **options)
    out = tvm.runtime.tensor(np.full(result, np.nan, "float32"))
    library["main"](*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()


def seen(view: View, array: np.ndarray) -> np.ndarray:
    """Return the elements of a view, one by one."""
    return array.reshape(-1)[_places(view)].reshape(view.shape)


@functools.lru_cache(maxsize=32)
def _places(view: View) -> np.ndarray:
    return np.array([view.at(*map(int, at)) for at in np.ndindex(view.shape)])


def expected(attention: Attention, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return (batch, rows, width) in float64, the whole matrix of scores in memory."""
    weights, v = weights_and_values(attention, arrays)
    return weights @ v


def weights_and_values(
    attention: Attention, arrays: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `expected` multiplies; operands of products, but no weights, are rounded."""
    q, k, v = (
        seen(getattr(attention, name), array) for name, array in zip("qkv", arrays[:3], strict=True)
    )
    q = np.float32(attention.scale) * q
    q, k, v = (array.astype(attention.factors).astype("float64") for array in (q, k, v))
    masks = [array.astype("float64") for array in arrays[3:]]
    scores = q @ k.swapaxes(1, 2)
    given = iter(masks)
    for mask in attention.masks:
        if mask.view is None:
            kept = np.tri(*scores.shape[1:], mask.diagonal, dtype=bool)
            scores = np.where(kept, scores, mask.fill)
            continue
        values = seen(mask.view, next(given))
        scores = np.where(values == 0, scores, values) if mask.replaces else scores + values
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(2, keepdims=True))
        weights /= weights.sum(2, keepdims=True)
    if attention.guarded:
        weights = np.where(np.isnan(weights), 0, weights)
    return weights, v


def rounded(
    attention: Attention, arrays: Sequence[np.ndarray], result: tuple[int, ...]
) -> np.ndarray:
    """Return the result as kernels round it: without masks, all keys in one block."""
    q, k, v = (
        seen(getattr(attention, name), array) for name, array in zip("qkv", arrays, strict=True)
    )
    q = np.float32(attention.scale) * q
    q, k, v = (array.astype(attention.factors).astype("float32") for array in (q, k, v))
    scores = q @ k.swapaxes(1, 2)
    weights = np.exp(scores - scores.max(2, keepdims=True))
    weights = weights.astype(attention.factors).astype("float32")
    out = np.full(math.prod(result), np.nan, "float32")
    out[_places(attention.out)] = (weights @ v / weights.sum(2, keepdims=True)).reshape(-1)
    return out.reshape(result)


def assert_right(
    attention: Attention, arrays: Sequence[np.ndarray], result: Shape, core: Core, **options: object
) -> None:
    """Compare a kernel with the definition.

    Weights may be rounded, too, in products and in what they are divided by.
    """
    found = seen(attention.out, computed(attention, arrays, result, core, **options))
    weights, values = weights_and_values(attention, arrays)
    wanted = weights @ values
    unit = {"float32": 0.0, "bfloat16": 2.0**-8}[attention.factors]
    bound = 2e-5 + 2e-5 * np.abs(wanted) + unit * (weights @ np.abs(values))
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    assert (same | (np.abs(found - wanted) <= bound)).all()
