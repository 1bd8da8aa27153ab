"""What a user may allow and forbid: errors, workspace, implementations, pins; also as options."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import two_convolutions
from typer.testing import CliRunner

from tvm_blislike import Constraints, Conv2dWorkload, Core, GemmWorkload
from tvm_blislike.choose.constraints import Pin, parse_pin
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cli.app import app
from tvm_blislike.cli.limits import parse_bytes
from tvm_blislike.errors import ChoiceError, UsageError
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.types import Types
from tvm_blislike.schedules import get_implementation

CORE = Core.named("sapphirerapids")
# Large enough that Winograd wins by far.
DENSE = Conv2dWorkload(1, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1))
_DIRECT = ("conv2d_direct", "conv2d_im2col")


def choose(workload: Conv2dWorkload | GemmWorkload = DENSE, **limits: object) -> Choice:
    return Strategy(CORE, 1, constraints=Constraints(**limits)).choose(workload)


def test_winograd_wins_without_limits() -> None:
    assert choose().config.implementation == "conv2d_winograd"


def test_max_error_leaves_out_winograd_variants_one_by_one() -> None:
    winograd = get_implementation("conv2d_winograd")
    loose = choose(max_error=1e-3, only=("conv2d_winograd",)).config
    tight = choose(max_error=2e-6, only=("conv2d_winograd",)).config
    assert winograd.error_bound(DENSE, loose) > 2e-6 >= winograd.error_bound(DENSE, tight)
    exact = choose(max_error=0.0)
    assert "winograd" not in exact.config.implementation
    refused = [c for c in exact.candidates if "winograd" in c.implementation]
    assert refused
    assert all(c.seconds is None and "error" in c.reason for c in refused)


def test_fp16_has_a_limit_of_its_own() -> None:
    core, half = Core.named("cortex-a76"), replace(DENSE, types=Types.of("float16"))
    usual = Strategy(core, 1).choose(half)
    assert (usual.config.implementation, usual.config.tile_w) == ("conv2d_winograd", 2)
    strict = Strategy(core, 1, constraints=Constraints(max_error=1e-4)).choose(half)
    assert strict.config.implementation == "conv2d_direct"


def test_max_workspace_bounds_what_is_chosen() -> None:
    for limit in (1 << 21, 1 << 18, 1 << 16):
        choice = choose(max_workspace=limit)
        assert choice.implementation.workspace_bytes(DENSE, choice.config, 1) <= limit


def test_least_workspace_where_all_need_more() -> None:
    choice = choose(max_workspace=0)
    size = choice.implementation.workspace_bytes(DENSE, choice.config, 1)
    assert 0 < size < 1 << 17
    assert f"{size} bytes" in choice.reason


def test_only_and_without() -> None:
    usual = choose().config.implementation
    assert choose(without=(usual,)).config.implementation != usual
    assert choose(only=("conv2d_direct",)).config.implementation == "conv2d_direct"
    gemm = GemmWorkload(64, 64, 64)
    assert choose(gemm, only=("conv2d_direct",)).config.implementation == "gemm"
    nothing = choose(gemm, without=("gemm",))
    assert nothing.config is None
    assert "excluded by the user" in nothing.reason


def test_candidates_have_times_or_reasons() -> None:
    found = {c.implementation: c for c in choose(only=_DIRECT).candidates}
    # What can be the fastest in no graph has no estimate of its own.
    least = re.fullmatch(r"more than (\d+\.\d+) ms", found["conv2d_im2col"].reason)
    assert float(least[1]) / 1e3 > found["conv2d_direct"].seconds > 0
    alone = choose(only=("conv2d_im2col",)).candidates
    (im2col,) = (each for each in alone if each.implementation == "conv2d_im2col")
    assert im2col.seconds > found["conv2d_direct"].seconds
    assert "asked for" in found["conv2d_winograd"].reason
    assert "input channel" in found["conv2d_depthwise"].reason


def test_pins_set_implementation_and_fields() -> None:
    pin = parse_pin("conv 1x64x56x56 3x3*=conv2d_direct,nr=32,loop_order=channels")
    assert pin == Pin(
        "conv 1x64x56x56 3x3*", "conv2d_direct", (("nr", 32), ("loop_order", "channels"))
    )
    choice = choose(pins=(pin,))
    assert (choice.config.implementation, choice.config.nr) == ("conv2d_direct", 32)
    assert choice.config.loop_order == "channels"
    assert choice.reason == "pinned"
    other = Conv2dWorkload(1, 64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1))
    assert choose(other, pins=(pin,)).reason != "pinned"


@pytest.mark.parametrize(
    ("pin", "complaint"),
    [
        ("conv*", "not of the form"),
        ("=gemm", "not of the form"),
        ("conv*=conv2d_dirct", "did you mean conv2d_direct"),
        ("conv*=conv2d_direct,mrr=3", "did you mean mr"),
        ("conv*=conv2d_direct,mr=three", "whole number"),
        ("conv*=conv2d_direct,mr", "sets no field"),
    ],
)
def test_bad_pins_name_what_to_change(pin: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_pin(pin)


def test_pins_that_cannot_compute() -> None:
    with pytest.raises(ChoiceError, match=r"one input channel|depthwise"):
        choose(pins=(Pin("conv*", "conv2d_depthwise"),))
    with pytest.raises(ChoiceError, match="for conv2d there are"):
        choose(pins=(Pin("conv*", "gemm"),))
    small = Conv2dWorkload(1, 32, 7, 7, 32, 1, 1)
    with pytest.raises(ChoiceError, match="no configuration is worth compiling there: narrow"):
        choose(small, pins=(Pin("conv*", "conv2d_strassen"),))


def test_unknown_implementations() -> None:
    with pytest.raises(UsageError, match="did you mean conv2d_winograd"):
        Constraints(only=("winograd",))
    with pytest.raises(UsageError, match="unknown implementation"):
        Constraints(without=("x",))


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("2000000", 2_000_000), ("512K", 1 << 19), ("2m", 1 << 21)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.fixture
def model(tmp_path: object) -> str:
    import onnx

    path = tmp_path / "model.onnx"
    onnx.save(two_convolutions(), path)
    return str(path)


def run(*arguments: str) -> object:
    return CliRunner().invoke(app, list(arguments))


def test_options_reach_the_strategy(model: str) -> None:
    result = run("explain", model, "--json", "--threads", "1", "--without", "conv2d_winograd")
    assert result.exit_code == 0, result.output
    layers = json.loads(result.stdout)["layers"]
    assert layers
    assert all(layer["implementation"] != "conv2d_winograd" for layer in layers)


@pytest.mark.parametrize(
    "options",
    [
        ("--only", "nothing"),
        ("--pin", "conv"),
        ("--max-workspace", "many"),
        ("--max-error", "-1"),
    ],
)
def test_bad_options_end_with_usage_errors(model: str, options: tuple[str, str]) -> None:
    result = run("explain", model, *options)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_results_keep_to_a_tight_error(model: str) -> None:
    import onnx
    import onnxruntime

    import tvm_blislike

    proto = onnx.load(model)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    shape = [d if isinstance(d, int) else 1 for d in session.get_inputs()[0].shape]
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    name = session.get_inputs()[0].name
    (wanted,) = session.run(None, {name: x})
    exact = tvm_blislike.compile(proto, threads=1, constraints=Constraints(max_error=0.0))
    (got,) = exact.run({name: x}).values()
    assert np.abs(got - wanted).max() <= 1e-6 * np.abs(wanted).max()


def test_images_at_a_time_as_an_option(tmp_path: Path) -> None:
    path = tmp_path / "batch.onnx"
    onnx.save(batch_of_four(), path)

    def notes(*options: str) -> list[str]:
        command = ["explain", str(path), "--json", "--no-cache", "--threads", "1", *options]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        return [note for note in json.loads(done.stdout)["notes"] if note.startswith("batch of 4")]

    assert "2 at a time" in notes("--images", "2")[0]
    assert not notes("--images", "0")
    refused = CliRunner().invoke(app, ["explain", str(path), "--images", "3", "--no-cache"])
    assert refused.exit_code == 2 and "do not divide a batch of 4" in refused.output


def batch_of_four() -> onnx.ModelProto:
    """A convolution of four images, and its Relu."""
    weights = np.random.default_rng(0).standard_normal((8, 4, 3, 3), dtype=np.float32)
    image, result = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (4, 4, 9, 9)), ("y", (4, 8, 7, 7)))
    )
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    graph = helper.make_graph(
        nodes, "batch", [image], [result], [numpy_helper.from_array(weights, "w")]
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)
