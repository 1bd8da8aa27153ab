"""Runs in fixed memory: nothing is copied that need not be, nothing allocated, nothing shared."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from small_models import float_input, make_model, small_network, small_reference, two_convolutions

import tvm_blislike
from tvm_blislike.errors import InputError
from tvm_blislike.onnx.inputs import random_inputs
from tvm_blislike.runtime.arrays import address_of, aligned, array_of


def compiled(proto: onnx.ModelProto) -> tvm_blislike.CompiledModel:
    return tvm_blislike.compile(proto, threads=1)


@pytest.fixture(scope="module")
def network() -> tvm_blislike.CompiledModel:
    return compiled(small_network())


def images(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal((1, 3, 8, 8), dtype=np.float32) for _ in range(count)]


def require_right(found: np.ndarray, image: np.ndarray) -> None:
    np.testing.assert_allclose(found, small_reference(image), rtol=1e-4, atol=1e-4)


def test_a_runner_overwrites_its_outputs(network: tvm_blislike.CompiledModel) -> None:
    runner = network.runner()
    (output,) = runner.outputs.values()
    for image in images(3):
        assert runner.run([image])["scores"] is output
        require_right(output, image)


def test_inputs_may_be_filled_in_place(network: tvm_blislike.CompiledModel) -> None:
    runner = network.runner()
    for image in images(2):
        runner.inputs["image"][:] = image
        require_right(runner.run()["scores"], image)


def test_arrays_of_the_caller_and_the_runners_own_in_turn(
    network: tvm_blislike.CompiledModel,
) -> None:
    runner, (own, other) = network.runner(), images(2)
    runner.inputs["image"][:] = own
    given = aligned(other.shape, "float32")
    given[:] = other
    for whose in (None, None, given, None, None, None, other, None, given, given, None):
        require_right(
            runner.run(None if whose is None else [whose])["scores"],
            (own if whose is None else other),
        )
    runner.inputs["image"][:] = other
    require_right(runner.run()["scores"], other)


def test_outputs_are_written_where_they_were_given(network: tvm_blislike.CompiledModel) -> None:
    target = aligned((1, 5), "float32")
    runner = network.runner(outputs={"scores": target})
    for image in images(3):
        assert runner.run({"image": image})["scores"] is target
        require_right(target, image)


@given(
    lead=st.integers(0, 64),
    step=st.integers(1, 3),
    behind=st.integers(0, 64),
    backwards=st.booleans(),
)
@examples(25)
def test_memory_may_lie_anywhere(
    network: tvm_blislike.CompiledModel, lead: int, step: int, behind: int, backwards: bool
) -> None:
    """Whatever its alignment and strides, for inputs and outputs; nothing around is touched."""
    runner, plain = network.runner(), images(1)[0]
    memory = np.full(lead + plain.size * step, 7, np.float32)
    image = memory[lead::step][: plain.size].reshape(plain.shape)
    image = image[..., ::-1] if backwards else image
    image[:] = plain
    out = np.full(behind + 5 * step + 9, 7, np.float32)
    scores = out[behind : behind + 5 * step : step].reshape(1, 5)
    runner = network.runner(outputs={"scores": scores})
    for _ in range(2):
        runner.run([image])
        require_right(scores, plain)
        np.testing.assert_array_equal(image, plain)
    untouched = np.ones(out.size, bool)
    untouched[behind : behind + 5 * step : step] = False
    assert (out[untouched] == 7).all()


@given(places=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=2, max_size=6))
@examples(25)
def test_addresses_are_taken_where_kernels_can_use_them(
    network: tvm_blislike.CompiledModel, places: list[tuple[int, int]]
) -> None:
    """Results are those for arrays, also where both ways take turns; nothing else is touched."""
    runner, plain = network.runner(), images(1)[0]
    memory = aligned((256,), "float32")
    for number, (lead, behind) in enumerate(places):
        memory[:] = 7
        # One of four is not aligned, and outputs may lie in the image.
        image = memory[16 * behind % 64 + (lead == 3) :][: plain.size].reshape(plain.shape)
        scores = memory[16 * (behind % 12) :][:5].reshape(1, 5)
        image[:] = plain
        overlap = np.may_share_memory(image, scores)
        done = runner.run_at([address_of(image)], [address_of(scores)])
        assert done == (number > 0 and lead < 3 and not overlap)
        if not done and overlap and number > 0 and lead < 3:
            np.testing.assert_array_equal(image, plain)
            with pytest.raises(InputError, match="memory of its own"):
                runner.run_on([image], [scores])
        if not done:
            scores = aligned((1, 5), "float32")
            runner.run_on([image], [scores])
        require_right(scores, plain)
        np.testing.assert_array_equal(image, plain)
        expected = np.full(memory.shape, 7, np.float32)
        for array in (image, scores):
            if np.may_share_memory(array, memory):
                start = (address_of(array) - address_of(memory)) // 4
                expected[start : start + array.size] = array.ravel()
        np.testing.assert_array_equal(memory, expected)


@given(runs=st.lists(st.tuples(st.booleans(), st.integers(0, 1)), min_size=3, max_size=12))
@examples(25)
def test_places_are_known_again_whatever_ran_between(
    network: tvm_blislike.CompiledModel, runs: list[tuple[bool, int]]
) -> None:
    """Runs on addresses, and on tuples of arrays, at two places in any order."""
    runner, plain = network.runner(), images(2)
    runner.run([plain[0]])
    there = [((aligned(plain[0].shape, "float32"),), (aligned((1, 5), "float32"),)) for _ in plain]
    for (image, *_), image_of in zip((inputs for inputs, _ in there), plain, strict=True):
        image[:] = image_of
    for on_addresses, place in runs:
        inputs, outputs = there[place]
        outputs[0][:] = other = there[1 - place][1][0].copy()
        if on_addresses:
            assert runner.run_at([address_of(inputs[0])], [address_of(outputs[0])])
        else:
            runner.run_on(inputs, outputs)
        require_right(outputs[0], plain[place])
        np.testing.assert_array_equal(there[1 - place][1][0], other)


def test_one_input_at_one_place_with_other_strides(network: tvm_blislike.CompiledModel) -> None:
    whole = aligned((2, 3, 8, 8), "float32")
    whole[:] = np.arange(whole.size).reshape(whole.shape) / 100
    runner = network.runner()
    for image in (whole[:1], whole.transpose(0, 1, 3, 2)[:1], whole[:1]):
        assert address_of(image) == address_of(whole)
        require_right(runner.run([image])["scores"], image)


def test_nothing_is_allocated_in_the_loop(network: tvm_blislike.CompiledModel) -> None:
    runner, given_ones = network.runner(), {"image": aligned((1, 3, 8, 8), "float32")}
    given_ones["image"][:] = images(1)[0]

    def loop(times: int) -> None:
        for _ in range(times):
            runner.run(given_ones)
            runner.run()

    loop(3)
    # What the interpreter allocates now and then is in neither of the least.
    many, few = (min(_peak(lambda n=n: loop(n)) for _ in range(5)) for n in (500, 20))
    assert many <= few + 256
    tracemalloc.start()
    loop(1)  # what is replaced in each run counts on both sides
    gc.collect()
    before = tracemalloc.take_snapshot()
    loop(1000)
    gc.collect()
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    ours = tracemalloc.Filter(True, "*/tvm_blislike/runtime/*")
    grown = after.filter_traces([ours]).compare_to(before.filter_traces([ours]), "filename")
    # What the interpreter keeps once, such as texts of types, is less than a byte of each run.
    assert sum(each.size_diff for each in grown) < 1000, grown


def _peak(function: Callable[[], None]) -> int:
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_runners_share_weights_and_run_at_once() -> None:
    model = compiled(two_convolutions())
    seeds = range(4)
    expected = [next(iter(model.run(random_inputs(model.inputs, s)).values())) for s in seeds]
    start, right = threading.Barrier(len(seeds)), []

    def job(seed: int) -> None:
        runner, inputs = model.runner(), random_inputs(model.inputs, seed)
        start.wait()
        runs = [next(iter(runner.run(inputs).values())).copy() for _ in range(50)]
        right.append(all(np.array_equal(run, expected[seed]) for run in runs))

    threads = [threading.Thread(target=job, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * len(seeds)


def test_runs_of_a_model_do_not_disturb_its_runners(network: tvm_blislike.CompiledModel) -> None:
    first, second = images(2)
    runner = network.runner()
    runner.run([first])
    kept = network.run([second])["scores"]
    network.profile([second], repeat=1)
    require_right(runner.outputs["scores"], first)
    require_right(runner.run([first])["scores"], first)
    require_right(kept, second)
    require_right(network.run([first])["scores"], first)
    require_right(kept, second)


def _passes_through() -> onnx.ModelProto:
    """Outputs that are an input's view, a constant, a part of another and what others read."""
    constant = numpy_helper.from_array(np.arange(4, dtype=np.float32), "constant")
    shape = numpy_helper.from_array(np.array([6], np.int64), "shape")
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["view"]),
        helper.make_node("Identity", ["constant"], ["same"]),
        helper.make_node("Exp", ["x"], ["exp"]),
        helper.make_node("Reshape", ["exp", "shape"], ["flat"]),
        helper.make_node("Neg", ["exp"], ["negative"]),
        helper.make_node("Concat", ["exp", "negative"], ["both"], axis=0),
    ]
    names = {"view": [6], "same": [4], "exp": [2, 3], "flat": [6], "negative": [2, 3]}
    outputs = [float_input(name, size) for name, size in {**names, "both": [4, 3]}.items()]
    return make_model(nodes, [float_input("x", [2, 3])], outputs, [constant, shape])


