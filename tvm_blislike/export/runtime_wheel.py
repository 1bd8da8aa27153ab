"""TVM's runtime libraries for an architecture: from the installed wheels, or downloaded ones."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

import platformdirs

from tvm_blislike.errors import OutputError, ToolchainError
from tvm_blislike.files import atomic_path
from tvm_blislike.hardware.machine import architecture
from tvm_blislike.tvm_seams import wheels

# Tags of the wheels' platforms; pip takes the one that exists.
_PLATFORMS = ("manylinux_2_28", "manylinux_2_24", "manylinux2014")


def runtime_libraries(machine: str, extras: bool = True) -> list[Path]:
    """Return the shared libraries that a compiled model needs on a Linux board.

    Those for another architecture are downloaded once, of the versions installed here, into the
    user's cache.

    Parameters
    ----------
    machine : str
        Architecture, such as aarch64.
    extras : bool
        Whether the model calls what lies in `wheels.EXTRAS`, a quarter of the runtime's size.

    Raises
    ------
    ToolchainError
        When the wheels cannot be downloaded.
    OutputError
        When the cache cannot be written.
    """
    if sys.platform.startswith("linux") and machine == architecture(platform.machine()):
        paths = [
            _installed(name, file) for name, files in wheels.LIBRARIES.items() for file in files
        ]
    else:
        cache = _cache(machine)
        paths = [cache / PurePosixPath(file).name for file in _files()]
        if not all(path.is_file() for path in paths):
            _fill(cache, machine)
    return [path for path in paths if extras or path.name != wheels.EXTRAS]


def licenses() -> str:
    """Return the license texts of the runtime libraries and of what is linked into them."""
    texts = {}
    for name, version in versions().items():
        for file in importlib.metadata.files(name) or []:
            if file.name in ("LICENSE", "NOTICE"):
                texts.setdefault(file.read_text(encoding="utf-8"), f"{name} {version}: {file}")
    return f"\n{'=' * 79}\n".join(f"{name}\n\n{text}" for text, name in texts.items())


def versions() -> dict[str, str]:
    """Return the versions of the distributions that the libraries come from."""
    return {name: importlib.metadata.version(name) for name in wheels.LIBRARIES}


def _files() -> list[str]:
    return [file for files in wheels.LIBRARIES.values() for file in files]


def _installed(name: str, file: str) -> Path:
    path = wheels.installed(file)
    if path is None:
        raise ToolchainError(f"the installed {name} has no {file}", f"install {name} from PyPI")
    return path


def _cache(machine: str) -> Path:
    marks = "-".join(versions().values())
    return platformdirs.user_cache_path("tvm-blislike") / f"runtime-{marks}-{machine}"


def _fill(cache: Path, machine: str) -> None:
    """Download the wheels and keep the libraries."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            _download(Path(folder), machine)
            for wheel in Path(folder).glob("*.whl"):
                _extract(wheel, cache)
    except OSError as error:
        raise OutputError(f"cannot keep TVM's runtime in {cache}: {error.strerror}") from error


def _extract(wheel: Path, cache: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for file in set(archive.namelist()) & set(_files()):
            with atomic_path(cache / PurePosixPath(file).name) as fresh:
                fresh.write_bytes(archive.read(file))


def _download(folder: Path, machine: str) -> None:
    pins = [f"{name}=={version}" for name, version in versions().items()]
    platforms = [word for tag in _PLATFORMS for word in ("--platform", f"{tag}_{machine}")]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [*_pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:", *platforms]
    command += ["--python-version", python, "--dest", str(folder), *pins]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolchainError(
            f"cannot download TVM's runtime for {machine}: {done.stderr.strip()[-300:]}",
            f"without a network, put the wheels of {' and '.join(pins)} for {machine} into a "
            "folder and set PIP_NO_INDEX=1 and PIP_FIND_LINKS=FOLDER",
        )


def _pip() -> list[str]:
    """Return the command of pip: this Python's, or any that is installed."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if shutil.which(name):
            return [name]
    raise ToolchainError("pip is needed to download TVM's runtime for a board", "install pip")
