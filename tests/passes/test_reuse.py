"""What passes between two uses of a tensor, against lists of what each kernel touches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from relax_graphs import conv, graph, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.batches import KEPT, read_seconds
from tvm_blislike.hardware import Core
from tvm_blislike.passes.batches.cuts import Times, cuts_of
from tvm_blislike.passes.batches.depth_first import depth_first
from tvm_blislike.passes.batches.images import apart
from tvm_blislike.passes.batches.reuse import Read, reads_of

IMAGE = (4, 16, 8, 8)
X = 4 * 16 * 8 * 8 * 4
W = 16 * 16 * 9 * 4
FUSED = {"relax.add", "relax.nn.relu"}


def found(function: Callable[..., relax.Expr]) -> list[list[Read]]:
    """Return what each operator of a graph reads, in order."""
    (block,) = graph(function, IMAGE)["main"].body.blocks
    reads = reads_of(block.bindings, FUSED)
    return [reads[b.var] for b in block.bindings if b.var in reads]


def test_the_kernel_before_passes_with_its_operands() -> None:
    def chain(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return conv(b, b.emit(op.nn.relu(conv(b, x, 16))), 16)

    # The input was read by nobody; the result of relu is that of the first convolution.
    assert found(chain) == [[], [], [Read(X, 2 * X, W)]]


def test_a_shortcut_waits_for_all_kernels_between() -> None:
    def block(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        first = conv(b, x, 16)
        second = conv(b, first, 16)
        third = conv(b, second, 16)
        return op.add(b.emit(third), first)

    # Last read by the second convolution, it has that and its weights behind it.
    assert found(block)[-1] == [Read(X, 2 * X, W)]
    assert found(block)[:3] == [[], [Read(X, 2 * X, W)], [Read(X, 2 * X, W)]]


def test_views_are_the_tensor_itself_and_constants_no_images() -> None:
    def viewed(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        first = conv(b, x, 16)
        biased = b.emit(op.add(first, relax.const(random(1, 16, 1, 1))))
        rows = b.emit(op.reshape(biased, (4, 1024)))
        return op.matmul(rows, relax.const(random(1024, 10)))

    assert found(viewed) == [[], [], [Read(X, 2 * X, W + 64)]]


def test_what_a_kernel_reads_twice_comes_once() -> None:
    def square(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        first = conv(b, x, 16)
        return op.add(conv(b, first, 16), first)

    assert found(square)[-2:] == [[Read(X, 2 * X, W)], []]


@pytest.mark.parametrize("name", ["zen4", "cortex-a53"])
def test_reading_takes_longer_the_more_passes(name: str) -> None:
    described = Core.named(name)
    l2 = next(cache for cache in described.caches if cache.level == 2)
    sizes = [l2.bytes // 2 * 4**power for power in range(6)]
    seconds = [read_seconds(1e5, size * KEPT, described, 1) for size in sizes]
    assert seconds[0] == 0
    assert seconds == sorted(seconds)
    assert seconds[-1] == pytest.approx(1e5 / (described.memory_core_gb_per_s * 1e9), rel=1e-6)


def wide(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    for _ in range(4):
        x = conv(b, x, 64, 1)
    return op.mean(x, [2, 3])


def of_l3(megabytes: int) -> Core:
    """Return a core whose last cache has this size."""
    described = Core.named("zen4")
    *near, last = described.caches
    return replace(described, caches=(*near, replace(last, bytes=megabytes << 20)))


def test_a_batch_that_leaves_the_last_cache_is_slower_and_single_images_are_not() -> None:
    mod = graph(wide, (8, 64, 56, 56))  # 6.4 MB each, 0.8 MB an image
    batch = apart(mod["main"], 8, {mod["main"].params[0]: 0})
    (cut,) = [cut for cut in cuts_of(batch, 1) if cut.place == len(batch.bindings)]
    far, near = (Times(mod, batch, Strategy(of_l3(size), 1)) for size in (8, 512))
    assert far.of(cut) == pytest.approx(near.of(cut), rel=1e-3)
    # Each of three tensors of 6.4 MB comes from memory, and from L3.
    zen4 = Core.named("zen4")
    size = 8 * 64 * 56 * 56 * 4
    memory, l3 = (read_seconds(size, KEPT * mb * 2**20, zen4, 1) for mb in (64, 16))
    assert far.whole() - near.whole() >= 3 * (memory - l3)


def test_what_is_predicted_decides() -> None:
    mod = graph(wide, (8, 64, 56, 56))
    (note,) = depth_first(mod, Strategy(of_l3(8), 1))[1].notes
    assert "1 at a time through the whole model" in note
