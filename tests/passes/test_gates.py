"""Numbers that multiply the channels of an image: each place where that is done, and when."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import tvm
from conv_workloads import RUNNABLE
from effort import every_second
from relax_graphs import calls, conv, execute, graph, operators, random, run
from tvm import relax
from tvm.relax import op

from tvm_blislike.choose.constraints import Constraints, Pin
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.gates import Place
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.passes import gates
from tvm_blislike.passes.gated_weights import spread_of
from tvm_blislike.passes.gates import Gates
from tvm_blislike.pipeline import compile_module, fused_kernels
from tvm_blislike.schedules import get_implementation
from tvm_blislike.tvm_seams import static_shape

Behind = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]
ZEN4 = Core.named("zen4")


def excited(b: relax.BlockBuilder, x: relax.Var) -> relax.Var:
    """Return an image times a function of its channels' means."""
    image = conv(b, x, static_shape(x)[1], groups=static_shape(x)[1])
    squeezed = b.emit(op.mean(image, [2, 3], True))
    gate = b.emit(op.sigmoid(conv(b, squeezed, static_shape(x)[1], k=1)))
    return b.emit(op.multiply(image, gate))


def network(behind: Behind, *shape: int) -> tvm.IRModule:
    return graph(lambda b, x: op.nn.relu(b.emit(behind(b, excited(b, x)))), shape)


def rewritten(mod: tvm.IRModule, threads: int = 1) -> tvm.IRModule:
    return Gates(Strategy(ZEN4, threads))(mod)


def force(monkeypatch: pytest.MonkeyPatch, wanted: Place) -> None:
    def forced(*given: object) -> Place:
        *_, weights = given
        return Place.EPILOGUE if wanted is Place.WEIGHTS and weights is None else wanted

    monkeypatch.setattr(gates, "place", forced)


BEHIND: dict[str, Behind] = {
    "1x1": lambda b, y: conv(b, y, 12, k=1),
    "of a stride": lambda b, y: op.nn.conv2d(
        y, relax.const(random(20, static_shape(y)[1], 1, 1)), strides=(2, 2)
    ),
    "with a bias and a residual": lambda b, y: op.add(
        b.emit(op.add(conv(b, y, static_shape(y)[1], k=1), relax.const(random(1, 1, 1, 1)))), y
    ),
    "3x3": lambda b, y: conv(b, y, 8),
    "groups": lambda b, y: conv(b, y, 8, k=1, groups=4),
    "none": lambda _b, y: y,
}


