"""fp16 on the emulated board: micro-kernels, implementations, and a model against fp32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import zoo
from board_kernels import errors, micro_kernel_errors
from board_workloads import random_kernel
from conv_checks import EPILOGUES
from effort import EFFORT, every_second
from emulated_board import Board
from half_models import in_half
from kernel_harness import Product
from small_models import two_convolutions

import tvm_blislike
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, UpdateShape, kernels_for
from tvm_blislike.model.types import Types
from tvm_blislike.schedules import get_implementation

CORE = Core.named("cortex-a76")
OLDER, X86 = Core.named("cortex-a72"), Core.named("haswell")
HALF = [
    "gemm",
    "conv2d_direct",
    "conv2d_depthwise",
    "conv2d_grouped",
    "conv2d_winograd",
    "conv3d_depthwise",
]
# Up to 340 products of values around one, added in fp16: each addition rounds by up to 2 ** -10
# where the sum is 2 to 4 (or less), half of them upwards.
TOLERANCE = 1.5e-2


def _product(kernel: Microkernel, number: int) -> Product:
    """Blocks cut along rows and columns; the ways that A and C lie in memory take turns."""
    row = {"mh": 1, "mw": kernel.mr, "steps": 13}
    shapes = [
        UpdateShape(**row, view="panel"),
        UpdateShape(**row, in_memory=True),
        UpdateShape(**row, sw=2),
    ]
    return Product(kernel, shapes[number % 3], 1, 2 * kernel.mr - 1, kernel.nr + 3)


def test_micro_kernels_agree_with_numpy(board: Board, tmp_path: Path) -> None:
    products = [
        _product(kernel, number)
        for number, kernel in enumerate(kernels_for(CORE, Types.of("float16")))
    ]
    found = micro_kernel_errors(_like(board, CORE), products, CORE, tmp_path)
    assert not {label: error for label, error in found.items() if not error <= 1}


@pytest.mark.parametrize("repeat", range(EFFORT))
@pytest.mark.parametrize("name", HALF)
def test_random_workloads_agree_with_numpy(
    name: str, repeat: int, board: Board, tmp_path: Path
) -> None:
    position = HALF.index(name)
    implementation, threads = get_implementation(name), 1 + position % 2
    kernels = [
        random_kernel(implementation, CORE, threads, s, 900 * position + 50 * repeat + i, "float16")
        for i, s in every_second(list(enumerate(EPILOGUES)), position)
    ]
    found = errors(_like(board, CORE), kernels, CORE, threads, tmp_path)
    assert not {k.label: e for k, e in zip(kernels, found, strict=True) if not e <= TOLERANCE}


def test_a_model_agrees_with_fp32(board: Board, tmp_path: Path) -> None:
    model = zoo.build("mobilenet_v2", image=64)
    image = np.random.default_rng(3).standard_normal((1, 3, 64, 64)).astype(np.float16)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"input": image.astype(np.float32)})
    compiled = tvm_blislike.compile(in_half(model), target=CORE.name, threads=1)
    layers = [layer for layer in compiled.explain().layers if layer.is_chosen]
    assert {layer.implementation for layer in layers} == {*HALF} - {
        "conv2d_grouped",
        "conv2d_winograd",
        "conv3d_depthwise",
    }
    called = [layer.microkernel for layer in layers if layer.microkernel]
    assert called and all(name.startswith("neon_f16_") for name in called)
    compiled.bundle(tmp_path / "bundle")
    file = tmp_path / "image.npy"
    np.save(file, image)
    program = [tmp_path / "bundle" / "blis_run", tmp_path / "bundle"]
    _like(board, CORE).run(*program, "--input", f"input={file}", "--output", tmp_path / "out")
    found = np.load(tmp_path / "out" / "logits.npy")
    assert found.dtype == np.float16
    assert np.abs(found - expected).max() <= 1e-2 * np.abs(expected).max()


@pytest.mark.parametrize("core", [OLDER, X86], ids=lambda core: core.name)
def test_other_cores_compute_in_fp32(core: Core) -> None:
    compiled = tvm_blislike.compile(in_half(two_convolutions()), target=core, threads=1)
    layers = [layer for layer in compiled.explain().layers if layer.is_chosen]
    assert layers and {layer.types[2] for layer in layers} == {"float32"}


def _like(board: Board, core: Core) -> Board:
    """Return a board that knows only the instructions of a core."""
    return replace(board, cpu=core.mcpu)
