"""Writing results: all or nothing, and never in place of what is no regular file."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tvm_blislike import files
from tvm_blislike.cli.app import app
from tvm_blislike.errors import OutputError


def _compiled(model: Path, *options: object) -> None:
    arguments = ["compile", str(model), "--threads", "1", *map(str, options)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output


def test_a_library_goes_through_a_pipe(network_file: Path) -> None:
    pipe, found = network_file.with_name("pipe"), []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    _compiled(network_file, "-o", pipe)
    reader.join(60)
    assert found
    assert found[0].startswith(b"\x7fELF")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.fixture
def device(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A device of its own for whoever may make one; others cannot replace the system's."""
    name, minor = request.param
    if os.getuid() != 0:
        return Path("/dev") / name
    device = tmp_path / name
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        with device.open("wb"):
            return device
    except OSError:
        pytest.skip("devices cannot be made, or not opened there")


@pytest.mark.parametrize("device", [("null", 3)], indirect=True)
def test_a_device_stays_one(device: Path) -> None:
    files.write_text(device, "text")
    assert stat.S_ISCHR(device.stat().st_mode)
    assert device.read_bytes() == b""


@pytest.mark.parametrize("device", [("full", 7)], indirect=True)
def test_a_full_device_is_an_error(device: Path) -> None:
    with pytest.raises(OutputError, match=f"cannot write {device}: No space left"):
        files.write_text(device, "text")
    assert stat.S_ISCHR(device.stat().st_mode)


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_an_open_file_is_continued(path: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before ")
    code = "import sys; from tvm_blislike.files import write_text; write_text(sys.argv[1], 'text')"
    with log.open("a") as file:
        subprocess.run([sys.executable, "-c", code, path], stdout=file, check=True)
    assert log.read_text() == "before text"


def test_a_closed_descriptor_is_an_error() -> None:
    with pytest.raises(OutputError, match="cannot write /dev/fd/987"):
        files.require_writable("/dev/fd/987")


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "target"
    link.symlink_to(target)
    for text in ("dangling", "present"):
        files.write_text(link, text)
        assert link.is_symlink()
        assert target.read_text() == text
    assert os.listdir(target.parent) == ["target"]


@pytest.mark.parametrize("name", ["circle", "n" * 300])
def test_what_cannot_be_a_file_is_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OutputError, match="cannot write"):
        files.require_writable(tmp_path / name)


def test_long_names_are_written(tmp_path: Path) -> None:
    files.write_text(tmp_path / ("n" * 255), "text")
    assert os.listdir(tmp_path) == ["n" * 255]


def test_an_object_and_its_header_need_files(network_file: Path) -> None:
    os.mkfifo(pipe := network_file.with_name("pipe"))
    for place, reason in ((pipe, "it is no file"), ("net.h", "header has that name")):
        options = ["--standalone", "-o", str(place)]
        result = CliRunner().invoke(app, ["compile", str(network_file), *options])
        assert result.exit_code == 7
        assert reason in result.stderr


@contextlib.contextmanager
def _short_files() -> Iterator[None]:
    """Let no file of this process grow beyond 4 KB, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_an_array_that_does_not_fit_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "y.npy"
    files.write_array(path, np.arange(3))
    with _short_files(), pytest.raises(OutputError, match=os.strerror(errno.EFBIG)):
        files.write_array(path, np.zeros(10_000))
    np.testing.assert_array_equal(np.load(path), np.arange(3))
    assert os.listdir(tmp_path) == ["y.npy"]


@pytest.mark.parametrize("array", [np.float32(3).reshape(()), np.zeros((0, 4)), np.ones((2, 3)).T])
def test_arrays_are_written_as_they_are(array: np.ndarray, tmp_path: Path) -> None:
    files.write_array(tmp_path / "y.npy", array)
    found = np.load(tmp_path / "y.npy")
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    np.testing.assert_array_equal(found, array)


def test_the_hint_on_a_full_disk_names_a_folder_that_stays(
    network_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linker = network_file.with_name("linker")
    linker.write_text(
        "#!/bin/sh\necho 'ld: final link failed: No space left on device' >&2\nexit 1"
    )
    linker.chmod(0o755)
    monkeypatch.setenv("CXX", str(linker))
    arguments = ["compile", str(network_file), "--threads", "1", "-o"]
    result = CliRunner().invoke(app, [*arguments, str(network_file.with_suffix(".so"))])
    assert result.exit_code == 7, result.output
    *_, folder = result.stderr.split("free some space in ")
    assert Path(folder.strip()).is_dir()
