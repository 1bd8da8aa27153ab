"""Findings and records without any measuring, for the tests of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import native_core
from tvm_blislike.model.validity import core_facts
from tvm_blislike.onnx import frontend
from tvm_blislike.pictures.findings import Attempt, EngineTime, Findings, Layer, Roofs, TuningStep
from tvm_blislike.records import files
from tvm_blislike.records.record import Record
from tvm_blislike.tuning.tasks import tasks_of

UNTUNED = Attempt("conv2d_direct", "14x32", "cold", 0.02, 0.018, True)
ATTEMPTS = (
    UNTUNED,
    Attempt("conv2d_direct", "14x32", "cold", 0.01, 0.02),
    Attempt("conv2d_winograd", "14x32", "cold", 0.008, 0.011),
    Attempt("conv2d_direct", "7x48", "warm", 0.005, 0.02),
    Attempt("conv2d_winograd", "14x32", "model", 0.009, 0.011),
)
LAYERS = (
    Layer(
        1,
        "conv 1x8x16x16 3x3 -> 8 p1,1,1,1",
        2,
        0.7,
        2.4e-3,
        0.02,
        ATTEMPTS,
        ATTEMPTS[-1],
        {"blislike": 0.012, "onnxruntime": 0.03, "openvino": 0.006},
    ),
    Layer(2, "gemm 1x1000x512", 1, 0.2, 1e-3, 2.0, (), None),
    Layer(3, "conv 1x8x16x16 1x1 -> 8", 1, 0.1, 3e-5, 0.01, ATTEMPTS[:1], UNTUNED),
)


def findings(**fields: object) -> Findings:
    """Return the findings of three layers, with some fields replaced."""
    made = Findings(
        model="net.onnx",
        core="some-core",
        threads=1,
        machine="x86_64 Linux",
        versions={"tvm-blislike": "0.1.0"},
        date="2026-01-02T03:04:05.678+00:00",
        records="records.jsonl",
        roofs=Roofs(200.0, {"L1": 400.0, "memory": 10.0}, True),
        layers=LAYERS,
        steps=(TuningStep(0.0, 0.1), TuningStep(2.0, 0.1), TuningStep(5.0, 0.08)),
        engines={
            "blislike": EngineTime("0.1.0", 2.0, 1.9, 2.1),
            "onnxruntime": EngineTime("1.31", 3.0, 2.9, 3.5),
        },
    )
    return replace(made, **fields)


def write_records(model: Path, path: Path, threads: int = 1, seconds: Sequence[float] = ()) -> None:
    """Write a record of each layer of a model for this machine, as the cost model chooses."""
    core = native_core()
    strategy = Strategy(core, threads)
    tasks = tasks_of(frontend.load(model).module, strategy)
    files.append(
        path,
        [
            Record(
                task.workload,
                task.choice.config,
                core.name,
                core_facts(core),
                core.target_config(threads),
                threads,
                tuple(seconds) or (2e-5, 1e-5, 3e-5),
                task.choice.estimate.seconds,
                1e-7,
                model=model.stem,
            )
            for task in tasks
        ],
    )
