"""The engines that `bench` compares, each set to fp32 and a fixed number of threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_blislike.errors import BlislikeError

if TYPE_CHECKING:
    from tvm_blislike.choose.constraints import Constraints
    from tvm_blislike.choose.offers import Predictor
    from tvm_blislike.hardware import Core
    from tvm_blislike.records.book import RecordBook
    from tvm_blislike.runtime.compiled import CompiledModel


class EngineUnavailableError(Exception):
    """The engine is not installed or cannot load this model; the message says which."""


# What OpenVINO may compute in where this library may do so in a precision.
_HINTS = {"": "f32", "fp32": "f32", "bf16": "bf16", "fast": "bf16", "fp16": "f16"}


@dataclass(frozen=True)
class Job:
    """What every engine gets.

    Parameters
    ----------
    path : str
        The ONNX file.
    inputs : mapping of str to array
        Values of all inputs.
    outputs : sequence of str
        Names of the outputs, in the order of the graph.
    threads : int
        Threads to use.
    core : Core
        What blislike and tvm compile for.
    constraints : Constraints, optional
        Limits of blislike's choice; openvino takes over their precision.
    records : path or RecordBook, optional
        What blislike's choice follows.
    learned : path or Predictor, optional
        What corrects blislike's predictions.
    cache : bool
        Whether blislike may open a kept model.
    """

    path: str
    inputs: Mapping[str, np.ndarray]
    outputs: Sequence[str]
    threads: int
    core: Core
    constraints: Constraints | None = None
    records: str | os.PathLike[str] | RecordBook | None = None
    learned: str | os.PathLike[str] | Predictor | None = None
    cache: bool = True


@dataclass(frozen=True)
class Engine:
    """A loaded engine.

    Parameters
    ----------
    run : callable
        Runs the model once on the job's inputs and returns the outputs by name.
    version : str
        Of the engine.
    compiled : CompiledModel, optional
        For engines of this library: the model, for profiles.
    """

    run: Callable[[], dict[str, np.ndarray]]
    version: str
    compiled: CompiledModel | None = None


def load_engine(name: str, job: Job) -> tuple[Engine, dict[str, np.ndarray]]:
    """Load one engine and run it once; return it with its outputs.

    Raises
    ------
    EngineUnavailableError
        When it is not installed or does not take the model. Failures of blislike itself are not
        excused: they come through as they are.
    """
    try:
        engine = ENGINES[name](job)
        return engine, engine.run()
    except (EngineUnavailableError, BlislikeError):
        raise
    except Exception as error:  # every engine has its own kinds
        if name in OWN:
            raise
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise EngineUnavailableError(f"cannot take the model: {reason[0]}") from error


def _blislike(job: Job) -> Engine:
    import tvm_blislike

    shapes = {name: array.shape for name, array in job.inputs.items()}
    compiled = tvm_blislike.compile(
        job.path,
        job.core,
        shapes,
        job.threads,
        constraints=job.constraints,
        records=job.records,
        learned=job.learned,
        cache=job.cache,
    )
    return Engine(lambda: compiled.run(job.inputs), tvm_blislike.__version__, compiled)


def _untuned(job: Job) -> Engine:
    """Leave out the records: what the cost model alone would choose."""
    from tvm_blislike.records.book import RecordBook

    return _blislike(replace(job, records=RecordBook(), learned=None))


def _tvm(job: Job) -> Engine:
    import tvm

    from tvm_blislike.model.report import Report
    from tvm_blislike.onnx import frontend
    from tvm_blislike.runtime.compiled import CompiledModel
    from tvm_blislike.runtime.threads import use_threads

    use_threads(job.threads)
    loaded = frontend.load(job.path, {name: array.shape for name, array in job.inputs.items()})
    target = job.core.target_config(job.threads)
    executable = tvm.compile(loaded.module, tvm.target.Target(target))
    report = Report((), job.core.name, job.threads)
    model = CompiledModel(executable, loaded.inputs, loaded.outputs, target, report)
    return Engine(lambda: model.run(job.inputs), tvm.__version__)


def onnxruntime_options(job: Job) -> Any:
    """Return the options of a session of onnxruntime."""
    ort = _installed("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    return options


def _onnxruntime(job: Job) -> Engine:
    ort, options = _installed("onnxruntime"), onnxruntime_options(job)
    session = ort.InferenceSession(job.path, options, providers=["CPUExecutionProvider"])
    feeds = dict(job.inputs)
    names = list(job.outputs)

    def run() -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, feeds), strict=True))

    return Engine(run, ort.__version__)


def openvino_request(job: Job, more: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return a compiled model of openvino and a request whose inputs are the job's arrays.

    Parameters
    ----------
    job : Job
        The arrays must stay alive as long as the request.
    more : mapping
        Further configuration.
    """
    ov = _installed("openvino")
    core = ov.Core()
    model = core.read_model(job.path)
    model.reshape({name: list(array.shape) for name, array in job.inputs.items()})
    config = {
        "INFERENCE_NUM_THREADS": job.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": True,
        # Left to itself it computes in bf16 where the processor has AMX.
        "INFERENCE_PRECISION_HINT": _HINTS[job.constraints.precision if job.constraints else ""],
        **more,
    }
    compiled = core.compile_model(model, "CPU", config)
    request = compiled.create_infer_request()
    for name, array in job.inputs.items():
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))
    return compiled, request


