"""`tvm_blislike.compile` takes programs of `torch.export`."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from blocks import AttentionBlock, MobileBlock, ResidualBlock, settled
from torch import nn

import tvm_blislike
from tvm_blislike.errors import ToolchainError, UnsupportedOperatorError
from tvm_blislike.onnx.exported import to_onnx

BLOCKS = {ResidualBlock: (1, 16, 12, 10), MobileBlock: (1, 16, 12, 10), AttentionBlock: (2, 9, 32)}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_program_is_computed_as_by_torch(block: type[nn.Module]) -> None:
    module, values = settled(block()), torch.randn(BLOCKS[block])
    model = tvm_blislike.compile(torch.export.export(module, (values,)), threads=1)
    (result,) = model.run([values.numpy()]).values()
    with torch.no_grad():
        wanted = module(values).numpy()
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_it_is_the_same_model_as_its_onnx_file(tmp_path: Path) -> None:
    module, values = settled(ResidualBlock()), torch.randn(1, 16, 12, 10)
    torch.onnx.export(module, (values,), tmp_path / "net.onnx", dynamo=True)
    file = tvm_blislike.compile(tmp_path / "net.onnx", threads=1, cache=False)
    program = tvm_blislike.compile(torch.export.export(module, (values,)), threads=1)
    assert file.explain().layers == program.explain().layers
    results = [next(iter(model.run([values]).values())) for model in (file, program)]
    np.testing.assert_array_equal(*results)


def test_sizes_that_a_program_leaves_open() -> None:
    module = settled(ResidualBlock())
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        module, (torch.randn(2, 16, 8, 8),), dynamic_shapes={"image": {0: batch}}
    )
    model = tvm_blislike.compile(program, shapes={"image": (3, 16, 8, 8)}, threads=1)
    values = torch.randn(3, 16, 8, 8)
    (result,) = model.run({"image": values.numpy()}).values()
    with torch.no_grad():
        np.testing.assert_allclose(result, module(values).numpy(), rtol=1e-4, atol=1e-3)


def test_a_program_that_writes_into_its_buffers_is_refused() -> None:
    program = torch.export.export(ResidualBlock().train(), (torch.randn(1, 16, 8, 8),))
    with pytest.raises(UnsupportedOperatorError, match=r"writes into first_norm.*\n.*model.eval"):
        tvm_blislike.compile(program, threads=1)


def test_an_operator_that_onnx_lacks_is_named() -> None:
    class Inverse(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return torch.special.erfinv(values)

    program = torch.export.export(Inverse(), (torch.rand(3),))
    with pytest.raises(UnsupportedOperatorError, match="erf_inv"):
        tvm_blislike.compile(program, threads=1)


def test_the_exporter_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    program = torch.export.export(nn.Linear(4, 3), (torch.randn(2, 4),))
    capfd.readouterr()
    level = logging.getLogger("torch.onnx").level
    assert isinstance(to_onnx(program), onnx.ModelProto)
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("torch.onnx").level == level


def test_without_onnxscript_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(nn.Linear(4, 3), (torch.randn(2, 4),))

    def fails(*_arguments: object, **_options: object) -> None:
        raise ModuleNotFoundError("No module named 'onnxscript'")

    monkeypatch.setattr(torch.onnx, "export", fails)
    with pytest.raises(ToolchainError, match=r"onnxscript.*\n.*tvm-blislike\[torch\]"):
        tvm_blislike.compile(program, threads=1)
