"""What blis_run says when a bundle, an input or an option is wrong; what compile says before."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from emulated_board import Board
from small_models import small_network
from typer.testing import CliRunner, Result

import tvm_blislike
from tvm_blislike.cli.app import app
from tvm_blislike.errors import OutputError, TargetError, ToolchainError
from tvm_blislike.export import runtime_wheel

USAGE, MODEL, INPUT, TARGET, OUTPUT, TOOLCHAIN = 2, 3, 5, 6, 7, 8


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ship") / "bundle"
    return tvm_blislike.compile(small_network(), "cortex-a72", threads=1).bundle(folder).folder


def _wrong(board: Board, bundle: Path, *arguments: object) -> tuple[int, str]:
    program = bundle / "blis_run"
    done = board.run(program, bundle, *map(str, arguments), check=False)
    assert done.stderr.startswith("error: ") or "\nerror: " in done.stderr, done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--speed"], USAGE, "unknown option --speed"),
        (["--repeat", "0"], USAGE, "--repeat takes a number from 1"),
        (["--repeat"], USAGE, "--repeat needs a value"),
        (["--input", "image.npy"], USAGE, "NAME=FILE.npy"),
        (["--input", "picture={good}"], INPUT, "no input named picture"),
        (["--input", "image={none}"], INPUT, "No such file"),
        (["--input", "image={text}"], INPUT, "is no .npy file"),
        (["--input", "image={cut}"], INPUT, "is truncated"),
        (["--input", "image={wide}"], INPUT, "1x3x8x9 float32; the input image is 1x3x8x8 float32"),
        (["--input", "image={double}"], INPUT, "1x3x8x8 float64"),
        (["--input", "image={fortran}"], INPUT, "Fortran order"),
        (["--input", "image={big}"], INPUT, "big-endian"),
        (["--output", "{text}/out"], OUTPUT, "cannot make the folder"),
        (["{none}"], USAGE, "one bundle at a time"),
    ],
)
def test_blis_run_says_what_is_wrong(
    arguments: list[str], code: int, message: str, board: Board, bundle: Path, tmp_path: Path
) -> None:
    good = np.zeros((1, 3, 8, 8), np.float32)
    arrays = {
        "good": good,
        "wide": np.zeros((1, 3, 8, 9), np.float32),
        "double": good.astype("float64"),
        "fortran": np.asfortranarray(np.arange(192, dtype=np.float32).reshape(good.shape)),
        "big": good.astype(">f4"),
    }
    files = {name: tmp_path / f"{name}.npy" for name in (*arrays, "none", "text", "cut")}
    for name, array in arrays.items():
        np.save(files[name], array)
    files["text"].write_text("hello, this is no array")
    files["cut"].write_bytes(files["good"].read_bytes()[:-4])
    filled = [argument.format(**files) for argument in arguments]
    found, text = _wrong(board, bundle, *filled)
    assert found == code
    assert message in text


def test_blis_run_names_what_is_wrong_with_a_bundle(
    board: Board, bundle: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    manifest = (copy / "manifest.json").read_text()
    for text, message in (
        (manifest.replace('"format": 1', '"format": 2'), "another version"),
        (manifest.replace('"threads"', '"thread"'), "has no threads"),
        (manifest[:100], "manifest.json"),
        (manifest.replace('"model.so"', '"other.so"'), "other.so"),
    ):
        (copy / "manifest.json").write_text(text)
        code, found = _wrong(board, copy)
        assert code == MODEL
        assert message in found
    (copy / "manifest.json").unlink()
    assert _wrong(board, copy)[0] == MODEL


def test_full_disk_leaves_no_partial_output(board: Board, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    # A file that grows beyond the limit: as with a full disk, write fails.
    program = [*board.command(bundle / "blis_run", bundle, "--output", tmp_path / "out")]

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

    done = subprocess.run(program, capture_output=True, text=True, check=False, preexec_fn=limited)
    assert done.returncode == OUTPUT, done.stderr
    assert "cannot write" in done.stderr
    assert not list((tmp_path / "out").iterdir())


@pytest.fixture
def network_file(tmp_path: Path) -> Path:
    onnx.save(small_network(), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def _compile(model: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["compile", str(model), *map(str, arguments)])


def test_command_line_writes_a_bundle_and_replaces_it(
    board: Board, network_file: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        result = _compile(network_file, "--target", "cortex-a53", "--bundle", tmp_path / "ship")
        assert result.exit_code == 0, result.output
        assert "for cortex-a53, 4 threads" in result.stdout
        assert "warning" not in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx", "ship"]
    assert "compiled for cortex-a53" in board.run(tmp_path / "ship" / "blis_run").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--target", "cortex-a27", "--bundle", "{new}"], TARGET, "did you mean cortex-a7"),
        (["--target", "apple-m1", "--bundle", "{new}"], TARGET, "a bundle is for Linux boards"),
        (["--target", "cortex-a72", "--bundle", "{full}"], OUTPUT, "holds other files"),
        (["--target", "cortex-a72", "--bundle", "{file}"], OUTPUT, "it is a file"),
        (["--target", "cortex-a72", "--bundle", "{deep}"], OUTPUT, "does not exist"),
        (["--target", "cortex-a72", "-o", "{new}", "--cc", "gcc"], TOOLCHAIN, "gcc"),
        (["--target", "cortex-a72", "-o", "{new}", "--cc", "no-such-gcc"], TOOLCHAIN, "cannot run"),
    ],
)
def test_command_line_says_what_to_change(
    arguments: list[str], code: int, message: str, network_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("kept")
    places = {
        "new": tmp_path / "new",
        "full": tmp_path / "full",
        "file": network_file,
        "deep": tmp_path / "missing" / "new",
    }
    before = sorted(tmp_path.rglob("*"))
    result = _compile(network_file, *(argument.format(**places) for argument in arguments))
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "hint:" in result.stderr or "did you mean" in result.stderr or code == OUTPUT
    assert sorted(tmp_path.rglob("*")) == before


def test_without_a_compiler_the_programs_are_left_to_the_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> list[str]:
        raise ToolchainError("no C compiler found")

    monkeypatch.setattr("tvm_blislike.export.bundle.find_builder", none)
    compiled = tvm_blislike.compile(small_network(), "cortex-a72", threads=1)
    with pytest.warns(UserWarning, match="build it on the board"):
        bundle = compiled.bundle(tmp_path / "ship")
    assert bundle.programs == ()
    assert (tmp_path / "ship" / "src" / "blis_run.cc").is_file()


def test_runtime_that_cannot_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_wheel.platformdirs, "user_cache_path", lambda name: tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ToolchainError, match="PIP_FIND_LINKS") as caught:
        runtime_wheel.runtime_libraries("aarch64")
    assert "apache-tvm==" in str(caught.value)
    assert not list(tmp_path.rglob("*.so"))


def test_no_space_for_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    compiled = tvm_blislike.compile(small_network(), "cortex-a72", threads=1)
    with pytest.raises(OutputError, match="No space left") as caught:
        compiled.bundle(tmp_path / "ship")
    assert "free some space" in (caught.value.hint or "")
    assert not list(tmp_path.iterdir())


def test_a_board_library_is_refused_here(tmp_path: Path) -> None:
    tvm_blislike.compile(small_network(), "cortex-a72", threads=1).export(tmp_path / "net.so")
    with pytest.raises(TargetError, match="compiled for aarch64, this machine is"):
        tvm_blislike.CompiledModel.load(tmp_path / "net.so")