def test_outputs_that_are_no_kernels_own() -> None:
    model = compiled(_passes_through())
    runner = model.runner()
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((2, 3), dtype=np.float32)
        exp = np.exp(x)
        wanted = {
            "view": x.ravel(),
            "same": np.arange(4),
            "exp": exp,
            "flat": exp.ravel(),
            "negative": -exp,
            "both": np.concatenate([exp, -exp]),
        }
        for found in (model.run([x]), runner.run([x])):
            for name, values in wanted.items():
                np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
                found[name][:] = 0  # which changes no constant and no input
        assert not (x == 0).any()


def test_control_flow_is_decided_anew_in_each_run() -> None:
    def branch(operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["x"], [f"{operator}_y"])
        return helper.make_graph([node], operator, [], [float_input(f"{operator}_y", [3])])

    condition = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
    node = helper.make_node(
        "If", ["condition"], ["y"], then_branch=branch("Exp"), else_branch=branch("Neg")
    )
    proto = make_model([node], [condition, float_input("x", [3])], [float_input("y", [3])], [])
    model, x = compiled(proto), np.array([1, 2, 3], np.float32)
    runner = model.runner()
    for flag in (True, False, True, False):
        inputs = {"condition": np.array(flag), "x": x}
        for found in (model.run(inputs)["y"], runner.run(inputs)["y"]):
            np.testing.assert_allclose(found, np.exp(x) if flag else -x, rtol=1e-6)


