"""A library that was changed since it was written is refused before any of its code is loaded."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from small_models import small_network
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike.cli.app import app
from tvm_blislike.errors import ModelError, TargetError
from tvm_blislike.export.link import find_builder
from tvm_blislike.hardware import native_core

# How much of a library is overwritten: one bit, a few bytes, a disk's sector, a page.
LENGTHS = (0, 1, 8, 512, 4096)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "net.so"
    tvm_blislike.compile(small_network(), threads=1).export(path)
    return path


def _overwritten(content: bytes, rng: np.random.Generator, length: int) -> bytes:
    """Return the content with one bit turned, or `length` bytes replaced by others."""
    start = int(rng.integers(len(content)))
    old = np.frombuffer(content[start : start + max(length, 1)], np.uint8)
    turned = 1 << rng.integers(8) if length == 0 else rng.integers(1, 256, len(old))
    new = (old ^ np.asarray(turned, np.uint8)).tobytes()
    return content[:start] + new + content[start + len(new) :]


@pytest.mark.parametrize("length", LENGTHS)
def test_libraries_with_overwritten_bytes_are_refused(
    length: int, exported: Path, tmp_path: Path
) -> None:
    content, path = exported.read_bytes(), tmp_path / "changed.so"
    rng = np.random.default_rng(length)
    for _ in range(30):
        path.write_bytes(_overwritten(content, rng, length))
        with pytest.raises((ModelError, TargetError), match=r"changed\.so"):
            tvm_blislike.CompiledModel.load(path)


@pytest.mark.parametrize("removed", [1, 40, 84, 85, 86, 200])
def test_libraries_whose_end_is_missing_are_refused(
    removed: int, exported: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cut.so"
    path.write_bytes(exported.read_bytes()[:-removed])
    with pytest.raises(ModelError, match=r"ends without a checksum|is truncated"):
        tvm_blislike.CompiledModel.load(path)


def test_more_at_the_end_is_a_change(exported: Path, tmp_path: Path) -> None:
    path = tmp_path / "longer.so"
    path.write_bytes(exported.read_bytes() + b"\n")
    with pytest.raises(ModelError, match="ends without a checksum"):
        tvm_blislike.CompiledModel.load(path)


def test_anyone_can_compute_it_again(exported: Path) -> None:
    """The command of the documentation."""
    command = f"head -c -85 {exported} | sha256sum; tail -c 85 {exported}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    computed, written = done.stdout.splitlines()
    assert written == f"tvm-blislike sha256 {computed.split()[0]}"


def test_no_code_runs_before_the_check(tmp_path: Path) -> None:
    """Code that runs while a library is loaded: that of a constructor."""
    marker, library = tmp_path / "ran", tmp_path / "eager.so"
    (tmp_path / "eager.c").write_text(
        "#include <fcntl.h>\n__attribute__((constructor)) static void run(void)"
        f'{{ open("{marker}", O_CREAT | O_WRONLY, 0600); }}\n'
    )
    compiler = [*find_builder(native_core().target_config()), "-shared", "-fPIC"]
    subprocess.run([*compiler, str(tmp_path / "eager.c"), "-o", str(library)], check=True)
    with pytest.raises(ModelError, match="ends without a checksum"):
        tvm_blislike.CompiledModel.load(library)
    assert not marker.exists()
    with pytest.raises(ModelError):
        tvm_blislike.CompiledModel.load(library, verify=False)
    assert marker.exists()


def test_unchecked_when_asked_to(exported: Path, tmp_path: Path) -> None:
    """What older versions wrote, and what `strip` leaves, has no checksum."""
    path = tmp_path / "older.so"
    path.write_bytes(exported.read_bytes()[:-85])
    loaded = tvm_blislike.CompiledModel.load(path, verify=False)
    image = np.ones((1, 3, 8, 8), np.float32)
    expected = tvm_blislike.CompiledModel.load(exported).run(image)["scores"]
    assert np.array_equal(loaded.run(image)["scores"], expected)


def test_the_commands_check_and_say_how_not_to(exported: Path, tmp_path: Path) -> None:
    path, model = tmp_path / "older.so", tmp_path / "net.onnx"
    path.write_bytes(exported.read_bytes()[:-85])
    model.write_bytes(small_network().SerializeToString())
    for command in ("run", "explain"):
        refused = CliRunner().invoke(app, [command, str(path)])
        assert refused.exit_code == ModelError.exit_code
        assert "ends without a checksum" in refused.stderr
        assert "--no-verify" in refused.stderr
        assert CliRunner().invoke(app, [command, str(path), "--no-verify"]).exit_code == 0
        senseless = CliRunner().invoke(app, [command, str(model), "--no-verify"])
        assert senseless.exit_code == 2
