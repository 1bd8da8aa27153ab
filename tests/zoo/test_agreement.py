"""Zoo models agree with ONNX Runtime, at batch 1 and 3 and at 1 and 2 threads.

All of them, with batches of each:

    TVM_BLISLIKE_TEST_EFFORT=2 pytest tests/zoo
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import zoo
from effort import EFFORT
from onnx_runtime import exact_session

import tvm_blislike

# Error relative to the largest output (fp32).
TOLERANCE = 1e-5
# Smaller images, where the architecture allows them, keep every layer and shorten the runs; the
# three smallest networks run at full size.
SMALL = 96
FULL_SIZE = ("resnet18", "mobilenet_v2", "squeezenet1_1")
IMAGES = {"inception_v3": 155}
# Relatives of the others, by size or by block: one batch size is enough.
RELATIVES = (
    "resnet34 resnet152 vgg11 vgg13 mobilenet_v3_large efficientnet_b0 mnasnet shufflenet "
    "densenet121 inception_v2 inception_v3 resnet152_v1"
).split()
# Small enough to be compiled for any batch and any number of threads.
FULLY = "squeezenet1_1"
# The blocks of another one more or less often: tried with more effort only.
REPEATED = (
    "resnet34 resnet152 resnet152_v1 resnet50_v1 vgg11 vgg13 squeezenet1_0 mnasnet inception_v2"
).split()
# Kernels of several images, of all algorithms; with more effort every network has them.
SEVERAL_IMAGES = ("resnet18", "mobilenet_v2", "googlenet", FULLY)


def _cases() -> list[tuple[str, int, int]]:
    """Name, batch, threads compiled for; each library then runs with one thread and with two."""
    names = [name for name in zoo.names() if EFFORT > 1 or name not in REPEATED]
    batch_1 = [(name, 1, 2) for name in names]
    several = [name for name in names if EFFORT > 1 or name in SEVERAL_IMAGES]
    batch_3 = [(name, 3, 1) for name in several if name not in RELATIVES]
    return [*batch_1, *batch_3, (FULLY, 1, 1), (FULLY, 3, 2)]


@pytest.mark.parametrize("name, batch, threads", _cases())
def test_agrees_with_onnxruntime(name: str, batch: int, threads: int) -> None:
    image = None if name in FULL_SIZE else IMAGES.get(name, SMALL)
    model = zoo.build(name, batch=batch, image=image)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    data = np.random.default_rng(batch).standard_normal(shape, dtype=np.float32)
    expected = _onnxruntime(model, data)
    compiled = tvm_blislike.compile(model, threads=threads)
    for compiled.threads in (1, 2):
        (result,) = compiled.run([data]).values()
        error = np.abs(result - expected).max() / np.abs(expected).max()
        assert error <= TOLERANCE, f"{compiled.threads} threads: {error:.1e}"


def _onnxruntime(model: onnx.ModelProto, data: np.ndarray) -> np.ndarray:
    session = exact_session(model, optimized=True)
    return session.run(None, {model.graph.input[0].name: data})[0]
