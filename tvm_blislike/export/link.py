"""Which compiler or linker makes libraries and programs for an architecture, and calling it.

Another architecture needs no system package: the wheel `ziglang` carries a linker for every ELF
architecture, which needs no C library, and a C compiler that builds programs for Linux boards.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm_blislike.errors import OutputError, ToolchainError
from tvm_blislike.files import space_hint
from tvm_blislike.hardware.machine import architecture

# By the number in the header of an ELF file, and by the name that LLVM's linker takes.
_ELF_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}
_EMULATIONS = {"x86_64": "elf_x86_64", "aarch64": "aarch64linux", "riscv64": "elf64lriscv"}
# The oldest C library that TVM's own wheels run with.
_GLIBC = "2.28"


def find_compiler(target: Mapping[str, Any], cc: str | None = None) -> list[str]:
    """Return the command that links a shared library for `target` when given `-o` and objects.

    That of `cc`; for this machine's architecture also that of the environment variable CXX or CC;
    else a system compiler, else the linker of ziglang.

    Parameters
    ----------
    target : mapping
        Configuration of TVM's target; its `mtriple` says for which architecture and system.
    cc : str, optional
        Command of a compiler for that architecture.

    Raises
    ------
    ToolchainError
        When there is none.
    """
    chosen = _chosen(target, cc) or _system_compiler(target)
    if chosen:
        return [*chosen, *_shared(target)]
    machine = machine_of(target)
    if importlib.util.find_spec("ziglang") is None:
        raise ToolchainError(
            f"no C compiler found to link a shared library for {machine} with", _advice(target)
        )
    if is_darwin(target) or machine not in _EMULATIONS:
        return [*_zig_compiler(target), *_shared(target)]
    return [*_zig(), "ld.lld", "-m", _EMULATIONS[machine], "-shared", "--strip-all"]


def find_builder(target: Mapping[str, Any], cc: str | None = None) -> list[str]:
    """Return the command that builds a C or C++ program for `target`.

    Raises
    ------
    ToolchainError
        When there is none.
    """
    chosen = _chosen(target, cc) or _system_compiler(target)
    if chosen:
        return chosen
    if importlib.util.find_spec("ziglang") is None:
        raise ToolchainError(
            f"no C compiler found to build a program for {machine_of(target)} with",
            _advice(target),
        )
    return _zig_compiler(target)


def find_archiver(target: Mapping[str, Any], compiler: Sequence[str]) -> list[str]:
    """Return the command that joins objects when given the result and the objects.

    One relocatable object; for Apple's systems a static archive.

    Parameters
    ----------
    target : mapping
        Configuration of TVM's target.
    compiler : sequence of str
        What `find_builder` returned.
    """
    if is_darwin(target):
        return [*_zig(), "ar", "rcs"] if "ziglang" in compiler else ["ar", "rcs"]
    plain = ("--strip-debug", "-o")
    if "ziglang" in compiler:
        return [*_zig(), "ld.lld", "-m", _EMULATIONS[machine_of(target)], "-r", *plain]
    return [*compiler, "-r", "-nostdlib", "-Wl,--strip-debug", "-o"]


def find_ar(compiler: Sequence[str]) -> list[str]:
    """Return the command `ar` that goes with a compiler: what `find_builder` returned."""
    if "ziglang" in compiler:
        return [*_zig(), "ar"]
    asked = [*compiler, "-print-prog-name=ar"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolchainError(f"cannot run {asked[0]}: {error.strerror}", _OTHER) from error
    return [done.stdout.strip() or "ar"]


def link(compiler: Sequence[str], output: str, objects: Sequence[str], **_: object) -> None:
    """Link object files with a command of `find_compiler`.

    The signature is that of `export_library`'s fcompile.

    Raises
    ------
    ToolchainError
        When the command cannot be run or fails.
    OutputError
        When there is no space left for the library.
    """
    run_tool([*compiler, "-o", output, *objects], "link the library")


def run_tool(command: Sequence[str], purpose: str) -> None:
    """Run a compiler or linker.

    Raises
    ------
    ToolchainError, OutputError
        As of `link`.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolchainError(f"cannot run {command[0]}: {error.strerror}", _OTHER) from error
    if done.returncode == 0:
        return
    if os.strerror(errno.ENOSPC) in done.stderr:
        raise OutputError(
            f"{command[0]} could not {purpose}: no space left",
            space_hint(_folder_of_output(command)),
        )
    raise ToolchainError(f"{command[0]} could not {purpose}: {done.stderr.strip()[-500:]}", _OTHER)


def _folder_of_output(command: Sequence[str]) -> Path:
    return Path(command[command.index("-o") + 1] if "-o" in command else "none").parent


def require_machine(path: str | os.PathLike[str], target: Mapping[str, Any]) -> None:
    """Check that a linked ELF file is one for `target`.

    Raises
    ------
    ToolchainError
        When the compiler linked for another architecture.
    """
    with Path(path).open("rb") as file:
        found = elf_machine(file.read(20))
    if found not in ("", machine_of(target)):
        raise ToolchainError(
            f"the compiler linked a library for {found}, not {machine_of(target)}", _OTHER
        )


def elf_machine(head: bytes) -> str:
    """Return the architecture in the first 20 bytes of an ELF file, "" of any other file."""
    if not head.startswith(b"\x7fELF"):
        return ""
    number = int.from_bytes(head[18:20], "little")
    return _ELF_MACHINES.get(number, f"machine {number}")


def machine_of(target: Mapping[str, Any]) -> str:
    """Return the architecture of a target: x86_64, aarch64."""
    return architecture(target["mtriple"].partition("-")[0])


def is_darwin(target: Mapping[str, Any]) -> bool:
    """Return whether a target is one of Apple's systems."""
    return "apple" in target["mtriple"]


def is_foreign(target: Mapping[str, Any]) -> bool:
    """Return whether a target is another architecture or system than this machine's."""
    here = sys.platform == "darwin"
    return machine_of(target) != architecture(platform.machine()) or is_darwin(target) != here


_OTHER = "--cc, or for this machine the environment variable CC, chooses another compiler"


def _chosen(target: Mapping[str, Any], cc: str | None) -> list[str]:
    """Return what the user chose; the environment's compiler is one for this machine."""
    native = os.environ.get("CXX") or os.environ.get("CC")
    return shlex.split(cc or ("" if is_foreign(target) else native) or "")


def _system_compiler(target: Mapping[str, Any]) -> list[str]:
    if is_foreign(target) and is_darwin(target):
        return []
    prefix = f"{machine_of(target)}-linux-gnu-" if is_foreign(target) else ""
    for name in ("gcc", "g++", "clang", "clang++", "cc"):
        if shutil.which(prefix + name):
            return [prefix + name]
    return []


def _shared(target: Mapping[str, Any]) -> list[str]:
    options = ["-shared", "-fPIC"]
    return [*options, "-undefined", "dynamic_lookup"] if is_darwin(target) else [*options, "-s"]


def _zig() -> list[str]:
    return [sys.executable, "-m", "ziglang"]


def _zig_compiler(target: Mapping[str, Any]) -> list[str]:
    system = "macos" if is_darwin(target) else f"linux-gnu.{_GLIBC}"
    return [*_zig(), "cc", "-target", f"{machine_of(target)}-{system}"]


def _advice(target: Mapping[str, Any]) -> str:
    if not is_foreign(target):
        return "install gcc or clang, or run: pip install ziglang"
    wanted = "" if is_darwin(target) else f"install {machine_of(target)}-linux-gnu-gcc, or "
    return f"run: pip install 'tvm-blislike[link]'; or {wanted}name a compiler with --cc"
