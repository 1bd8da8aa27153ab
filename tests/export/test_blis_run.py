"""blis_run against files that lie: built with sanitizers, on this machine."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sanitized
from corpus import changed, hostile_manifests
from effort import EFFORT
from sanitized import Programs
from small_models import small_reference

MODEL, INPUT = 3, 5
IMAGE = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype("float32")


@pytest.fixture
def programs(good_bundle: Programs, tmp_path: Path) -> Programs:
    """A copy of the bundle that a test may damage."""
    folder = tmp_path / "ship"
    # Not the runtime: it is large.
    shutil.copytree(good_bundle.folder, folder, ignore=shutil.ignore_patterns("lib", "src"))
    (folder / "lib").symlink_to(good_bundle.folder / "lib")
    (folder / "src").symlink_to(good_bundle.folder / "src")
    return Programs(folder, good_bundle.address)


def _manifest(programs: Programs) -> dict[str, Any]:
    return json.loads((programs.folder / "manifest.json").read_text())


def _with_manifest(programs: Programs, text: str | bytes) -> subprocess.CompletedProcess[str]:
    """Run with another manifest; where that succeeds, the output is right."""
    content = text if isinstance(text, bytes) else text.encode()
    (programs.folder / "manifest.json").write_bytes(content)
    here = programs.folder.parent
    np.save(here / "image.npy", IMAGE)
    shutil.rmtree(here / "out", ignore_errors=True)
    arguments = ["--input", f"image={here / 'image.npy'}", "--output", here / "out"]
    done = programs.run(programs.folder, *arguments)
    if done.returncode == 0:
        (file,) = (here / "out").iterdir()
        np.testing.assert_allclose(np.load(file), small_reference(IMAGE), rtol=1e-5, atol=1e-5)
    return done


def _set(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def edit(manifest: dict[str, Any]) -> None:
        for step in path[:-1]:
            manifest = manifest[step]
        manifest[path[-1]] = to

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_set("format", to=2), "another version"),
        (_set("format", to="1"), "another version"),
        (_set("threads", to="two"), "threads is not a whole number from 1 to 4096"),
        (_set("threads", to=0), "threads is not a whole number from 1 to 4096"),
        (_set("threads", to=1.5), "threads is not a whole number"),
        (_set("threads", to=5000), "threads is not a whole number"),
        (_set("core", to=7), "core is not a text"),
        (_set("library", to="../model.so"), "library is not the name of a file beside it"),
        (_set("library", to="other.so"), "files does not list other.so"),
        (_set("inputs", to={}), "inputs is not a list"),
        (_set("inputs", 0, to=[]), "inputs[0] is not an object"),
        (_set("inputs", 0, "shape", to=[1, 3, 8, -8]), "inputs[0].shape[3] is not a whole number"),
        (_set("inputs", 0, "shape", to=[1, None]), "inputs[0].shape[1] is not a whole number"),
        (_set("inputs", 0, "shape", to=[2**40, 2**40]), "shape is larger than any memory"),
        (_set("inputs", 0, "shape", to=[1] * 9), "shape has more than 8 dimensions"),
        (_set("inputs", 0, "dtype", to="float8"), "image has data type float8"),
        (_set("inputs", 0, "dtype", to="float32x4"), "image has data type float32x4"),
        (_set("inputs", 0, "name", to=None), "inputs[0].name is not a text"),
        (_set("inputs", 0, "name", to="a\0b"), "is damaged"),
        (_set("inputs", to=[{"name": "i", "shape": [], "dtype": "bool"}] * 2), "i is the name of"),
        (_set("outputs", 0, "shape", to=[1, 500000]), "scores is not 1x500000 float32"),
        (_set("outputs", 0, "shape", to=[5]), "scores is not 5 float32"),
        (_set("outputs", 0, "dtype", to="float64"), "scores is not 1x5 float64"),
        (_set("outputs", to=[]), "the library has 1 outputs, the manifest 0"),
        (_set("layers", 0, "workload", to=[]), "layers[0].workload is not a text"),
        (_set("files", to=[]), "files does not list model.so"),
    ],
)
def test_every_field_of_the_manifest_is_checked(
    edit: Callable[[dict[str, Any]], None], message: str, programs: Programs
) -> None:
    manifest = _manifest(programs)
    edit(manifest)
    done = _with_manifest(programs, json.dumps(manifest))
    assert done.returncode == MODEL
    assert message in done.stderr


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"a":' * 100_000, "[" * 100_000, '{"format": 1, "format": 1}', "{}{}"],
)
def test_what_is_no_manifest_is_refused(text: str, programs: Programs) -> None:
    done = _with_manifest(programs, text)
    assert done.returncode == MODEL
    assert "manifest.json" in done.stderr


def test_the_line_of_a_mistake_is_named(programs: Programs) -> None:
    lines = (programs.folder / "manifest.json").read_text().splitlines()
    lines[2] = ' "library": model.so,'
    assert "damaged in line 3" in _with_manifest(programs, "\n".join(lines)).stderr


def test_manifests_with_other_fields(programs: Programs) -> None:
    """Each field that is read, in turn, has several other values; and one that is not."""
    manifest = _manifest(programs)
    read = ("format", "library", "core", "threads", "inputs", "outputs", "layers", "files")
    damaged = hostile_manifests(manifest, (*read, "needs"), 8 * EFFORT)
    codes = [_with_manifest(programs, text).returncode for text in damaged]
    assert set(codes) <= {0, MODEL, INPUT}
    assert codes.count(MODEL) > len(codes) / 2


def test_manifests_changed_at_random(programs: Programs) -> None:
    good = (programs.folder / "manifest.json").read_bytes()
    for seed in range(150 * EFFORT):
        _with_manifest(programs, changed(good, np.random.default_rng(seed)))


@pytest.mark.parametrize("kind", ["float32", "int16", "bool"])
def test_arrays_changed_at_random(kind: str, programs: Programs, tmp_path: Path) -> None:
    file = tmp_path / "image.npy"
    np.save(file, np.arange(192).reshape(1, 3, 8, 8).astype(kind))
    good = file.read_bytes()
    for seed in range(60 * EFFORT):
        file.write_bytes(changed(good, np.random.default_rng(seed)))
        done = programs.run(programs.folder, "--input", f"image={file}")
        # Nothing but the values may differ.
        assert done.returncode == INPUT or kind == "float32"


def test_arrays_cut_anywhere(programs: Programs, tmp_path: Path) -> None:
    file = tmp_path / "image.npy"
    np.save(file, IMAGE)
    good = file.read_bytes()
    for size in (*range(0, 132, 3), len(good) - 1):
        file.write_bytes(good[:size])
        assert programs.run(programs.folder, "--input", f"image={file}").returncode == INPUT


def _array_file(header: str, version: int = 1) -> bytes:
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + size + header.encode() + IMAGE.tobytes()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 8, -8), }", "shape is none"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 8, 8", "shape is none"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': 192, }", "shape is none"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1 3 8 8), }", "shape is none"),
        (
            f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**40}, {2**40}), }}",
            "any memory",
        ),
        (f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**30},), }}", "any memory"),
        (f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**58},), }}", "is truncated"),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }",
            "8 dimensions",
        ),
        (
            "{'descr': '<f64', 'fortran_order': False, 'shape': (1, 3, 8, 8), }",
            "no array of numbers",
        ),
        (
            "{'descr': '<f3', 'fortran_order': False, 'shape': (1, 3, 8, 8), }",
            "no array of numbers",
        ),
        (
            "{'descr': '<b4', 'fortran_order': False, 'shape': (1, 3, 8, 8), }",
            "no array of numbers",
        ),
        (
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
            "no array of numbers",
        ),
        ("{'descr': '", "is damaged"),
        ("", "is damaged"),
    ],
)
def test_headers_of_arrays_are_checked(
    header: str, message: str, programs: Programs, tmp_path: Path
) -> None:
    for version in (1, 2, 3):
        (tmp_path / "image.npy").write_bytes(_array_file(header, version))
        done = programs.run(programs.folder, "--input", f"image={tmp_path / 'image.npy'}")
        assert done.returncode == INPUT
        assert message in done.stderr


def test_a_folder_is_no_array(programs: Programs, tmp_path: Path) -> None:
    done = programs.run(programs.folder, "--input", f"image={tmp_path}")
    assert done.returncode == INPUT
    assert "Is a directory" in done.stderr


def test_a_changed_library_is_not_loaded(programs: Programs) -> None:
    library = programs.folder / "model.so"
    good = library.read_bytes()
    for seed in range(20 * EFFORT):
        content = changed(good, np.random.default_rng(seed))
        library.write_bytes(content if content != good else good[:-1])
        done = programs.run(programs.folder)
        assert done.returncode == MODEL
        assert "its SHA-256 is not that of the manifest" in done.stderr
    library.write_bytes(good + b"more")
    assert programs.run(programs.folder, "--no-verify").returncode == 0


def test_the_checksum_is_that_of_sha256(good_bundle: Programs, tmp_path: Path) -> None:
    """Sizes around those of its blocks, and one of several reads."""
    program = tmp_path / "sums"
    source = '#include "sha256.h"\nint main(int count, char** files) { char digits[65];'
    source += (
        "for (int i = 1; i < count; i++) { sha256_of_file(files[i], digits); puts(digits); } }"
    )
    (tmp_path / "sums.cc").write_text(source)
    sanitized.build_test(good_bundle.folder, tmp_path / "sums.cc", program)
    files = []
    for size in (0, 1, 54, 55, 56, 57, 63, 64, 65, 119, 120, 128, 65536, 200_001):
        files.append(tmp_path / str(size))
        files[-1].write_bytes(np.random.default_rng(size).bytes(size))
    found = subprocess.run([program, *files], capture_output=True, text=True, check=True)
    expected = subprocess.run(["sha256sum", *files], capture_output=True, text=True, check=True)
    assert found.stdout.split() == expected.stdout.split()[::2]


def test_the_sanitizers_are_at_work(good_bundle: Programs) -> None:
    assert sanitized.finds(sanitized.SIGNED_FAULT, sanitized.sanitizers())
    assert not sanitized.finds("return 0;", sanitized.sanitizers())
    if not good_bundle.address:
        pytest.skip("no compiler with an address sanitizer: install g++ or clang")
    assert sanitized.finds(sanitized.HEAP_FAULT, sanitized.sanitizers())
