"""A bundle for this machine, with the runtime of the installed wheels; what is in the package."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from small_models import small_network, small_reference

import tvm_blislike
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
