"""A bundle for this machine, with the runtime of the installed wheels; what is in the package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import small_network, small_reference
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike.cli.app import app
from tvm_blislike.errors import OutputError, UnsupportedOperatorError
from tvm_blislike.export import bundle, checksum, runtime_wheel
from tvm_blislike.hardware import native_core
from tvm_blislike.tvm_seams import wheels

ROOT = Path(__file__).parents[2]


def test_bundle_for_this_machine_runs_here(tmp_path: Path) -> None:
    image = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype("float32")
    np.save(tmp_path / "image.npy", image)
    compiled = tvm_blislike.compile(small_network(), threads=1)
    written = compiled.bundle(tmp_path / "ship")
    assert written.programs == ("blis_run", "blis_rpc")
    assert written.bytes == sum(p.stat().st_size for p in written.folder.rglob("*") if p.is_file())
    arguments = ["--input", f"image={tmp_path / 'image.npy'}", "--output", str(tmp_path / "out")]
    # Without the folder's name: the program knows where it lies.
    subprocess.run([str(written.folder / "blis_run"), *arguments], check=True, cwd=tmp_path)
    found = np.load(tmp_path / "out" / "scores.npy")
    np.testing.assert_allclose(found, small_reference(image), rtol=1e-5, atol=1e-5)


def test_failure_leaves_the_older_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = tvm_blislike.compile(small_network(), threads=1)
    compiled.bundle(tmp_path / "ship")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "ship").rglob("*")}

    def fails(*_: object) -> None:
        raise tvm_blislike.BlislikeError("stop")

    monkeypatch.setattr(bundle.manifest, "write", fails)
    with pytest.raises(tvm_blislike.BlislikeError, match="stop"):
        compiled.bundle(tmp_path / "ship")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "ship").rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["ship"]


def _value(name: str, shape: list, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


NONZERO = helper.make_node("NonZero", ["x"], ["y"])
NO_BUNDLES = {
    "NonZero": ([NONZERO], _value("y", [2, None], TensorProto.INT64), "nonzero.*y [?]x[?] int64"),
    "Unique": (
        [helper.make_node("Unique", ["x"], ["y"])],
        _value("y", [None]),
        r"unique.*y [?] float32",
    ),
    # Nothing outside tells of what is inside.
    "inner NonZero": (
        [NONZERO, helper.make_node("ReduceSum", ["y"], ["z"], keepdims=0)],
        _value("z", [], TensorProto.INT64),
        r"nonzero in Python only\n",
    ),
    "bfloat16": (
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)],
        _value("y", [3, 4], TensorProto.BFLOAT16),
        "y 3x4 bfloat16 cannot be a .npy file",
    ),
    "nine dimensions": (
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        _value("y", [1] * 7 + [3, 4]),
        "y 1x1x1x1x1x1x1x3x4 float32 has more than 8 dimensions",
    ),
}


@pytest.mark.parametrize("name", NO_BUNDLES)
def test_what_no_board_could_run_is_refused(name: str, tmp_path: Path) -> None:
    """At once rather than by `blis_run`; as a library it may well run here."""
    nodes, output, message = NO_BUNDLES[name]
    shape = numpy_helper.from_array(np.array([1] * 7 + [3, 4]), "shape")
    inputs = [_value("x", [4] if name == "Unique" else [3, 4])]
    graph = helper.make_graph(nodes, "few", inputs, [output], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = tvm_blislike.compile(model, threads=1)
    with pytest.raises(UnsupportedOperatorError, match=message) as caught:
        compiled.bundle(tmp_path / "ship")
    assert "write a library with -o" in (caught.value.hint or "")
    assert not list(tmp_path.iterdir())
    onnx.save(model, tmp_path / "net.onnx")
    arguments = ["compile", f"{tmp_path}/net.onnx", "--bundle", f"{tmp_path}/ship"]
    result = CliRunner().invoke(app, [*arguments, "--threads", "1"])
    assert result.exit_code == UnsupportedOperatorError.exit_code
    assert not (tmp_path / "ship").exists()


def test_the_json_library_is_that_of_its_authors() -> None:
    """SHA-256 of the files of cjson_1.7.19.orig.tar.gz, whose own sum NOTICE tells."""
    sums = {
        "cJSON.c": "298581a04a36c0165da4b0aade235c23088cb2faa58651d720ea2f3706ed0b0d",
        "cJSON.h": "25b0145150d500498e4d209cec69c18c42cf818bffcc54690be3b895a2a16dee",
        "LICENSE": "a36dda207c36db5818729c54e7ad4e8b0c6fba847491ba64f372c1a2037b6d5c",
    }
    folder = bundle.SOURCES / "cjson"
    assert {path.name: checksum.sha256(path) for path in folder.iterdir()} == sums


def test_licenses_name_what_is_shipped() -> None:
    text = runtime_wheel.licenses()
    assert "Apache License" in text
    for name, version in runtime_wheel.versions().items():
        assert f"{name} {version}: " in text


def test_headers_and_libraries_are_those_installed() -> None:
    for name, path in wheels.headers().items():
        assert path.as_posix().endswith(name)
        assert path.is_file()
    machine = native_core().mtriple.partition("-")[0]
    names = [path.name for path in runtime_wheel.runtime_libraries(machine)]
    assert names == ["libtvm_runtime.so", "libtvm_runtime_extra.so", "libtvm_ffi.so"]


def test_what_sorts_is_shipped_where_something_sorts(tmp_path: Path) -> None:
    node = helper.make_node("TopK", ["x", "k"], ["y", "places"], axis=1)
    outputs = [_value("y", [3, 2]), _value("places", [3, 2], TensorProto.INT64)]
    k = numpy_helper.from_array(np.array([2], "int64"), "k")
    graph = helper.make_graph([node], "top", [_value("x", [3, 7])], outputs, [k])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    tvm_blislike.compile(model, threads=1).bundle(tmp_path / "sorts")
    tvm_blislike.compile(small_network(), threads=1).bundle(tmp_path / "does not")
    both = {"libtvm_runtime.so", "libtvm_ffi.so"}
    shipped = [
        {p.name for p in tmp_path.glob(f"{name}/lib/*.so")} for name in ("sorts", "does not")
    ]
    assert shipped == [both | {"libtvm_runtime_extra.so"}, both]
    x = np.random.default_rng(1).standard_normal((3, 7)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    arguments = ["--input", f"x={tmp_path / 'x.npy'}", "--output", str(tmp_path / "out")]
    subprocess.run([str(tmp_path / "sorts" / "blis_run"), *arguments], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), -np.sort(-x)[:, :2])


def test_sources_are_in_the_wheel(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    copied = tmp_path / "copy"
    copied.mkdir()
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in files.stdout.split():
        if (ROOT / name).is_file() and not name.startswith(("tests/", "benchmarks/", "examples/")):
            (copied / name).parent.mkdir(parents=True, exist_ok=True)
            (copied / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([*command, str(copied)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.rpartition("tvm_blislike/export/")[2] for name in archive.namelist()}
    folder = ROOT / "tvm_blislike" / "export"
    sources = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert {name for name in sources if "__pycache__" not in name} <= packed


@pytest.fixture(scope="module")
def a_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, to be copied by each test."""
    folder = tmp_path_factory.mktemp("bundles") / "ship"
    tvm_blislike.compile(small_network(), threads=1).bundle(folder)
    return folder


