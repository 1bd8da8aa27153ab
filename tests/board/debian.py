"""Programs and libraries of Debian's packages for tests, without installing them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tvm_blislike.errors import ToolchainError
from tvm_blislike.inspect import mca

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "board"
# The first is that of benchmarks/results/arm_mca.txt.
_LLVM_VERSIONS = (22, 21, 20, 19)


def unpacked(name: str, packages: Sequence[str], pattern: str) -> Path:
    """Return a folder of build/board with the files of packages that match a pattern.

    Raises
    ------
    RuntimeError
        When a package cannot be had; the message says what to install.
    """
    folder = FOLDER / name
    FOLDER.mkdir(parents=True, exist_ok=True)
    with folder_made_once(folder) as fresh:
        if fresh:
            with tempfile.TemporaryDirectory() as downloads:
                _download(packages, downloads)
                for package in Path(downloads).glob("*.deb"):
                    _extract(package, fresh, pattern)
    return folder


@contextlib.contextmanager
def folder_made_once(folder: Path) -> Iterator[Path | None]:
    """Yield a folder to fill, None where another process, or an earlier run, has done it."""
    if folder.is_dir():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as scratch:
        fresh = Path(scratch) / "new"
        fresh.mkdir()
        yield fresh
        with contextlib.suppress(OSError):  # another process was faster
            fresh.rename(folder)


def offer_llvm_mca() -> None:
    """Make `tvm_blislike.inspect.mca` find llvm-mca: the system's, else that of Debian's packages.

    Raises
    ------
    RuntimeError
        As of `unpacked`.
    """
    with contextlib.suppress(ToolchainError):
        mca.find_tool()
        return
    packages = [f"llvm-{version}" for version in _LLVM_VERSIONS]
    found = program("llvm-mca", packages, "usr/lib/{package}/bin/llvm-mca")
    os.environ["PATH"] = f"{found.parent}{os.pathsep}{os.environ['PATH']}"
    mca.find_tool.cache_clear()


def program(name: str, packages: Sequence[str], place: str) -> Path:
    """Return a script that starts a program of the first package on offer, with its libraries.

    Parameters
    ----------
    place : str
        The program's path in that package, whose name stands for "{package}".

    Raises
    ------
    RuntimeError
        As of `unpacked`.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    script = FOLDER / name / name
    with folder_made_once(script.parent) as fresh:
        if fresh:
            package, needed = missing(packages)
            folder = unpacked(package, needed, "usr/*")
            _write_starter(fresh / name, folder / place.format(package=package), folder)
    return script


def _write_starter(path: Path, started: Path, folder: Path) -> None:
    """Write a script that starts an unpacked program with the libraries of its folder."""
    libraries = {str(found.parent) for found in folder.rglob("lib*.so*")}
    path.write_text(
        f'#!/bin/sh\nLD_LIBRARY_PATH="{":".join(sorted(libraries))}" exec "{started}" "$@"\n'
    )
    path.chmod(0o755)


def missing(names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the first of some packages that is on offer, and what installing it would install.

    Raises
    ------
    RuntimeError
        When none is on offer.
    """
    for refresh in (False, True):
        if refresh and shutil.which("apt-get"):
            subprocess.run(["apt-get", "update"], capture_output=True, check=False)
        for name in names:
            if packages := _missing(name):
                return name, packages
    raise RuntimeError(f"none of these packages is on offer: {', '.join(names)}")


def _missing(package: str) -> list[str]:
    """Return what installing a package would install, nothing where there is no such package."""
    if shutil.which("apt-get") is None:
        return []
    command = ["apt-get", "--simulate", "--no-install-recommends", "install", package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return re.findall(r"^Inst (\S+)", done.stdout, re.MULTILINE)


def _download(packages: Sequence[str], folder: str) -> None:
    command = ["apt-get", "download", *packages]
    advice = f"install what the tests need: apt-get install {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        raise RuntimeError(f"no apt-get; {advice}")
    if _succeeds(command, folder):
        return
    # A fresh machine has no package lists.
    _succeeds(["apt-get", "update"], folder)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{done.stderr.strip()[-500:]}; {advice}")


def _succeeds(command: Sequence[str], folder: str) -> bool:
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


def _extract(package: Path, folder: Path, pattern: str) -> None:
    files = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=True
    ).stdout
    unpack = ["tar", "-x", "-C", str(folder), "--wildcards", f"./{pattern}"]
    subprocess.run(unpack, input=files, check=True)
