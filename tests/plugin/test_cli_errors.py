"""Bad input on the command line: one clear message, the documented code, nothing left behind."""

import os
import platform
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import float_input, make_model, small_network
from typer.testing import CliRunner

from tvm_blislike.cli.app import app
from tvm_blislike.hardware.machine import architecture
from tvm_blislike.runtime import library


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with good and bad files; every case names them relative to it."""
    path = tmp_path_factory.mktemp("files")
    model = small_network()
    onnx.save(model, path / "net.onnx")
    (path / "text.onnx").write_text("hello")
    (path / "empty.onnx").write_bytes(b"")
    (path / "cut.onnx").write_bytes(model.SerializeToString()[:300])
    onnx.save(small_network("N", "S"), path / "symbolic.onnx")
    onnx.save(_two_symbolic_inputs(), path / "two.onnx")
    model.graph.node[1].op_type = "Strange"
    onnx.save(model, path / "strange.onnx")
    np.save(path / "float64.npy", np.zeros((1, 3, 8, 8)))
    np.save(path / "small.npy", np.zeros((1, 3, 7, 7), "float32"))
    np.save(path / "good.npy", np.zeros((1, 3, 8, 8), "float32"))
    np.savez(path / "several.npy.npz", a=np.zeros(1))
    np.save(path / "object.npy", np.array([{}], dtype=object))
    (path / "text.npy").write_text("hello")
    for name, data in BAD_ARRAYS.items():
        (path / name).write_bytes(data)
    (path / "text.so").write_text("hello")
    machine = (62 if FOREIGN == "haswell" else 183).to_bytes(2, "little")
    (path / "foreign.so").write_bytes(b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + machine + bytes(44))
    (path / "broken.toml").write_text("name = ")
    (path / "partial.toml").write_text('name = "mine"\n')
    (path / "directory.so").mkdir()
    return path


def _two_symbolic_inputs() -> onnx.ModelProto:
    node = onnx.helper.make_node("Concat", ["left", "right"], ["y"], axis=0)
    inputs = [float_input("left", ["A", 4]), float_input("right", ["B", 4])]
    return make_model([node], inputs, [float_input("y", ["C", 4])], [])


def _npy(header: bytes, version: int = 1, size: int | None = None) -> bytes:
    """Return the beginning of a .npy file; `size` is what it says of its header's length."""
    length = (len(header) if size is None else size).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header


def _header(shape: str) -> bytes:
    return f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()


BAD_ARRAYS = {
    "zip.npy": b"PK\x03\x04" + bytes(40),
    "cut.npy": _npy(_header("(1, 3, 8, 8)"))[:-9],
    "open.npy": _npy(b"{'descr': '<f4', 'shape': (1,\n"),
    "nested.npy": _npy(b"(" * 5000),
    "keys.npy": _npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 1: 2}\n"),
    "bytes.npy": _npy(b"\xff\xfe{'descr'\n"),
    "header.npy": _npy(b"x" * 100, 2, 0xFFFFFFFF),
    "long.npy": _npy(_header("(1, 3, 8, 8)") + b" " * 20_000),
    "bool.npy": _npy(_header("(True,)")) + b"abcd",
    "index.npy": _npy(_header(f"({10**30},)")),
    "memory.npy": _npy(_header(f"({10**15},)")),
}

# A core of the architecture that this machine has not.
FOREIGN = "haswell" if architecture(platform.machine()) == "aarch64" else "cortex-a72"