def _powers() -> onnx.ModelProto:
    """Return a model that doubles x as often as an input says."""
    names = ["step", "go", "value"]
    kinds = [TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT]
    shapes: list[list[int]] = [[], [], [3]]
    taken = [
        helper.make_tensor_value_info(*spec) for spec in zip(names, kinds, shapes, strict=True)
    ]
    given = [
        helper.make_tensor_value_info("going", TensorProto.BOOL, []),
        float_input("doubled", [3]),
    ]
    nodes = [
        helper.make_node("Identity", ["go"], ["going"]),
        helper.make_node("Add", ["value", "value"], ["doubled"]),
    ]
    body = helper.make_graph(nodes, "body", taken, given)
    node = helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)
    count = helper.make_tensor_value_info("count", TensorProto.INT64, [])
    return make_model([node], [count, float_input("x", [3])], [float_input("y", [3])], [])


def test_every_way_that_conditions_go_is_right_however_many_there_are() -> None:
    model, x = compiled(_powers()), np.array([1, 2, 3], np.float32)
    runner = model.runner()
    for count in (3, 0, 3, 1, 2, 3, 4, 5, 6, 0, 6, 9, 9, 3):
        inputs = {"count": np.array(count), "x": x}
        for found in (model.run(inputs)["y"], runner.run(inputs)["y"]):
            np.testing.assert_array_equal(found, x * 2**count)
        assert x.tolist() == [1, 2, 3]


