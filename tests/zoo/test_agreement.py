"""Every zoo model agrees with ONNX Runtime, at batch 1 and 3 and at 1 and 2 threads."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import zoo

import tvm_blislike

# Error relative to the largest output (fp32).
TOLERANCE = 1e-5
# Smaller images, where the architecture allows them, keep the slow ONNX import and compilation
# of every layer but shorten the runs; the three smallest networks run at full size.
SMALL = 96
FULL_SIZE = ("resnet18", "mobilenet_v2", "squeezenet1_1")
IMAGES = {"inception_v3": 155}


@pytest.mark.parametrize("name", zoo.names())
def test_agrees_with_onnxruntime(name: str) -> None:
    image = None if name in FULL_SIZE else IMAGES.get(name, SMALL)
    # Each batch size at one thread count: both values of both, without compiling four times.
    for batch, threads in ((1, 2), (3, 1)):
        model = zoo.build(name, batch=batch, image=image)
        _, shape = _input(model)
        data = np.random.default_rng(batch).standard_normal(shape).astype("float32")
        expected = _onnxruntime(model, data)
        (result,) = tvm_blislike.compile(model, threads=threads).run([data]).values()
        error = np.abs(result - expected).max() / np.abs(expected).max()
        assert error <= TOLERANCE, f"{name}, batch {batch}, {threads} threads: {error:.1e}"


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_combination_of_one_model(batch: int, threads: int) -> None:
    model = zoo.build("squeezenet1_1", batch=batch)
    data = np.random.default_rng(7).standard_normal(_input(model)[1]).astype("float32")
    expected = _onnxruntime(model, data)
    (result,) = tvm_blislike.compile(model, threads=threads).run([data]).values()
    assert np.abs(result - expected).max() <= TOLERANCE * np.abs(expected).max()


def _input(model) -> tuple[str, tuple[int, ...]]:
    value = model.graph.input[0]
    return value.name, tuple(d.dim_value for d in value.type.tensor_type.shape.dim)


def _onnxruntime(model, data: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {_input(model)[0]: data})[0]
