"""Who decides: the cost model, a user's override, a user's own implementation."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import onnxruntime
import pytest
import tvm
from conv_workloads import ODD_CONVOLUTIONS
from onnx import TensorProto, helper
from small_models import make_model, small_network, two_convolutions
from tvm import relax

import tvm_blislike
from tvm_blislike import Config, Conv2dWorkload, Core, GemmWorkload, Workload, native_core
from tvm_blislike.choose.offers import Offers
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.transforms import moving_seconds
from tvm_blislike.model import workload as workloads
from tvm_blislike.model.choice import Candidate
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.registry import Implementation, Template
from tvm_blislike.model.types import Types
from tvm_blislike.onnx import frontend
from tvm_blislike.schedules import (
    get_implementation,
    implementations,
    register_implementation,
    unregister_implementation,
)

NATIVE = native_core()
DENSE = Conv2dWorkload(1, 32, 9, 11, 48, 3, 3, padding=(1, 1, 1, 1))
DEPTHWISE = Conv2dWorkload(1, 32, 9, 11, 32, 3, 3, padding=(1, 1, 1, 1), groups=32)
# Groups of two channels: nearly a depthwise convolution.
PAIRS = dataclasses.replace(DEPTHWISE, groups=16)
# Layers with many candidates: of models, and with few channels on large images.
POINTWISE = (
    Conv2dWorkload(1, 72, 28, 28, 40, 1, 1),
    Conv2dWorkload(1, 16, 112, 112, 64, 1, 1),
    Conv2dWorkload(1, 512, 7, 7, 512, 1, 1),
    Conv2dWorkload(2, 256, 14, 14, 96, 1, 1, stride=(2, 2)),
)
INT8 = dataclasses.replace(DENSE, types=Types.of("int8"))


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(4).standard_normal((1, 3, 15, 17)).astype("float32")


def onnxruntime_result(model: object, image: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {"image": image})[0]


# --- the cost model -------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "workload", [DENSE, DEPTHWISE, GemmWorkload(37, 53, 29), GemmWorkload(1, 100, 64)], ids=str
)
def test_the_fastest_estimate_wins(workload: Workload, threads: int) -> None:
    choice = Strategy(NATIVE, threads).choose(workload)
    every = [
        candidate.estimate(workload, config, NATIVE, threads).seconds
        for candidate in implementations(workload.kind)
        if not candidate.applies(workload, NATIVE)
        for config in candidate.configs(workload, NATIVE, threads)
    ]
    assert choice.estimate.seconds == min(every)
    predicted = sum(candidate.configs for candidate in choice.candidates)
    assert 0 < predicted <= len(every)
    assert choice.reason == f"fastest of {predicted} predicted"
    assert choice.implementation.name == choice.config.implementation


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("core", ["zen4", "haswell", "cortex-a76"])
def test_what_is_not_estimated_would_be_chosen_in_no_graph(core: str, threads: int) -> None:
    strategy = Strategy(Core.named(core), threads)
    workload = Conv2dWorkload(1, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1))
    choice = strategy.choose(workload)
    left = [c for c in choice.candidates if "at the peak" in c.reason]
    assert {c.implementation for c in left} >= {"conv2d_direct", "conv2d_im2col"}
    others = [(c, s) for c, s in strategy.offers(workload) if c.implementation in _names(left)]
    others += [
        (other, strategy.seconds(workload, other))
        for config, _ in others
        for other in get_implementation(config.implementation).relaid(
            workload, config, strategy.core
        )
    ]
    assert len(others) > 500
    for config, seconds in others:
        moving = moving_seconds(workload, config, choice.config, strategy.core, threads)
        assert seconds > choice.seconds + moving


@pytest.mark.parametrize("core", ["zen4", "haswell", "cortex-a76", "cortex-a53"])
def test_no_estimate_is_below_the_least(core: str) -> None:
    target, least = Core.named(core), {}
    for workload in (*ODD_CONVOLUTIONS, DENSE):
        for implementation in implementations(workload.kind):
            if implementation.applies(workload, target):
                continue
            for threads in (1, 3):
                seconds = implementation.least_seconds(workload, target, threads)
                least[implementation.name] = max(seconds, least.get(implementation.name, 0.0))
                for config in implementation.configs(workload, target, threads):
                    estimate = implementation.estimate(workload, config, target, threads)
                    floor = implementation.least_of(workload, config, target, threads)
                    assert estimate.seconds >= max(seconds, floor)
    assert {"conv2d_direct", "conv2d_winograd_1d"} <= {name for name, s in least.items() if s}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("core", ["zen4", "haswell", "cortex-a76", "cortex-a53"])
def test_what_needs_no_estimate_is_never_the_fastest(core: str, threads: int) -> None:
    strategy = Strategy(Core.named(core), threads)
    estimated: Counter[str] = Counter()
    every: Counter[str] = Counter()
    offers = strategy._offers
    for workload in (*ODD_CONVOLUTIONS, DENSE, *POINTWISE):
        for implementation in offers.able(workload):
            configs = list(implementation.configs(workload, strategy.core, threads))
            if not configs:
                continue
            seconds = [e.seconds for e in offers.estimates(implementation, workload, configs)]
            counted = Counted(implementation)
            choice = offers.best(counted, workload, configs)
            assert choice.config is configs[seconds.index(min(seconds))]
            assert choice.estimate.seconds == min(seconds)
            estimated[implementation.name] += counted.estimates
            every[implementation.name] += len(configs)
    for name in ("conv2d_im2col", "conv2d_direct", "conv2d_winograd"):
        assert 0 < estimated[name] < 0.8 * every[name]


@pytest.mark.parametrize("name", ["conv2d_im2col", "conv2d_direct", "conv2d_winograd"])
def test_a_configuration_with_other_fields_is_one_made_of_them(name: str) -> None:
    config = next(iter(get_implementation(name).configs(DENSE, NATIVE, 2)))
    assert config.kind  # whatever was derived from the fields before
    other = config.with_fields(mr=config.mr + 1, implementation="another")
    assert other == dataclasses.replace(config, mr=config.mr + 1, implementation="another")
    assert hash(other) == hash(dataclasses.replace(other))
    assert vars(other).keys() == {field.name for field in dataclasses.fields(config)}
    assert config.with_fields() == config and config.with_fields() is not config
    with pytest.raises(TypeError, match="colour"):
        config.with_fields(colour=1)


class Counted:
    """An implementation that counts its estimates."""

    def __init__(self, implementation: Implementation) -> None:
        self.implementation, self.estimates = implementation, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.implementation, name)

    def estimate(self, *arguments: Any) -> Estimate:
        self.estimates += 1
        return self.implementation.estimate(*arguments)


def _names(candidates: Iterable[Candidate]) -> set[str]:
    return {candidate.implementation for candidate in candidates}


def test_the_same_workload_is_decided_once() -> None:
    asked: list[Workload] = []
    strategy = Strategy(NATIVE, 1, asked.append)
    assert strategy.choose(DENSE) is strategy.choose(dataclasses.replace(DENSE))
    assert asked == [DENSE]


def test_estimates_travel_to_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Strategy(NATIVE, 1)
    choice = here.choose(DENSE)
    there = cloudpickle.loads(cloudpickle.dumps(here))
    other = next(c for c, _ in here.offers(DENSE) if c != choice.config)
    assert there.overruled(lambda _workload: other).choose(DENSE).config == other
    monkeypatch.setattr(Offers, "estimates", None)
    assert there.overruled(lambda _workload: None).choose(DENSE).config == choice.config


def test_fallbacks_name_the_reason_of_every_implementation() -> None:
    choice = Strategy(NATIVE, 1).choose(INT8)
    assert (choice.implementation, choice.config, choice.estimate) == (None, None, None)
    for candidate in implementations("conv2d"):
        assert f"{candidate.name}: {candidate.applies(INT8, NATIVE)}" in choice.reason


def test_a_kind_without_implementations_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # A kind is known from its definition on, to other tests as well.
    monkeypatch.setattr(workloads, "_KINDS", {})

    class Transform(GemmWorkload):
        kind = "fft"

    assert Strategy(NATIVE, 1).choose(Transform(1, 1, 1)).reason == "no implementation"


# --- an override ----------------------------------------------------------


def pinned(**fields: int | str) -> Callable[[Workload], Config | None]:
    """Change some fields of the usual choice for convolutions of three channels."""
    usual = Strategy(NATIVE, 1)

    def override(workload: Workload) -> Config | None:
        if workload.kind != "conv2d" or workload.ci != 3:
            return None
        return usual.choose(workload).config.with_fields(**fields)

    return override


def test_an_override_reaches_the_kernel_and_spares_the_others(images: np.ndarray) -> None:
    model, one = two_convolutions(), {"nr": NATIVE.lanes(), "tile_h": 1}
    compiled = tvm_blislike.compile(model, threads=1, override=pinned(mr=2, tile_w=2, **one))
    # Beside another block, not beside what would be chosen: its images may lie otherwise, and then
    # other choices are the best for its neighbours.
    beside = tvm_blislike.compile(model, threads=1, override=pinned(mr=1, tile_w=1, **one))
    layers, others = (
        [layer for layer in each.explain().layers if layer.kind == "conv2d"]
        for each in (compiled, beside)
    )
    assert layers[0].microkernel == f"{NATIVE.isa.name}_f32_2x{NATIVE.lanes()}"
    assert layers[0].reason == "asked for"
    assert layers[0].predicted_ms != others[0].predicted_ms
    assert layers[1].config == others[1].config
    (result,) = compiled.run(images).values()
    np.testing.assert_allclose(result, onnxruntime_result(model, images), rtol=1e-4, atol=1e-5)


def test_an_override_may_ask_for_another_implementation() -> None:
    (wanted, *_) = get_implementation("conv2d_direct").configs(PAIRS, NATIVE, 1)
    choice = Strategy(NATIVE, 1, lambda _: wanted).choose(PAIRS)
    assert (choice.config, choice.implementation.name) == (wanted, "conv2d_direct")
    assert choice.estimate.seconds > 0


@pytest.mark.parametrize(
    "workload, name, message",
    [
        (DENSE, "conv2d_magic", "names 'conv2d_magic'; for conv2d there are: .*conv2d_direct"),
        (DENSE, "gemm", "names 'gemm'; for conv2d there are"),
        (DENSE, "conv2d_depthwise", "conv2d_depthwise cannot compute conv .*: not depthwise"),
        (DEPTHWISE, "conv2d_direct", "conv2d_direct cannot compute conv .*: one input channel"),
        (GemmWorkload(2, 3, 4), "conv2d_direct", "for gemm there are: gemm"),
    ],
)
def test_an_override_that_cannot_be_followed(workload: Workload, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Strategy(NATIVE, 1, lambda _: Config(implementation=name)).choose(workload)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"nr": 3 * 16 + 1}, "no micro-kernel .*x49"),
        ({"mr": 1, "tile_h": 1, "tile_w": 2}, "has 1 rows, not 1 x 2"),
    ],
)
def test_impossible_fields_are_named_when_compiling(fields: dict, message: str) -> None:
    # TVM passes on what Python raises inside a pass, under a name of its own.
    with pytest.raises(Exception, match=message):
        tvm_blislike.compile(two_convolutions(), threads=1, override=pinned(**fields))


def test_an_error_in_the_override_itself_is_not_swallowed() -> None:
    def broken(workload: Workload) -> Config | None:
        raise ZeroDivisionError("my own mistake")

    with pytest.raises(Exception, match="my own mistake"):
        tvm_blislike.compile(two_convolutions(), threads=1, override=broken)


# --- the registry ---------------------------------------------------------


def renamed(name: str, factor: float = 0.5, based_on: str = "conv2d_direct") -> Template:
    """The direct convolution under another name, predicted to take `factor` of its time."""
    base = get_implementation(based_on)

    def configs(workload: Workload, core: Core, threads: int) -> Iterator[Config]:
        for config in base.configs(workload, core, threads):
            yield config.with_fields(implementation=name)

    def estimate(workload: Workload, config: Config, core: Core, threads: int) -> Estimate:
        found = base.estimate(workload, config, core, threads)
        return dataclasses.replace(found, seconds=factor * found.seconds)

    def least_seconds(workload: Workload, core: Core, threads: int) -> float:
        return factor * base.least_seconds(workload, core, threads)

    def least_of(workload: Workload, config: Config, core: Core, threads: int) -> float:
        return factor * base.least_of(workload, config, core, threads)

    floors = {"least_seconds": least_seconds, "least_of": least_of}
    changes = {"configs": configs, "estimate": estimate, **floors}
    return dataclasses.replace(base, name=name, **changes)


@pytest.fixture
def registered() -> Iterator[Callable[..., None]]:
    """Register for one test only."""
    names: list[str] = []

    def register(implementation: Implementation, **options: bool) -> None:
        register_implementation(implementation, **options)
        names.append(implementation.name)

    yield register
    for name in names:
        unregister_implementation(name)


def conv_implementations(compiled: tvm_blislike.CompiledModel) -> list[str]:
    layers = compiled.explain().layers
    return [layer.implementation for layer in layers if layer.kind == "conv2d"]


def test_a_faster_implementation_of_ones_own_wins_end_to_end(
    registered: Callable[..., None], images: np.ndarray
) -> None:
    registered(renamed("my_conv", factor=0.01))
    model = two_convolutions()
    compiled = tvm_blislike.compile(model, threads=1)
    assert conv_implementations(compiled) == ["my_conv", "my_conv"]
    (result,) = compiled.run(images).values()
    np.testing.assert_allclose(result, onnxruntime_result(model, images), rtol=1e-4, atol=1e-5)


def test_a_slower_one_loses_and_can_still_be_asked_for(registered: Callable[..., None]) -> None:
    registered(renamed("my_conv", factor=100.0))
    strategy = Strategy(NATIVE, 1)
    usual = strategy.choose(DENSE)
    assert usual.config.implementation != "my_conv"
    (wanted, *_) = get_implementation("my_conv").configs(DENSE, NATIVE, 1)
    assert Strategy(NATIVE, 1, lambda _: wanted).choose(DENSE).config == wanted


def test_one_that_does_not_apply_is_no_candidate(registered: Callable[..., None]) -> None:
    mine = dataclasses.replace(
        renamed("my_conv", factor=0.01), applies=lambda workload, core: "not on Sundays"
    )
    registered(mine)
    strategy = Strategy(NATIVE, 1)
    assert strategy.choose(DENSE).config.implementation != "my_conv"
    assert "my_conv: not on Sundays" in strategy.choose(INT8).reason


def test_unregistered_means_gone(registered: Callable[..., None]) -> None:
    registered(renamed("my_conv"))
    assert "my_conv" in [i.name for i in implementations("conv2d")]
    assert "my_conv" not in [i.name for i in implementations("gemm")]
    unregister_implementation("my_conv")
    assert "my_conv" not in [i.name for i in implementations("conv2d")]
    with pytest.raises(KeyError, match=r"no implementation 'my_conv'; known: .*gemm"):
        get_implementation("my_conv")
    unregister_implementation("my_conv")  # once more is no error


def test_a_name_is_taken_once(registered: Callable[..., None]) -> None:
    mine, other = renamed("my_conv"), renamed("my_conv", factor=0.1)
    registered(mine)
    with pytest.raises(ValueError, match="'my_conv' exists; pass override=True"):
        register_implementation(other)
    assert get_implementation("my_conv") is mine
    registered(other, override=True)
    assert get_implementation("my_conv") is other


def test_the_librarys_own_can_be_replaced_and_come_back(registered: Callable[..., None]) -> None:
    own = get_implementation("conv2d_direct")
    mine = renamed("conv2d_direct", factor=0.01)
    with pytest.raises(ValueError, match="'conv2d_direct' exists"):
        register_implementation(mine)
    registered(mine, override=True)
    assert Strategy(NATIVE, 1).choose(DENSE).implementation is mine
    unregister_implementation("conv2d_direct")
    assert get_implementation("conv2d_direct") is own


class Incomplete:
    name, kind = "incomplete", "conv2d"

    def applies(self, workload: Workload, core: Core) -> str:
        return ""

    def configs(self, workload: Workload, core: Core, threads: int) -> Iterable[Config]:
        return []


@pytest.mark.parametrize("wrong", [None, "conv2d_direct", object(), Incomplete(), Template])
def test_what_is_no_implementation_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="lacks a method or attribute of Implementation"):
        register_implementation(wrong)
    assert "incomplete" not in [i.name for i in implementations("conv2d")]


def test_the_librarys_own_are_implementations() -> None:
    own = [*implementations("conv2d"), *implementations("gemm")]
    assert {"conv2d_direct", "conv2d_depthwise", "gemm"} <= {i.name for i in own}
    assert all(isinstance(i, Implementation) for i in own)


# --- the pipeline in an ordinary tvm.compile ------------------------------


@pytest.mark.parametrize(
    "cores, options",
    [
        (None, {}),
        (2, {}),
        (None, {"threads": 2}),
        (2, {"threads": 1}),
        (2, {"core": Core.named("x86-64-v3" if NATIVE.isa.name != "neon" else "cortex-a72")}),
        (1, {"override": pinned(mr=2, nr=NATIVE.lanes(), tile_h=1, tile_w=2)}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else str(value),
)
@pytest.mark.parametrize("batch", [1, 2])
def test_ordinary_compilation_agrees_with_onnxruntime(
    cores: int | None, options: dict, batch: int
) -> None:
    model = two_convolutions(batch)
    image = np.random.default_rng(3).standard_normal((batch, 3, 15, 17)).astype("float32")
    fields = NATIVE.target_config(cores or 1)
    if cores is None:
        fields.pop("num-cores")
    executable = tvm.compile(
        frontend.load(model).module,
        tvm.target.Target(fields),
        relax_pipeline=relax.get_pipeline("blislike", **options),
    )
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(image))
    expected = onnxruntime_result(model, image)
    assert np.abs(result.numpy() - expected).max() <= 1e-5 * np.abs(expected).max()


def test_a_plain_target_is_enough(images: np.ndarray) -> None:
    """No processor, no features: the code is that of the plainest core described."""
    model = two_convolutions()
    with tvm.target.Target("llvm"):
        executable = tvm.compile(
            frontend.load(model).module, relax_pipeline=relax.get_pipeline("blislike")
        )
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(images))
    expected = onnxruntime_result(model, images)
    assert np.abs(result.numpy() - expected).max() <= 1e-5 * np.abs(expected).max()


def test_weights_of_run_time_are_packed_at_run_time() -> None:
    """Kernels get readable names, packing too."""
    sizes = {"x": [1, 16, 6, 6], "w": [32, 16, 3, 3], "y": [1, 32, 4, 4]}
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, size)
        for name, size in sizes.items()
    }
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    model = make_model([node], [values["x"], values["w"]], [values["y"]], [])
    compiled = tvm_blislike.compile(model, threads=1)
    names = [layer.name for layer in compiled.explain().layers]
    (chosen,) = conv_implementations(compiled)
    assert f"{chosen}_pack" in names
    assert all(name.isidentifier() for name in names)
    rng = np.random.default_rng(6)
    x, w = (rng.standard_normal(sizes[name]).astype("float32") for name in "xw")
    (result,) = compiled.run({"x": x, "w": w}).values()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_allclose(result, session.run(None, {"x": x, "w": w})[0], atol=1e-4)


def test_every_layer_of_a_report_has_a_reason() -> None:
    layers = tvm_blislike.compile(small_network(), threads=1).explain().layers
    assert {layer.kind for layer in layers} >= {"conv2d", "gemm"}
    assert all(layer.reason for layer in layers)