def test_a_way_that_was_gone_before_needs_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = compiled(_powers()), np.array([1, 2, 3], np.float32)
    runner = model.runner()
    for count in (2, 3, 5):
        for run in (model.run, runner.run):
            run({"count": np.array(count), "x": x})
    monkeypatch.setattr(model._machine, "started", object())  # no machine
    for count in (5, 2, 2, 3):
        inputs = {"count": np.array(count), "x": x}
        for found in (model.run(inputs)["y"], runner.run(inputs)["y"]):
            np.testing.assert_array_equal(found, x * 2**count)
    with pytest.raises(AttributeError):
        model.run({"count": np.array(4), "x": x})
    counts, y = aligned((), "int64"), aligned((3,), "float32")
    values = aligned((3,), "float32")
    values[:] = x
    for count, goes in ((3, True), (2, False), (3, True)):
        counts[...] = count
        assert runner.run_at([address_of(counts), address_of(values)], [address_of(y)]) == goes
        if goes:
            np.testing.assert_array_equal(y, x * 2**count)


class Foreign:
    """What has DLPack and is no array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_anything_with_dlpack_is_an_input_and_an_output(
    network: tvm_blislike.CompiledModel,
) -> None:
    image, target = images(1)[0], np.zeros((1, 5), np.float32)
    require_right(network.run([Foreign(image)])["scores"], image)
    require_right(network.run(Foreign(image))["scores"], image)
    runner = network.runner(outputs={"scores": Foreign(target)})
    assert runner.run({"image": Foreign(image)})["scores"].array is target
    require_right(target, image)
    shared = array_of(Foreign(image))
    assert address_of(shared) == address_of(image)


def test_what_does_not_fit_is_named(network: tvm_blislike.CompiledModel) -> None:
    with pytest.raises(InputError, match=r"no output named 'score'.*\n.*did you mean scores"):
        network.runner(outputs={"score": np.zeros((1, 5), np.float32)})
    with pytest.raises(InputError, match="output scores has shape 1x4"):
        network.runner(outputs={"scores": np.zeros((1, 4), np.float32)})
    with pytest.raises(InputError, match=r"output scores has data type float64.*returns float32"):
        network.runner(outputs={"scores": np.zeros((1, 5))})
    frozen = np.zeros((1, 5), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="output scores cannot be written"):
        network.runner(outputs={"scores": frozen})


def test_an_output_in_an_inputs_memory_is_refused(network: tvm_blislike.CompiledModel) -> None:
    image = aligned((1, 3, 8, 8), "float32")
    image[:] = plain = images(1)[0]
    runner = network.runner(outputs={"scores": image.reshape(-1)[16:21].reshape(1, 5)})
    runner.run([plain])
    image[:] = plain
    with pytest.raises(InputError, match="memory of its own"):
        runner.run([image])
    np.testing.assert_array_equal(image, plain)
    runner.run([plain])
    require_right(runner.outputs["scores"], plain)