CASES = {
    # name: (arguments, exit code, parts of the message)
    "no file": ("compile none.onnx", 3, ["none.onnx: no such file"]),
    "text": ("compile text.onnx", 3, ["text.onnx is not a complete ONNX"]),
    "empty": ("run empty.onnx", 3, ["empty.onnx is not a complete ONNX"]),
    "truncated": ("explain cut.onnx", 3, ["cut.onnx is not a complete ONNX"]),
    "truncated bench": ("bench cut.onnx", 3, ["cut.onnx is not a complete ONNX"]),
    "no library": ("run text.so", 3, ["text.so is no shared library"]),
    "missing library": ("run none.so", 3, ["none.so cannot be read"]),
    "operator": ("compile strange.onnx", 4, ["Strange", "'relu0'"]),
    "symbolic": ("compile symbolic.onnx", 5, ["image (Nx3xSxS)", "--shape image="]),
    "two symbolic": ("explain two.onnx", 5, ["left (Ax4)", "right (Bx4)"]),
    "one of two": ("explain two.onnx --shape left=1x4", 5, ["right (Bx4)"]),
    "symbolic bench": ("bench symbolic.onnx", 5, ["image (Nx3xSxS)"]),
    "shape name": ("compile net.onnx --shape imag=1x3x8x8", 5, ["'imag'", "did you mean image?"]),
    "shape size": (
        "compile net.onnx --shape image=1x4x8x8",
        5,
        ["1x4x8x8 does not fit", "1x3x8x8"],
    ),
    "shape rank": ("compile symbolic.onnx --shape image=1x3x8", 5, ["does not fit", "Nx3xSxS"]),
    "shape syntax": ("compile net.onnx --shape image:1x3", 2, ["NAME=1x3x224x224"]),
    "input name": ("run net.onnx --input img=good.npy", 5, ["'img'", "image"]),
    "input shape": ("run net.onnx --input image=small.npy", 5, ["1x3x7x7", "1x3x8x8"]),
    "input type": ("run net.onnx --input image=float64.npy", 5, ["float64", "float32"]),
    "input of bench": ("bench net.onnx --input image=float64.npy", 5, ["float64", "float32"]),
    "input file": ("run net.onnx --input image=none.npy", 5, ["none.npy", "No such file"]),
    "input text": ("run net.onnx --input image=text.npy", 5, ["text.npy is no .npy file"]),
    "input several": ("run net.onnx --input image=several.npy.npz", 5, ["several arrays"]),
    "input objects": ("run net.onnx --input image=object.npy", 5, ["object.npy is no .npy file"]),
    **{
        name: (f"run net.onnx --input image={name}", 5, [f"input image: {name}"])
        for name in BAD_ARRAYS
    },
    "input syntax": ("run net.onnx --input image", 2, ["NAME=FILE.npy"]),
    "target": ("compile net.onnx --target hasswell", 6, ["'hasswell'", "did you mean haswell"]),
    "target of bench": ("bench net.onnx --target zen9", 6, ["'zen9'", "zen4"]),
    "target of run": ("run net.onnx --target cortex-a9 --threads 1", 6, ["'cortex-a9'"]),
    "target elsewhere": (f"run net.onnx --target {FOREIGN}", 6, ["cannot run here"]),
    "target of bench elsewhere": (f"bench net.onnx --target {FOREIGN}", 6, ["cannot run here"]),
    "library elsewhere": ("run foreign.so", 6, ["foreign.so was compiled for", "this machine"]),
    "target file": ("compile net.onnx --target none.toml", 6, ["none.toml"]),
    "target syntax": ("compile net.onnx --target broken.toml", 6, ["broken.toml"]),
    "target field": ("compile net.onnx --target partial.toml", 6, ["partial.toml", "missing"]),
    "output folder": ("compile net.onnx -o none/net.so", 7, ["none/net.so", "does not exist"]),
    "output is folder": ("compile net.onnx -o directory.so", 7, ["it is a directory"]),
    "output in file": ("compile net.onnx -o text.onnx/net.so", 7, ["text.onnx/net.so"]),
    "results of no model": ("run none.onnx --output results", 3, ["none.onnx: no such file"]),
    "report of no records": (
        "report net.onnx -o page --records none.jsonl",
        5,
        ["none.jsonl does not exist", "tvm-blislike tune"],
    ),
    "results in file": ("run net.onnx --output text.onnx", 7, ["text.onnx"]),
    "bench json": ("bench net.onnx --json none/b.json", 7, ["none/b.json"]),
    "probe toml": ("probe -o none/core.toml", 7, ["none/core.toml"]),
    "threads": ("compile net.onnx --threads 0", 2, ["--threads"]),
    "engine": ("bench net.onnx --engines onnxrt", 2, ["'onnxrt'", "did you mean onnxruntime?"]),
    "command": ("compil net.onnx", 2, ["compil"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, code, parts = CASES[case]
    monkeypatch.chdir(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    result = CliRunner().invoke(app, arguments.split())
    message = " ".join(result.stderr.split())
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    for part in parts:
        assert part in message
    assert "Traceback" not in message
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("name", ["input name", "input shape", "input type"])
def test_arrays_are_checked_before_anything_is_compiled(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(*_: object, **__: object) -> None:
        raise AssertionError("compiled first")

    monkeypatch.chdir(folder)
    monkeypatch.setattr("tvm_blislike.cli.commands.compiled_model", compiled)
    result = CliRunner().invoke(app, CASES[name][0].split())
    assert result.exit_code == CASES[name][1]


def test_shape_of_a_library_cannot_be_changed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "net.so")
    assert CliRunner().invoke(app, ["compile", str(folder / "net.onnx"), "-o", out]).exit_code == 0
    result = CliRunner().invoke(app, ["run", out, "--shape", "image=2x3x8x8"])
    assert result.exit_code == 2
    assert "fixed in a compiled library" in result.stderr


def test_missing_compiler_is_reported_before_compiling(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    out = str(tmp_path / "net.so")
    result = CliRunner().invoke(app, ["compile", str(folder / "net.onnx"), "-o", out])
    assert result.exit_code == 8
    assert "pip install ziglang" in result.stderr
    assert not os.listdir(tmp_path)


def test_failing_linker_leaves_no_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    out = str(tmp_path / "net.so")
    result = CliRunner().invoke(app, ["compile", str(folder / "net.onnx"), "-o", out])
    assert result.exit_code == 8
    assert not os.listdir(tmp_path)
    assert library.is_library(out)
