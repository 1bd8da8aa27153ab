"""A Python for aarch64 with packages from PyPI, to be run by qemu-user; nothing is installed.

Debian's packages for arm64 are unpacked into a folder, by an apt with lists of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tvm_blislike.hardware import Core

_VERSION = "3.11"
_PACKAGES = (
    *("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libffi8", "libssl3"),
    *("libcrypt1", "libbz2-1.0", "liblzma5", "libuuid1"),
    *(f"python{_VERSION}-minimal", f"libpython{_VERSION}-minimal", f"libpython{_VERSION}-stdlib"),
)
_APT = """APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
Dir::State "{folder}/state";
Dir::State::status "{folder}/state/status";
Dir::Cache "{folder}/cache";
APT::Sandbox::User "root";
"""


# What a core says of itself: qemu shows programs the file of the machine it runs on, and ONNX
# Runtime ends with a segmentation fault over an x86 one. qemu looks under its -L first.
_CPUINFO = """processor\t: {number}
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32 cpuid {flags}
CPU implementer\t: {implementer}
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: {part}
CPU revision\t: 3

"""


def prepare(folder: Path, packages: Sequence[str], core: Core) -> Path:
    """Fill a folder once; return the root of its file system.

    Parameters
    ----------
    folder : Path
        Where everything goes.
    packages : sequence of str
        Requirements from PyPI, installed with what they need.
    core : Core
        What the machine says it is.

    Raises
    ------
    subprocess.CalledProcessError
        When something cannot be downloaded.
    """
    root = folder / "root"
    if not (folder / "done").is_file():
        _unpack_debian(folder, root)
        _install(root, packages)
        (root / "proc").mkdir()
        (folder / "done").write_text(" ".join(packages))
    (root / "proc" / "cpuinfo").write_text(_cpuinfo(core))
    return root


def command(root: Path, *arguments: str | Path) -> list[str]:
    """Return the words that start this Python, without the emulator in front."""
    return [str(root / "usr" / "bin" / f"python{_VERSION}"), *map(str, arguments)]


def environment(root: Path) -> dict[str, str]:
    """Return the variables it needs; the same hash seed makes runs repeatable."""
    site = root / "site"
    return {
        **os.environ,
        "PYTHONHOME": str(root / "usr"),
        "PYTHONPATH": str(site),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _cpuinfo(core: Core) -> str:
    implementer, part = core.recognized_by[0].split(":")
    flags = " ".join(f.flag for f in core.isa.features if f.name in core.features)
    return "".join(
        _CPUINFO.format(number=number, flags=flags, implementer=implementer, part=part)
        for number in range(os.cpu_count() or 1)
    )


def _unpack_debian(folder: Path, root: Path) -> None:
    for name in ("state/lists/partial", "cache/archives/partial", "packages"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "state" / "status").touch()
    (folder / "apt.conf").write_text(_APT.format(folder=folder))
    apt = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}
    place = folder / "packages"
    for words in (["update"], ["download", *_PACKAGES]):
        command = ["apt-get", "-q", *words]
        subprocess.run(command, env=apt, cwd=place, check=True, stdout=subprocess.DEVNULL)
    # Debian's packages may name either: one is a link to the other.
    (root / "usr" / "lib").mkdir(parents=True, exist_ok=True)
    (root / "lib").symlink_to("usr/lib")
    for package in sorted(place.glob("*.deb")):
        files = ["dpkg-deb", "--fsys-tarfile", str(package)]
        content = subprocess.run(files, check=True, capture_output=True).stdout
        unpack = ["tar", "-x", "--keep-directory-symlink", "-C", str(root)]
        subprocess.run(unpack, input=content, check=True)


def _install(root: Path, packages: Sequence[str]) -> None:
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in (28, 27, 26, 24, 17)]
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(root / "site")]
    words += ["--only-binary=:all:", "--python-version", _VERSION, "--implementation", "cp"]
    words += [word for name in platforms for word in ("--platform", name)]
    subprocess.run([*words, "--platform", "manylinux2014_aarch64", *packages], check=True)
