"""`torch.compile(backend="tvm_blislike")` computes what torch does, or leaves it to torch."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable

import pytest
import torch
import torch._dynamo.testing
from blocks import AttentionBlock, MobileBlock, ResidualBlock, settled
from torch import nn
from torch._inductor import config as inductor_config

import tvm_blislike
from tvm_blislike.errors import EagerWarning
from tvm_blislike.runtime.runner import Runner
from tvm_blislike.torch import backend

IMAGE, TOKENS = (1, 16, 12, 10), (2, 9, 32)
BLOCKS = {"residual": ResidualBlock, "mobile": MobileBlock, "attention": AttentionBlock}


def compiled(function: Callable, **options: object) -> Callable:
    return torch.compile(function, backend="tvm_blislike", options=options)


def require_close(given: torch.Tensor, wanted: torch.Tensor) -> None:
    assert given.dtype == wanted.dtype
    assert given.stride() == wanted.stride()
    assert torch.allclose(given, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[tvm_blislike.CompiledModel]:
    """What was compiled so far; that nothing runs eagerly without a warning is an error."""
    found = []

    def noted(*arguments: object, **options: object) -> tvm_blislike.CompiledModel:
        found.append(tvm_blislike.compile(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(backend, "compile", noted)
    return found


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.filterwarnings("error::tvm_blislike.BlislikeWarning")
def test_blocks_of_networks(name: str, compilations: list) -> None:
    module = settled(BLOCKS[name]())
    values = torch.randn(TOKENS if name == "attention" else IMAGE)
    with torch.no_grad():
        fast = compiled(module)
        require_close(fast(values), module(values))
        require_close(fast(values + 1), module(values + 1))
    (model,) = compilations
    assert model.threads == 1
    assert model.explain().layers


@pytest.mark.filterwarnings("error::tvm_blislike.BlislikeWarning")
def test_images_in_channels_last_keep_their_strides(compilations: list) -> None:
    module = settled(ResidualBlock()).to(memory_format=torch.channels_last)
    image = torch.randn(IMAGE).to(memory_format=torch.channels_last)
    with torch.no_grad():
        wanted = module(image)
        assert not wanted.is_contiguous()
        require_close(compiled(module)(image), wanted)
    assert compilations


def test_images_may_lie_anywhere(compilations: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """Aligned ones are read by their addresses, others as arrays; results are new ones."""
    taken: list[bool] = []
    run_at = Runner.run_at

    def noted(self: Runner, *places: object) -> bool:
        taken.append(run_at(self, *places))
        return taken[-1]

    monkeypatch.setattr(Runner, "run_at", noted)
    module = settled(ResidualBlock())
    count = math.prod(IMAGE)
    memory = torch.randn(count + 16)
    places = [memory[lead : lead + count].reshape(IMAGE) for lead in (0, 16, 1, 0)]
    with torch.no_grad():
        fast = compiled(module)
        results = [fast(image) for image in places]
        for image, result in zip(places, results, strict=True):
            require_close(result, module(image))
    assert len({result.data_ptr() for result in results}) == 4
    assert taken == [False, True, False, True] and len(compilations) == 1


def test_weights_that_change_are_seen(compilations: list) -> None:
    module = settled(ResidualBlock())
    image = torch.randn(IMAGE)
    with torch.no_grad():
        fast = compiled(module)
        require_close(fast(image), module(image))
        module.first.weight.mul_(2)
        require_close(fast(image), module(image))
        module.second_norm.running_mean.add_(1)
        require_close(fast(image), module(image))
        module.load_state_dict(settled(ResidualBlock()).state_dict())
        require_close(fast(image), module(image))
        require_close(fast(image), module(image))
    assert len(compilations) == 4


def test_weights_that_are_exchanged_are_seen(compilations: list) -> None:
    """Also by ways that torch does not count as changes."""
    module = settled(ResidualBlock())
    image = torch.randn(IMAGE)
    with torch.no_grad():
        fast = compiled(module)
        require_close(fast(image), module(image))
        module.first.weight.data = torch.randn_like(module.first.weight)
        require_close(fast(image), module(image))
        module.first.weight = nn.Parameter(torch.randn_like(module.first.weight))
        require_close(fast(image), module(image))
        module.second_norm.running_mean = torch.randn_like(module.second_norm.running_mean)
        require_close(fast(image), module(image))
        module.second = copy.deepcopy(module.second).requires_grad_(False)
        module.second.weight.neg_()
        require_close(fast(image), module(image))
    assert len(compilations) == 5


@pytest.mark.filterwarnings("error::tvm_blislike.BlislikeWarning")
def test_weights_that_dynamo_binds_are_seen_when_they_change(compilations: list) -> None:
    """With torch's own setting they are attributes of the graph instead of arguments."""
    module = settled(ResidualBlock())
    image = torch.randn(IMAGE)
    with torch.no_grad(), inductor_config.patch(freezing=True):
        fast = compiled(module)
        require_close(fast(image), module(image))
        module.first.weight.mul_(2)
        require_close(fast(image), module(image))
        module.first.weight.data = torch.randn_like(module.first.weight)
        require_close(fast(image), module(image))
        module.first.weight = nn.Parameter(torch.randn_like(module.first.weight))
        require_close(fast(image), module(image))
        require_close(fast(image), module(image))
    assert len(compilations) == 4


