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
    FOLDER.mkdir(parents=True, exist_ok=True)
    with folder_made_once(FOLDER / "llvm-mca") as fresh:
        if fresh:
            _write_starter(fresh / "llvm-mca")
    os.environ["PATH"] = f"{FOLDER / 'llvm-mca'}{os.pathsep}{os.environ['PATH']}"
    mca.find_tool.cache_clear()


def _write_starter(path: Path) -> None:
    """Write a script that starts the unpacked program with its libraries."""
    version, packages = _llvm_packages()
    folder = unpacked(f"llvm-{version}", packages, "usr/lib/*")
    program = folder / "usr" / "lib" / f"llvm-{version}" / "bin" / "llvm-mca"
    libraries = {str(found.parent) for found in folder.rglob("lib*.so*")}
    path.write_text(
        f'#!/bin/sh\nLD_LIBRARY_PATH="{":".join(sorted(libraries))}" exec "{program}" "$@"\n'
    )
    path.chmod(0o755)


def _llvm_packages() -> tuple[int, list[str]]:
    """Return the newest version of LLVM on offer, and the packages it needs that are missing."""
    name, packages = missing([f"llvm-{version}" for version in _LLVM_VERSIONS])
    return int(name.partition("-")[2]), packages


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
