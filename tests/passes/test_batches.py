"""Depth first over images: the same numbers as all at once, and images that meet are kept whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tvm
from relax_graphs import conv, graph, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.errors import ChoiceError
from tvm_blislike.hardware import native_core
from tvm_blislike.inspect.overview import shares
from tvm_blislike.model.report import Report
from tvm_blislike.passes.batches import depth_first as depth_first_module
from tvm_blislike.passes.batches.cuts import Times, cuts_of
from tvm_blislike.passes.batches.functions import Cut, divided
from tvm_blislike.passes.batches.images import Apart, apart
from tvm_blislike.pipeline import compile_module

Builder = relax.BlockBuilder
IMAGE = (4, 16, 6, 6)


def residual(b: Builder, x: relax.Var) -> relax.Expr:
    first = b.emit(op.nn.relu(conv(b, x, 16)))
    return op.add(conv(b, first, 16), x)


def joined(b: Builder, x: relax.Var) -> relax.Expr:
    parts = [conv(b, x, 16), conv(b, x, 24, 1)]
    return conv(b, op.concat(parts, 1), 8)


def classifier(b: Builder, x: relax.Var) -> relax.Expr:
    pooled = b.emit(op.mean(conv(b, x, 32), [2, 3], keepdims=True))
    flat = b.emit(op.squeeze(pooled))
    product = b.emit(op.matmul(flat, relax.const(random(32, 10))))
    return op.nn.softmax(product, -1)


def reshaped(b: Builder, x: relax.Var) -> relax.Expr:
    rows = b.emit(op.reshape(conv(b, x, 8), (4, 8, 36)))
    return op.permute_dims(rows, [0, 2, 1])


def several_results(b: Builder, x: relax.Var) -> tuple[relax.Expr, ...]:
    first = conv(b, x, 16)
    return op.nn.relu(first), op.nn.max_pool2d(conv(b, first, 8), [2, 2], [2, 2])


def with_a_scalar(b: Builder, x: relax.Var) -> tuple[relax.Expr, ...]:
    number = b.emit(op.broadcast_to(relax.const(np.float32(2)), []))
    return op.multiply(conv(b, x, 8), number), number


def same_constant(b: Builder, x: relax.Var) -> relax.Expr:
    bias = np.repeat(random(1, 8, 1, 1), 4, axis=0)
    return op.add(conv(b, x, 8), relax.const(bias))


def meeting_late(b: Builder, x: relax.Var) -> relax.Expr:
    pooled = b.emit(op.mean(conv(b, x, 16), [2, 3]))
    return op.subtract(pooled, b.emit(op.mean(pooled, [0], keepdims=True)))


def run(mod: tvm.IRModule, images: int | None, *arrays: np.ndarray) -> list[np.ndarray]:
    strategy = Strategy(native_core(), 1, constraints=Constraints(images=images))
    machine = relax.VirtualMachine(compile_module(mod, strategy)[0], tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, arrays))
    return [r.numpy() for r in ([result] if hasattr(result, "numpy") else result)]


@pytest.mark.parametrize(
    "function",
    [
        residual,
        joined,
        classifier,
        reshaped,
        several_results,
        same_constant,
        meeting_late,
        with_a_scalar,
    ],
)
@pytest.mark.parametrize("images", [1, 2])
def test_numbers_are_those_of_all_at_once(function: Callable, images: int) -> None:
    mod, x = graph(function, IMAGE), random(*IMAGE)
    for found, wanted in zip(run(mod, images, x), run(mod, 0, x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


MEETING: dict[str, Callable] = {
    "softmax goes along": lambda _b, x: op.nn.softmax(x, 0),
    "goes over all": lambda _b, x: op.sum(x, [0]),
    "joins them along": lambda _b, x: op.concat([x, x], 0),
    "takes some": lambda _b, x: op.strided_slice(x, [0], [0], [2]),
    "adds others": lambda _b, x: op.nn.pad(x, [1, 1, 0, 0, 0, 0, 0, 0]),
    "makes 3x": lambda _b, x: op.reshape(x, (3, 4, 16, 12)),
    "other numbers": lambda _b, x: op.add(x, relax.const(random(4, 1, 1, 1))),
}


@pytest.mark.parametrize("reason", MEETING)
def test_images_that_meet_are_refused_with_the_reason(reason: str) -> None:
    mod = graph(MEETING[reason], IMAGE)
    func = mod["main"]
    found = apart(func, 4, {func.params[0]: 0})
    assert found.reach == 0
    assert reason in found.why_not
    with pytest.raises(ChoiceError, match=reason):
        run(mod, 1, random(*IMAGE))


def test_a_number_that_does_not_divide_the_batch_is_refused() -> None:
    with pytest.raises(ChoiceError, match="do not divide a batch of 4"):
        run(graph(residual, IMAGE), 3, random(*IMAGE))


def test_a_layer_of_a_group_is_counted_for_each_group() -> None:
    def explained(images: int) -> Report:
        strategy = Strategy(native_core(), 1, constraints=Constraints(images=images))
        return compile_module(graph(residual, IMAGE), strategy)[1]

    by_one, by_two, whole = (explained(images) for images in (1, 2, 0))
    runs = [[la.runs for la in report.layers if la.macs] for report in (by_one, by_two, whole)]
    assert [runs[0][0], runs[1][0], runs[2]] == [4, 2, [1, 1]]
    for report in (by_one, by_two, whole):
        assert sum(la.runs * la.macs for la in report.layers) == 2 * 4 * 16 * 16 * 9 * 36
        times = [la.runs * (la.predicted_ms or 0) for la in report.layers]
        assert report.predicted_ms == pytest.approx(sum(times))
        assert sum(share.kernels for share in shares(report)) == sum(r.runs for r in report.layers)
    assert Report.from_json(by_one.to_json()) == by_one


def at_end(mod: tvm.IRModule, images: int) -> tuple[Apart, Cut]:
    """Return the images of a module, and the last place where the function of one may end."""
    batch = apart(mod["main"], images, {mod["main"].params[0]: 0})
    return batch, cuts_of(batch, 1)[-1]


@pytest.mark.parametrize("function", [residual, joined, several_results])
def test_images_go_two_at_a_time_and_the_last_by_itself(function: Callable) -> None:
    mod = graph(function, (5, *IMAGE[1:]))
    batch, cut = at_end(mod, 5)
    by_parts = divided(mod, batch, [replace(cut, some=2), cut], smaller=(1, 2, 3))
    strategy = Strategy(native_core(), 1, constraints=Constraints(images=0))
    machine = relax.VirtualMachine(compile_module(by_parts, strategy)[0], tvm.cpu())
    x = random(5, *IMAGE[1:])
    wanted = run(mod, 0, x)
    for name, count in (("main_0", 1), ("main_1", 2), ("main_2", 3), ("main", 5)):
        result = machine[name](tvm.runtime.tensor(x[:count]))
        results = [result] if hasattr(result, "numpy") else result
        for found, whole in zip(results, wanted, strict=True):
            np.testing.assert_allclose(found.numpy(), whole[:count], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [residual, joined, several_results])
def test_the_first_layers_of_several_images_go_one_by_one(function: Callable) -> None:
    mod = graph(function, (5, *IMAGE[1:]))
    batch = apart(mod["main"], 5, {mod["main"].params[0]: 0})
    early, *_, late = cuts_of(batch, 1)
    assert early.place < late.place
    by_parts = divided(mod, batch, [replace(late, some=2, inner=early), late], smaller=(3,))
    strategy = Strategy(native_core(), 1, constraints=Constraints(images=0))
    compiled, report, *_ = compile_module(by_parts, strategy)
    assert {layer.runs for layer in report.layers if layer.macs} >= {1, 2, 4}
    machine, x = relax.VirtualMachine(compiled, tvm.cpu()), random(5, *IMAGE[1:])
    wanted = run(mod, 0, x)
    for name, count in (("main_0", 3), ("main", 5)):
        result = machine[name](tvm.runtime.tensor(x[:count]))
        results = [result] if hasattr(result, "numpy") else result
        for found, whole in zip(results, wanted, strict=True):
            np.testing.assert_allclose(found.numpy(), whole[:count], rtol=1e-4, atol=1e-5)


def times_of(seconds: dict[tuple[int, int], float]) -> Callable[[Times, int], list[float]]:
    """Return a stand-in for predicted times, by images and binding; those absent: 1 an image."""

    def of_bindings(times: Times, some: int) -> list[float]:
        count = len(times.batch.bindings)
        return [seconds.get((some, place), float(some)) for place in range(count)]

    return of_bindings


@pytest.mark.parametrize(
    ("threads", "images", "seconds", "found"),
    [
        # Two images take less than one after the other: all the way.
        (2, 8, {(2, 0): 1.9}, [(2, None), (1, None)]),
        (2, 5, {(2, 0): 1.9}, [(2, None), (1, None)]),
        # The first layer takes more, the second one less: that one alone.
        (2, 8, {(2, 0): 9.0, (2, 2): 1.5}, [(2, 2), (1, None)]),
        # Both take more.
        (2, 8, {(2, 0): 9.0, (2, 2): 2.1}, [(1, None)]),
        (1, 8, {(2, 0): 1.9}, [(1, None)]),
        (2, 1, {(2, 0): 1.9}, [(1, None)]),
    ],
)
def test_threads_get_an_image_each_where_these_are_faster_together(
    threads: int,
    images: int,
    seconds: dict[tuple[int, int], float],
    found: list[tuple[int, int | None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Times, "_of_bindings", times_of(seconds))
    monkeypatch.setattr(Times, "_joined", lambda *_: 0.01)
    mod = graph(residual, (images, *IMAGE[1:]))
    batch = apart(mod["main"], images, {mod["main"].params[0]: 0})
    cuts = depth_first_module._cuts_for_all(mod, batch, Strategy(native_core(), threads))
    inner = [cut.inner and cut.inner.place for cut in cuts]
    assert [(cut.some, place) for cut, place in zip(cuts, inner, strict=True)] == found
    assert len({(cut.place, cut.live) for cut in cuts}) == 1
