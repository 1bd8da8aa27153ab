"""What passes between two uses of a tensor, against lists of what each kernel touches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from relax_graphs import conv, graph, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.batches import KEPT, VIEW_SECONDS, read_seconds, write_seconds
from tvm_blislike.hardware import Core
from tvm_blislike.passes.batches.cuts import Times, cuts_of
from tvm_blislike.passes.batches.depth_first import depth_first
from tvm_blislike.passes.batches.functions import Cut
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


def test_what_other_guests_use_of_a_cache_is_not_had() -> None:
    near, far = of_l3(32), of_l3(32)
    *own, last = far.caches
    far = replace(far, caches=(*own, replace(last, kept_of_half=0.25)))
    size = KEPT * 2**20
    assert read_seconds(1e6, 3 * size, far, 1) == read_seconds(1e6, 3 * size, near, 1)
    assert read_seconds(1e6, 5 * size, far, 1) > read_seconds(1e6, 5 * size, near, 1)
    almost = replace(far, caches=(*own, replace(last, kept_of_half=0.75)))
    assert read_seconds(1e6, 20 * size, almost, 1) == read_seconds(1e6, 20 * size, near, 1)


def test_lines_that_are_written_come_from_memory_first() -> None:
    core = of_l3(8)
    size = 64 << 20
    read = read_seconds(size, size, core, 1)
    assert write_seconds(size, core, 1) == pytest.approx(2 * read)
    near = 4 << 20
    assert write_seconds(near, core, 1) == pytest.approx(read_seconds(near, KEPT * near, core, 1))


def test_what_a_chain_holds_is_neither_written_nor_read() -> None:
    def chain(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        wide = b.emit(op.nn.relu(conv(b, x, 192, 1)))
        return conv(b, b.emit(op.nn.relu(conv(b, wide, 192, groups=192))), 32, 1)

    mod = graph(chain, (8, 32, 56, 56))
    batch = apart(mod["main"], 8, {mod["main"].params[0]: 0})
    joined, alone = (
        Times(mod, batch, Strategy(of_l3(8), 1, constraints=limits)).whole()
        for limits in (Constraints(), Constraints(without=("conv2d_slabs",)))
    )
    wide = 8 * 192 * 56 * 56 * 4
    assert alone - joined == pytest.approx(
        2 * (write_seconds(wide, of_l3(8), 1) + read_seconds(wide, wide, of_l3(8), 1)), rel=0.01
    )


def test_joining_channels_costs_views_of_one_image_and_copies_of_several() -> None:
    def parts(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        both = b.emit(op.concat([conv(b, x, 64, 1), conv(b, x, 64, 1)], 1))
        return conv(b, both, 16, 1)

    mod = graph(parts, (8, 64, 56, 56))
    batch = apart(mod["main"], 8, {mod["main"].params[0]: 0})
    times = Times(mod, batch, Strategy(of_l3(8), 1))
    place = next(i for i, b in enumerate(batch.bindings) if "concat" in str(b.value))
    cuts = {cut.place: cut for cut in cuts_of(batch, 1)}
    one = times.within(cuts[place + 1]) - times.within(replace(cuts[place + 1], place=place))
    assert one == pytest.approx(2 * VIEW_SECONDS)
    every = Cut(place + 1, (), 8)
    copied = times.within(every) - times.within(replace(every, place=place))
    size = 8 * 128 * 56 * 56 * 4
    assert copied >= write_seconds(size, of_l3(8), 1) > 100 * one


def test_what_is_predicted_decides() -> None:
    mod = graph(wide, (8, 64, 56, 56))
    (note,) = depth_first(mod, Strategy(of_l3(8), 1))[1].notes
    assert "1 at a time through the whole model" in note
