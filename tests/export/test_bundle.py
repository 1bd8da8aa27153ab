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
import pytest
from small_models import small_network, small_reference

import tvm_blislike
from tvm_blislike.errors import OutputError
from tvm_blislike.export import bundle, runtime_wheel
from tvm_blislike.hardware import Core

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


def test_licenses_name_what_is_shipped() -> None:
    text = runtime_wheel.licenses()
    assert "Apache License" in text
    for name, version in runtime_wheel.versions().items():
        assert f"{name} {version}: " in text


def test_headers_and_libraries_are_those_installed() -> None:
    for name, path in runtime_wheel.headers().items():
        assert path.as_posix().endswith(name)
        assert path.is_file()
    machine = Core.native().mtriple.partition("-")[0]
    names = [path.name for path in runtime_wheel.runtime_libraries(machine)]
    assert names == ["libtvm_runtime.so", "libtvm_ffi.so"]


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
    sources = {p.relative_to(folder).as_posix() for p in folder.rglob("*.*") if p.is_file()}
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
        bundle.require_bundle(folder, Core.native().target_config())
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_bundle_as_it_was_written_is_replaced(a_bundle: Path, tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "ship"
    shutil.copytree(a_bundle, real)
    (real / "blis_rpc").unlink()
    link.symlink_to("real")
    with bundle._fresh_folder(link) as fresh:
        (fresh / "file").write_text("new")
    assert [path.name for path in real.iterdir()] == ["file"]
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["real", "ship"]


def test_outputs_that_arrive_while_compiling_stay(a_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ship"
    shutil.copytree(a_bundle, folder)
    with (
        pytest.raises(OutputError, match=r"scores\.npy"),
        bundle._fresh_folder(folder) as fresh,
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
        bundle.require_bundle(folder, Core.native().target_config())
    assert sorted(path.name for path in folder.iterdir()) == ["index.html", "manifest.json"]


def test_a_forged_manifest_gives_no_file_away(tmp_path: Path) -> None:
    (tmp_path / "ship").mkdir()
    (tmp_path / "secret").write_text("mine")
    forged = {"format": 1, "versions": {"tvm-blislike": "0.3.0"}}
    forged["files"] = [{"path": "../secret", "bytes": 4}, {"path": "mine", "bytes": 4}]
    (tmp_path / "ship" / "manifest.json").write_text(json.dumps(forged))
    (tmp_path / "ship" / "mine").write_text("mine")
    with pytest.raises(OutputError, match=r"since it was written: mine\n"):
        bundle.require_bundle(tmp_path / "ship", Core.native().target_config())