def test_results_of_any_strides() -> None:
    def function(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return values * 2, (values * 3).t(), values + 1

    values = torch.randn(4, 5)
    with torch.no_grad():
        fast = compiled(function)
        first, second = fast(values), fast(-values)
        for given, sign in ((first, 1), (second, -1)):
            for result, wanted in zip(given, function(sign * values), strict=True):
                require_close(result, wanted)


def test_other_sizes_are_compiled_when_they_come(compilations: list) -> None:
    module = settled(MobileBlock())
    with torch.no_grad():
        fast = compiled(module)
        for size in (8, 9, 11, 9, 8):
            image = torch.randn(1, 16, size, size)
            require_close(fast(image), module(image))
    assert [model.inputs[0].shape[2] for model in compilations] == [8, 9, 11, 8]


def test_a_size_may_be_a_result() -> None:
    def function(values: torch.Tensor) -> tuple[torch.Tensor, int]:
        return values * 2, values.shape[0] * 3

    with torch.no_grad():
        fast = torch.compile(function, backend="tvm_blislike", dynamic=True)
        for rows in (3, 4):
            doubled, count = fast(torch.ones(rows, 5))
            assert torch.equal(doubled, torch.full((rows, 5), 2.0))
            assert count == 3 * rows


@pytest.mark.filterwarnings("error::tvm_blislike.BlislikeWarning")
def test_sizes_that_torch_leaves_open_are_compiled_when_they_come(compilations: list) -> None:
    module, frames = settled(MobileBlock()), torch._dynamo.testing.CompileCounter()

    def counted(graph: torch.fx.GraphModule, arguments: list) -> Callable:
        frames(graph, arguments)
        return backend.backend(graph, arguments)

    fast = torch.compile(module, backend=counted, dynamic=True)
    with torch.no_grad():
        for batch, size in ((1, 8), (2, 9), (3, 11), (2, 9)):
            image = torch.randn(batch, 16, size, size)
            require_close(fast(image), module(image))
    # torch takes a batch of one for itself, and one graph for all others.
    assert frames.frame_count == 2
    assert [tuple(model.inputs[0].shape) for model in compilations] == (
        [(1, 16, 8, 8), (2, 16, 9, 9), (3, 16, 11, 11)]
    )


def test_too_many_sizes_run_eagerly(compilations: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_MOST_SIZES", 1)
    linear = nn.Linear(4, 3)
    fast = torch.compile(linear, backend="tvm_blislike", dynamic=True)
    with torch.no_grad(), pytest.warns(EagerWarning, match="more than 1 combinations of sizes"):
        for rows in (3, 4, 3):
            values = torch.randn(rows, 4)
            require_close(fast(values), linear(values))
    assert len(compilations) == 1


def test_gradients_are_left_to_torch(compilations: list) -> None:
    module = settled(ResidualBlock())
    image = torch.randn(IMAGE)
    with pytest.warns(EagerWarning, match="gradients are wanted"):
        result = compiled(module)(image)
    result.sum().backward()
    assert module.first.weight.grad is not None
    assert not compilations


def test_training_is_left_to_torch(compilations: list) -> None:
    module = ResidualBlock()
    image = torch.randn(IMAGE)
    with torch.no_grad(), pytest.warns(EagerWarning, match="it writes into its argument"):
        compiled(module)(image)
    assert module.first_norm.num_batches_tracked == 1
    assert not compilations


def test_what_torch_cannot_export_is_named() -> None:
    def function(values: torch.Tensor) -> torch.Tensor:
        return torch.special.erfinv(values) + 1

    values = torch.rand(4, 5) / 2
    fast = compiled(function)
    with torch.no_grad():
        with pytest.warns(EagerWarning, match="erf_inv"):
            assert torch.equal(fast(values), function(values))
        with warnings.catch_warnings():  # but once
            warnings.simplefilter("error")
            fast(values)


def test_what_tvm_cannot_import_is_named() -> None:
    def function(values: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(values, 1.0, training=True)

    with torch.no_grad(), pytest.warns(EagerWarning, match="Dropout"):
        assert not compiled(function)(torch.ones(4, 5)).any()


def test_a_view_of_an_argument_stays_one() -> None:
    def function(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return values * 2, values[1:, 2]

    base = torch.arange(20.0).view(4, 5)
    with torch.no_grad():
        doubled, column = compiled(function)(base[1:])
        column += 100
        assert torch.equal(doubled, torch.arange(5.0, 20).view(3, 5) * 2)
        assert torch.equal(base[2:, 2], torch.tensor([112.0, 117.0]))


def test_results_that_share_memory_are_left_to_torch(compilations: list) -> None:
    def function(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        doubled = values * 2
        return doubled, doubled[0]

    with torch.no_grad(), pytest.warns(EagerWarning, match="share memory"):
        whole, row = compiled(function)(torch.ones(2, 3))
    row += 1
    assert torch.equal(whole, torch.tensor([[3.0] * 3, [2.0] * 3]))
    assert not compilations


def test_arguments_changed_in_place_are_left_to_torch(compilations: list) -> None:
    values = torch.ones(2, 3)
    with torch.no_grad(), pytest.warns(EagerWarning, match="it writes into its argument"):
        compiled(lambda x: x.add_(1) * 2)(values)
    assert torch.equal(values, torch.full((2, 3), 2.0))
    assert not compilations


def test_autocast_is_left_to_torch() -> None:
    linear = nn.Linear(4, 3)
    values = torch.randn(2, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        wanted = linear(values)
        given = compiled(linear)(values)
    assert given.dtype == wanted.dtype == torch.bfloat16
    assert torch.allclose(given.float(), wanted.float(), atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    linear = nn.Linear(16, 8).to(dtype)
    values = torch.randn(3, 16, dtype=dtype)
    with torch.no_grad():
        given, wanted = compiled(linear)(values), linear(values)
    assert given.dtype == dtype
    assert torch.allclose(given.double(), wanted.double(), atol=0.02)


def test_inference_mode(compilations: list) -> None:
    with torch.inference_mode():
        module = settled(ResidualBlock())
        image = torch.randn(IMAGE)
        require_close(compiled(module)(image), module(image))
    assert compilations


def test_graphs_around_a_break(compilations: list) -> None:
    module = settled(ResidualBlock())

    def function(image: torch.Tensor) -> torch.Tensor:
        found = module(image)
        torch._dynamo.graph_break()
        return found.flatten(1) * 2

    image = torch.randn(IMAGE)
    with torch.no_grad():
        require_close(compiled(function)(image), function(image))
    assert len(compilations) == 2


def test_options_are_those_of_compile(compilations: list) -> None:
    linear = nn.Linear(16, 8)
    with torch.no_grad():
        compiled(linear, threads=2)(torch.randn(3, 16))
        assert compilations[0].threads == 2
        with pytest.raises(Exception, match=r"(?s)no option 'thread'.*did you mean threads"):
            compiled(nn.Linear(4, 3), thread=2)(torch.randn(3, 4))
        with pytest.raises(Exception, match="no mode 'max-autotune'"):
            torch.compile(linear, backend="tvm_blislike", mode="max-autotune")(torch.randn(2, 16))


def test_tvms_own_backend_takes_the_pipeline() -> None:
    """TVM's; the backend "tvm" of torch itself is for Relay, which TVM has no longer."""
    from tvm.relax.frontend.torch import relax_dynamo

    module = settled(nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU()))
    image = torch.randn(1, 3, 9, 9)
    with torch.no_grad():
        given = torch.compile(module, backend=relax_dynamo(pipeline="blislike"))(image)
        assert torch.allclose(given, module(image), rtol=1e-4, atol=1e-4)
