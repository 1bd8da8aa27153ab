"""Times of single layers inside the whole model: this library and its peers, in turns.

An engine runs a layer by itself in another way than among its neighbours: alone, moving images to
its own layout and back often costs more than the layer. So each engine's own profiler is asked.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from tvm_blislike.bench.engines import Job, onnxruntime_options, openvino_request
from tvm_blislike.bench.graph_layers import layers_of, matched
from tvm_blislike.onnx import frontend

if TYPE_CHECKING:
    from tvm_blislike.runtime.compiled import CompiledModel

Times = dict[str, float]
# (names, seconds) of each kernel in one run.
Kernels = list[tuple[tuple[str, ...], float]]

_ROUNDS = 8
_RUNS = 3
_ONNXRUNTIME_KINDS = re.compile("Conv|Gemm|MatMul")
_OPENVINO_KINDS = {"Convolution", "GroupConvolution", "FullyConnected", "MatMul"}
# What onnxruntime adds to the name of a node, or of a tensor, when it rewrites its graph.
_ADDED = re.compile(r"^fused |_kernel_time$|_nchwc(?=_token|_kernel|$)|_token_\d+")


class Profiler(Protocol):
    """A model loaded so that single kernels are timed."""

    def run(self) -> None:
        """Run the model once."""

    def close(self) -> None:
        """Release it."""

    def kernels(self) -> list[Kernels]:
        """Return the kernels of each run."""


def layer_ms(
    compiled: CompiledModel,
    job: Job,
    engines: Iterable[str],
    idle: Callable[[], None] = lambda: None,
) -> dict[str, Times]:
    """Return the milliseconds of one call of each workload inside the model, by engine.

    Each is the median over the runs; what occurs several times in the model is averaged. The
    kernels include what an engine fuses into them, such as an activation; what it runs apart
    (layout changes, activations that it does not fuse) is not counted.

    Parameters
    ----------
    compiled : CompiledModel
        The model in this library, "blislike" in the result.
    job : Job
        What the engines get.
    engines : iterable of str
        Peers; those without a profiler here, or whose profiler fails, are left out.
    idle : callable
        Called before each turn.
    """
    proto, _ = frontend.read_model(job.path)
    layers = layers_of(proto, {name: array.shape for name, array in job.inputs.items()})
    runs: list[dict[str, list[float]]] = []
    loaded = {name: _loaded(name, job) for name in engines if name in PROFILERS}
    peers = {name: peer for name, peer in loaded.items() if peer is not None}
    try:
        for _ in range(_ROUNDS):
            idle()
            runs += compiled.profile_runs(job.inputs, _RUNS)
            for peer in peers.values():
                idle()
                for _ in range(_RUNS):
                    peer.run()
        found = {n: matched(layers, _medians(peer.kernels())) for n, peer in peers.items()}
    finally:
        for peer in peers.values():
            peer.close()
    ours = own_seconds(compiled, runs)
    return {n: {w: 1e3 * s for w, s in times.items()} for n, times in {**ours, **found}.items()}


def own_seconds(
    compiled: CompiledModel, runs: Sequence[Mapping[str, Sequence[float]]]
) -> dict[str, Times]:
    """Return the mean over the calls of each workload of the median of one call, in seconds."""
    workloads = {x.name: x.workload for x in compiled.explain().layers if x.macs}
    calls = defaultdict(list)
    for name in runs[0]:
        if name in workloads:
            for each in zip(*(run[name] for run in runs), strict=True):
                calls[workloads[name]].append(median(each))
    return {"blislike": {w: sum(times) / len(times) for w, times in calls.items()}}


class OnnxRuntimeProfile:
    """The session writes a trace of all its runs when it ends."""

    def __init__(self, job: Job) -> None:
        import onnxruntime

        self._folder = tempfile.TemporaryDirectory()
        options = onnxruntime_options(job)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self._folder.name) / "profile")
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(job.path, options, providers=providers)
        self._job = job
        self.run()

    def run(self) -> None:
        """Run the model once."""
        self._session.run(list(self._job.outputs), dict(self._job.inputs))

    def kernels(self) -> list[Kernels]:
        """Return the kernels of each run after the first, which allocates."""
        events = json.loads(Path(self._session.end_profiling()).read_text())
        return list(runs_in(events))[1:]

    def close(self) -> None:
        """Remove the trace."""
        self._folder.cleanup()


def runs_in(events: Iterable[Mapping[str, Any]]) -> Iterator[Kernels]:
    """Return the kernels of each run in a trace of onnxruntime."""
    kernels: Kernels = []
    for event in sorted(events, key=lambda event: event.get("ts", 0) + event.get("dur", 0)):
        if event.get("name") == "model_run":
            yield kernels
            kernels = []
        kind = event.get("args", {}).get("op_name", "")
        is_kernel = event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
        if is_kernel and _ONNXRUNTIME_KINDS.search(kind):
            kernels.append(((_ADDED.sub("", event["name"]),), 1e-6 * event["dur"]))


class OpenVinoProfile:
    """The request tells the time of each node after a run."""

    def __init__(self, job: Job) -> None:
        compiled, self._request = openvino_request(job, {"PERF_COUNT": True})
        self._names = {}
        for node in compiled.get_runtime_model().get_ops():
            names = node.get_rt_info()["originalLayersNames"].astype(str)
            self._names[node.get_friendly_name()] = tuple(names.split(","))
        # The arrays that the request's tensors share.
        self._job = job
        self._runs: list[Kernels] = []
        self._request.infer()

    def run(self) -> None:
        """Run the model once."""
        self._request.infer()
        self._runs.append(
            [
                (self._names.get(node.node_name, ()), node.real_time.total_seconds())
                for node in self._request.get_profiling_info()
                if node.node_type in _OPENVINO_KINDS and "EXECUTED" in str(node.status)
            ]
        )

    def kernels(self) -> list[Kernels]:
        """Return the kernels of each run."""
        return self._runs

    def close(self) -> None:
        """Do nothing: the request holds no files."""


PROFILERS: dict[str, Callable[[Job], Profiler]] = {
    "onnxruntime": OnnxRuntimeProfile,
    "openvino": OpenVinoProfile,
}


def _loaded(name: str, job: Job) -> Profiler | None:
    try:
        return PROFILERS[name](job)
    except Exception:  # every engine has its own kinds, and may tell its times otherwise one day
        return None


def _medians(runs: Sequence[Kernels]) -> Kernels:
    """Return each kernel with the median of its times."""
    times: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for kernels in runs:
        for names, seconds in kernels:
            times[names].append(seconds)
    return [(names, median(each)) for names, each in times.items()]