def _openvino(job: Job) -> Engine:
    ov = _installed("openvino")
    # A shared tensor does not own its memory: `job`, held by `run`, keeps the arrays alive.
    _, request = openvino_request(job, {})

    def run() -> dict[str, np.ndarray]:
        request.infer()
        results = (request.get_output_tensor(i).data for i in range(len(job.outputs)))
        return dict(zip(job.outputs, (np.array(r) for r in results), strict=True))

    return Engine(run, ov.__version__.split("-")[0])


def _ncnn(job: Job) -> Engine:
    """Convert the model by pnnx and load it with all arithmetic and storage in fp32."""
    ncnn = _installed("ncnn")
    _installed("pnnx")
    if any(array.ndim > 3 and array.shape[0] != 1 for array in job.inputs.values()):
        raise EngineUnavailableError("takes one image at a time")
    net = ncnn.Net()
    for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, f"use_{option}", False)
    net.opt.num_threads = job.threads
    with tempfile.TemporaryDirectory() as folder:
        param, weights = _converted(job, Path(folder))
        net.load_param(str(param))
        net.load_model(str(weights))
    feeds = [ncnn.Mat(array.reshape(array.shape[1:])).clone() for array in job.inputs.values()]

    def run() -> dict[str, np.ndarray]:
        with net.create_extractor() as extractor:
            for i, feed in enumerate(feeds):
                extractor.input(f"in{i}", feed)
            results = [extractor.extract(f"out{i}")[1] for i in range(len(job.outputs))]
            # ncnn leaves the batch axis out.
            return {n: np.array(r)[None] for n, r in zip(job.outputs, results, strict=True)}

    return Engine(run, ncnn.__version__)


def _converted(job: Job, folder: Path) -> tuple[Path, Path]:
    """Return the ncnn files that pnnx makes of the model."""
    copy = folder / "model.onnx"
    shutil.copyfile(job.path, copy)
    # Beside the interpreter, for environments that are not activated.
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    tool = shutil.which("pnnx", path=os.pathsep.join(places))
    if tool is None:
        raise EngineUnavailableError("the converter pnnx is not on the PATH")
    done = subprocess.run(
        [tool, copy.name, "fp16=0"], cwd=folder, capture_output=True, text=True, check=False
    )
    files = folder / "model.ncnn.param", folder / "model.ncnn.bin"
    if done.returncode or not all(file.is_file() for file in files):
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise EngineUnavailableError(f"pnnx cannot convert the model: {' '.join(last)}")
    return files


def _installed(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise EngineUnavailableError(f"not installed (pip install {package})") from error


ENGINES: dict[str, Callable[[Job], Engine]] = {
    "blislike": _blislike,
    "untuned": _untuned,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "ncnn": _ncnn,
    "tvm": _tvm,
}
# This library, following the records and not.
OWN = ("blislike", "untuned")
