"""Times of layers inside a model: workloads of a graph, and whose kernel is whose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from small_models import float_input, make_model, small_network

import tvm_blislike
from tvm_blislike.bench import bench
from tvm_blislike.bench.engines import Job
from tvm_blislike.bench.graph_layers import GraphLayer, layers_of, matched
from tvm_blislike.bench.inside import PROFILERS, layer_ms, own_seconds, runs_in
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import native_core
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload
from tvm_blislike.onnx import frontend
from tvm_blislike.onnx.inputs import random_inputs
from tvm_blislike.tuning.tasks import tasks_of


def _residual() -> onnx.ModelProto:
    """Two convolutions of the input, added; the first has a batch-norm, the sum a ReLU."""
    rng = np.random.default_rng(0)
    kernels = {"k1": rng.standard_normal((16, 8, 3, 3)), "k2": rng.standard_normal((16, 8, 1, 1))}
    norm = {name: np.ones(16) for name in ("scale", "shift", "mean", "variance")}
    nodes = [
        helper.make_node("Conv", ["x", "k1"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", *norm], ["b"], "norm"),
        helper.make_node("Conv", ["x", "k2"], ["c"], "second"),
        helper.make_node("Add", ["b", "c"], ["s"], "sum"),
        helper.make_node("Relu", ["s"], ["y"], "relu"),
    ]
    weights = [numpy_helper.from_array(v.astype("f4"), n) for n, v in (kernels | norm).items()]
    shape = [1, 16, 12, 12]
    return make_model(nodes, [float_input("x", [1, 8, 12, 12])], [float_input("y", shape)], weights)


RESIDUAL = (
    Conv2dWorkload(1, 8, 12, 12, co=16, kh=3, kw=3, padding=(1, 1, 1, 1)),
    Conv2dWorkload(1, 8, 12, 12, co=16, kh=1, kw=1),
)


def _job(path: Path) -> Job:
    proto, _ = frontend.read_model(path)
    inputs = random_inputs(frontend.resolve_inputs(proto, {}))
    return Job(str(path), inputs, [v.name for v in proto.graph.output], 1, native_core())


def test_layers_of_a_graph_are_the_workloads_of_the_compiler() -> None:
    layers = layers_of(small_network("n", "s"), {"image": (2, 3, 8, 8)})
    assert [layer.workload for layer in layers] == [
        Conv2dWorkload(2, 3, 8, 8, co=8, kh=3, kw=3, padding=(1, 1, 1, 1)),
        GemmWorkload(2, 5, 8),
    ]
    module = frontend.load(small_network(), {"image": (1, 3, 8, 8)}).module
    tasks = tasks_of(module, Strategy(native_core(), 1))
    found = layers_of(small_network(), {})
    assert {layer.workload for layer in found} == {task.workload for task in tasks}


def test_names_include_what_may_be_fused() -> None:
    first, second = layers_of(_residual(), {})
    assert (first.workload, second.workload) == RESIDUAL
    assert first.names == ("first", "a", "norm", "b", "sum", "s", "relu", "y")
    assert second.names == ("second", "c", "sum", "s", "relu", "y")


def test_other_operators_are_no_layers() -> None:
    weights = [numpy_helper.from_array(np.ones((4, 4, 3), "f4"), "k")]
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["y"]),
        helper.make_node("MatMul", ["y", "y"], ["z"]),
    ]
    model = make_model(nodes, [float_input("x", [1, 4, 6])], [float_input("z", None)], weights)
    assert layers_of(model, {}) == []
    weights = [numpy_helper.from_array(np.ones((4, 4, 3, 3), "f4"), "k")]
    nodes = [helper.make_node("Conv", ["x", "k"], ["y"], auto_pad="SAME_UPPER")]
    model = make_model(nodes, [float_input("x", [1, 4, 6, 6])], [float_input("y", None)], weights)
    assert layers_of(model, {}) == []


def test_gemm_with_transposed_weights() -> None:
    b = numpy_helper.from_array(np.ones((7, 5), "f4"), "b")
    node = helper.make_node("Gemm", ["x", "b"], ["y"], transB=1)
    model = make_model([node], [float_input("x", [3, 5])], [float_input("y", [3, 7])], [b])
    assert [layer.workload for layer in layers_of(model, {})] == [GemmWorkload(3, 7, 5)]


def test_values_of_large_constants_do_not_matter() -> None:
    b = numpy_helper.from_array(np.ones((64, 64), "f4"), "b")
    node = helper.make_node("MatMul", ["x", "b"], ["y"])
    model = make_model([node], [float_input("x", [3, 64])], [float_input("y", [3, 64])], [b])
    model.graph.initializer[0].ClearField("raw_data")
    assert [layer.workload for layer in layers_of(model, {})] == [GemmWorkload(3, 64, 64)]


def test_kernels_find_their_layers() -> None:
    w, v = RESIDUAL
    first, second = GraphLayer(w, ("a", "b", "s")), GraphLayer(v, ("c", "s"))
    again = GraphLayer(w, ("d",))
    # The name that both have goes to the one that has no kernel.
    assert matched([first, second], [(("s",), 2.0), (("c",), 1.0)]) == {str(w): 2.0, str(v): 1.0}
    assert matched([first, second], [(("s",), 2.0), (("b",), 1.0)]) == {str(w): 1.0, str(v): 2.0}
    # Of several names one that only one layer has decides.
    assert matched([first, second], [(("b", "s"), 2.0)]) == {str(w): 2.0}
    assert matched([first, again], [(("a",), 2.0), (("d",), 4.0)]) == {str(w): 3.0}
    assert matched([first], [(("other",), 2.0)]) == {}


def test_a_trace_is_cut_into_runs() -> None:
    def node(name: str, kind: str, start: int, length: int) -> dict:
        args = {"op_name": kind}
        return {"cat": "Node", "name": name, "args": args, "ts": start, "dur": length}

    trace = [
        {"cat": "Session", "name": "session_initialization", "ts": 0, "dur": 5},
        {"cat": "Session", "name": "model_run", "ts": 10, "dur": 90},
        {"cat": "Session", "name": "model_run", "ts": 110, "dur": 90},
        node("relu_2_nchwc_kernel_time", "Conv", 20, 7),
        node("reorder_kernel_time", "ReorderOutput", 30, 7),
        node("fused fc_token_12_kernel_time", "FusedGemm", 40, 5),
        node("relu_2_nchwc_kernel_time", "Conv", 120, 9),
    ]
    first, second = runs_in(trace)
    assert first == [(("relu_2",), pytest.approx(7e-6)), (("fc",), pytest.approx(5e-6))]
    assert second == [(("relu_2",), pytest.approx(9e-6))]


def test_own_times_are_means_of_medians_by_call() -> None:
    compiled = tvm_blislike.compile(_residual(), threads=1)
    names = {x.workload: x.name for x in compiled.explain().layers if x.macs}
    name = names[str(RESIDUAL[0])]
    runs = [{name: [1.0, 10.0]}, {name: [3.0, 30.0]}, {name: [2.0, 90.0]}]
    assert own_seconds(compiled, runs) == {"blislike": {str(RESIDUAL[0]): 16.0}}


def test_every_engine_tells_the_time_of_every_layer(tmp_path: Path) -> None:
    path = tmp_path / "residual.onnx"
    onnx.save(_residual(), path)
    job = _job(path)
    compiled = tvm_blislike.compile(str(path), threads=1)
    turns = []
    found = layer_ms(compiled, job, ["onnxruntime", "openvino", "ncnn"], lambda: turns.append(1))
    assert set(found) == {"blislike", *PROFILERS}
    for times in found.values():
        assert set(times) == {str(w) for w in RESIDUAL}
        assert all(0 <= ms < 1000 for ms in times.values())
        assert max(times.values()) > 0
    assert len(turns) % 3 == 0


def test_an_engine_that_tells_nothing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(job: Job) -> None:
        raise KeyError("originalLayersNames")

    path = tmp_path / "residual.onnx"
    onnx.save(_residual(), path)
    monkeypatch.setitem(PROFILERS, "openvino", refuse)
    compiled = tvm_blislike.compile(str(path), threads=1)
    assert set(layer_ms(compiled, _job(path), ["openvino"])) == {"blislike"}


def test_bench_has_layer_times_when_asked_to_profile(tmp_path: Path) -> None:
    path = tmp_path / "residual.onnx"
    onnx.save(_residual(), path)
    engines = ["blislike", "untuned", "onnxruntime"]
    result = bench(path, engines, threads=1, repeat=1, profile=True)
    assert set(result.layer_ms) == {"blislike", "onnxruntime"}
    assert set(result.engines) == set(engines)
    assert result.to_dict()["layer_ms"] == result.layer_ms
    assert bench(path, ["blislike"], threads=1, repeat=1).layer_ms == {}
