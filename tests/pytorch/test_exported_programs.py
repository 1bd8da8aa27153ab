"""`tvm_blislike.compile` takes programs of `torch.export`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from blocks import AttentionBlock, MobileBlock, ResidualBlock, settled
from torch import nn

import tvm_blislike
from tvm_blislike.errors import ToolchainError, UnsupportedOperatorError
from tvm_blislike.onnx.exported import digest_of, to_onnx

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


class Scaled(nn.Module):
    """A linear layer whose results are scaled by a number, and by a buffer that is not kept."""

    def __init__(self, factor: float = 2.0, buffer: float = 3.0) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(4, 3), factor
        nn.init.constant_(self.linear.weight, 0.5)
        nn.init.constant_(self.linear.bias, 0.25)
        self.register_buffer("scale", torch.tensor(buffer), persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.linear(values) * self.factor * self.scale


def program_of(module: nn.Module, rows: int = 2, dynamic: bool = False) -> object:
    dims = ({0: torch.export.Dim("rows")},) if dynamic else None
    return torch.export.export(module, (torch.ones(rows, 4),), dynamic_shapes=dims)


def test_the_digest_of_a_program_is_that_of_what_it_computes() -> None:
    other = Scaled()
    with torch.no_grad():
        other.linear.bias[1] = 0.5
    programs = [
        program_of(Scaled()),
        program_of(Scaled(2.5)),
        program_of(Scaled(buffer=4.0)),
        program_of(other),
        program_of(Scaled(), rows=3),
        program_of(Scaled(), rows=3, dynamic=True),
        program_of(Scaled().linear),
    ]
    digests = [digest_of(program) for program in programs]
    assert None not in digests and len(set(digests)) == len(digests)
    assert digest_of(program_of(Scaled())) == digests[0]


def test_operators_of_others_have_no_digest() -> None:
    with torch.library._scoped_library("blislike_test", "FRAGMENT") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
        library._register_fake("double", torch.empty_like)

        class Doubled(nn.Module):
            def forward(self, values: torch.Tensor) -> torch.Tensor:
                return torch.ops.blislike_test.double(values)

        assert digest_of(program_of(Doubled())) is None


_IN_A_PROCESS = """
import sys, torch, tvm_blislike
from tvm_blislike import api

torch.manual_seed(0)
torch.set_num_threads(1)
module = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU()).eval()
seen, compile_with = [], api.compile_with
api.compile_with = lambda *given: (seen.append(given), compile_with(*given))[1]
options = {"cache": sys.argv[1] == "cache"}
with torch.no_grad():
    image = torch.randn(1, 3, 9, 9)
    result = torch.compile(module, backend="tvm_blislike", options=options)(image)
    assert torch.allclose(result, module(image), rtol=1e-4, atol=1e-5)
print(len(seen))
"""


def test_another_process_finds_what_torch_compiled(tmp_path: Path) -> None:
    environment = {**os.environ, "TVM_BLISLIKE_CACHE": str(tmp_path / "kept")}

    def compilations(cache: str = "cache") -> int:
        command = [sys.executable, "-c", _IN_A_PROCESS, cache]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert [compilations("none"), compilations(), compilations(), compilations("none")] == (
        [1, 1, 0, 1]
    )
    environment["TVM_BLISLIKE_CACHE"] = "0"
    assert compilations() == 1