def _names_tool(folder: Path) -> str:
    (folder / "blis_run").write_bytes((folder / "blis_run").read_bytes() + b"\0")
    return "blis_run"


def _same_size(folder: Path) -> str:
    library = bytearray((folder / "model.so").read_bytes())
    library[-1] ^= 1
    (folder / "model.so").write_bytes(library)
    return "model.so"


def _results(folder: Path) -> str:
    (folder / "results").mkdir()
    np.save(folder / "results" / "scores.npy", np.zeros(3))
    np.save(folder / "results" / "boxes.npy", np.zeros(3))
    return "results"


def _deeper(folder: Path) -> str:
    (folder / "src" / "notes.txt").write_text("mine")
    return "src/notes.txt"


def _empty_folder(folder: Path) -> str:
    (folder / "lib" / "build").mkdir()
    return "lib/build"


def _moved_away(folder: Path) -> str:
    (folder / "model.so").rename(folder.with_name("model.so"))
    (folder / "model.so").symlink_to(folder.with_name("model.so"))
    return "model.so"


def _edited(folder: Path) -> str:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"threads": 1', '"threads": 2'))
    return "manifest.json"


@pytest.mark.parametrize(
    "change",
    [_names_tool, _same_size, _results, _deeper, _empty_folder, _moved_away, _edited],
)
def test_what_a_user_added_or_changed_in_a_bundle_stays(
    change: Callable[[Path], str], a_bundle: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "ship"
    shutil.copytree(a_bundle, folder)
    named = change(folder)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(OutputError, match=rf"since it was written: {named}\n"):
        bundle.require_bundle(folder, native_core().target_config())
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_bundle_as_it_was_written_is_replaced(a_bundle: Path, tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "ship"
    shutil.copytree(a_bundle, real)
    (real / "blis_rpc").unlink()
    link.symlink_to("real")
    with bundle.fresh_folder(link) as fresh:
        (fresh / "file").write_text("new")
    assert [path.name for path in real.iterdir()] == ["file"]
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["real", "ship"]


def test_outputs_that_arrive_while_compiling_stay(a_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ship"
    shutil.copytree(a_bundle, folder)
    with (
        pytest.raises(OutputError, match=r"scores\.npy"),
        bundle.fresh_folder(folder) as fresh,
    ):
        (fresh / "file").write_text("new")
        (folder / "scores.npy").write_text("mine")
    assert (folder / "scores.npy").read_text() == "mine"
    assert (folder / "model.so").is_file()


MANIFESTS = {
    "of a web application": '{"name": "app", "icons": []}',
    "with the same fields": '{"format": 1, "files": [], "versions": {}}',
    "without names": '{"format": 1, "files": [1], "versions": {"tvm-blislike": "0.3.0"}}',
    "no object": "[]",
    "no JSON": "hello",
    "no text": "\udcff",
    "too deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", MANIFESTS.values(), ids=MANIFESTS)
def test_a_folder_with_another_manifest_is_no_bundle(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "www"
    folder.mkdir()
    (folder / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    (folder / "index.html").write_text("mine")
    with pytest.raises(OutputError, match="the folder holds other files"):
        bundle.require_bundle(folder, native_core().target_config())
    assert sorted(path.name for path in folder.iterdir()) == ["index.html", "manifest.json"]


def test_a_forged_manifest_gives_no_file_away(tmp_path: Path) -> None:
    (tmp_path / "ship").mkdir()
    (tmp_path / "secret").write_text("mine")
    forged = {"format": 1, "versions": {"tvm-blislike": "0.3.0"}}
    forged["files"] = [{"path": "../secret", "bytes": 4}, {"path": "mine", "bytes": 4}]
    (tmp_path / "ship" / "manifest.json").write_text(json.dumps(forged))
    (tmp_path / "ship" / "mine").write_text("mine")
    with pytest.raises(OutputError, match=r"since it was written: mine\n"):
        bundle.require_bundle(tmp_path / "ship", native_core().target_config())