# Channels in blocks, and not.
SHAPES = [(1, 16, 14, 10), (1, 20, 6, 9)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", BEHIND)
def test_every_place_computes_the_same(
    name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shape in every_second(SHAPES, [*BEHIND].index(name) + threads):
        mod, image = network(BEHIND[name], *shape), random(*shape)
        (expected,) = execute(tvm.compile(mod, tvm.target.Target("llvm")), [image])
        for wanted in Place:
            force(monkeypatch, wanted)
            made = run(mod, image, threads=threads)
            np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


def test_weights_take_the_gates_of_a_large_image() -> None:
    mod = network(BEHIND["1x1"], 1, 32, 56, 56)
    made = rewritten(mod)
    (product,) = calls(made, "multiply")
    assert static_shape(product) == (12, 32)
    layer = calls(made, "nn.conv2d")[-1]
    assert static_shape(layer.args[0]) == (1, 32, 56, 56)
    assert static_shape(layer.args[1]) == (12, 32, 1, 1)


def test_images_take_them_before_a_layer_of_more_outputs_than_pixels() -> None:
    mod = network(lambda b, y: conv(b, y, 512, k=1), 1, 512, 7, 7)
    tvm.ir.assert_structural_equal(rewritten(mod), mod)


def test_an_image_of_rows_has_a_kernel_of_its_own_with_two_threads() -> None:
    mod = network(BEHIND["3x3"], 1, 64, 56, 56)
    tvm.ir.assert_structural_equal(rewritten(mod), mod)
    made = rewritten(mod, threads=2)
    assert operators(made) == operators(mod) + operators(graph(_twice_reshaped, (4,)))


def _twice_reshaped(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    return op.reshape(b.emit(op.reshape(x, (2, 2))), (4,))


@pytest.mark.parametrize(
    ("behind", "shape"),
    [
        # Another reader needs the product, images have gates of their own, weights are no matrix.
        (lambda b, y: op.add(conv(b, y, 32, k=1), y), (1, 32, 56, 56)),
        (BEHIND["1x1"], (2, 32, 56, 56)),
        (BEHIND["3x3"], (1, 32, 56, 56)),
        (BEHIND["groups"], (1, 32, 56, 56)),
    ],
)
def test_other_layers_stay(behind: Behind, shape: tuple[int, ...]) -> None:
    mod = network(behind, *shape)
    tvm.ir.assert_structural_equal(rewritten(mod), mod)


def test_layers_for_many_sizes_stay() -> None:
    mod = network(BEHIND["1x1"], 1, 32, 56, 56)
    made = Gates(Strategy(ZEN4, 1, is_for_many=True))(mod)
    tvm.ir.assert_structural_equal(made, mod)


WORKLOADS = [
    Conv2dWorkload(1, 32, 28, 28, 16, 1, 1),
    Conv2dWorkload(1, 20, 14, 14, 57, 1, 1),
    Conv2dWorkload(1, 96, 14, 14, 96, 1, 1, (2, 2)),
    Conv2dWorkload(1, 256, 14, 14, 256, 1, 1),
]


@pytest.mark.parametrize("core", RUNNABLE, ids=lambda core: core.isa.name)
@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_packed_weights_meet_the_gates_of_their_channels(
    workload: Conv2dWorkload, core: Core
) -> None:
    weights, gate = random(workload.co, workload.ci, 1, 1), random(workload.ci)
    spread_by: dict[str, list[bool]] = {}
    for config, _ in Strategy(core, 1).offers(workload):
        pack = partial(get_implementation(config.implementation).pack, workload, config)
        spread = spread_of(pack, weights)
        spread_by.setdefault(config.implementation, []).append(spread is not None)
        if spread is not None:
            expected = pack(weights * gate[:, None, None])
            np.testing.assert_array_equal(pack(weights) * gate.reshape(spread), expected)
    assert all(spread_by["conv2d_direct"])
    assert not any(spread_by.get("conv2d_strassen", []))


def test_nothing_is_packed_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, Place.WEIGHTS)
    strategy = Strategy(ZEN4, 1)
    mod = network(BEHIND["1x1"], 1, 32, 28, 28)
    target = tvm.target.Target(ZEN4.target_config(1))
    with target:
        fused, _ = fused_kernels(mod, strategy, target)
    names = [gvar.name_hint for gvar in fused.get_global_vars()]
    assert not [name for name in names if "pack" in name]
    assert [name for name in names if "multiply" in name]


def test_sums_of_weights_are_packed_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where layouts decide for another implementation than the layer by itself has."""
    force(monkeypatch, Place.WEIGHTS)
    monkeypatch.setattr(gates, "spread_of", lambda *_: (1,))
    shape = (1, 512, 14, 14)
    mod, image = network(lambda b, y: conv(b, y, 512, k=1), *shape), random(*shape)
    pin = Pin("conv 1x512x14x14 1x1 -> 512", "conv2d_strassen")
    strategy = Strategy(native_core(), 1, constraints=Constraints(pins=(pin,)))
    executable, report = compile_module(mod, strategy)
    assert "conv2d_strassen" in {layer.implementation for layer in report.layers}
    (expected,) = execute(tvm.compile(mod, tvm.target.Target("llvm")), [image])
    np.testing.assert_allclose(execute(executable, [image])[0], expected, rtol=1e-4, atol=1e-4)
