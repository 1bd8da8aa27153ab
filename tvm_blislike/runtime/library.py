"""The exported shared library: how a compiled model is written, described inside, and read."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import struct
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.errors import ModelError, OutputError, TargetError
from tvm_blislike.export import checksum
from tvm_blislike.export.link import (
    elf_machine,
    find_compiler,
    is_darwin,
    link,
    require_machine,
)
from tvm_blislike.files import atomic_path
from tvm_blislike.hardware.machine import architecture
from tvm_blislike.model.tensor_spec import TensorSpec
from tvm_blislike.model.variant import Variant

if TYPE_CHECKING:
    from tvm.runtime import Executable, Module

_ABOUT = "tvm_blislike_about"
_FORMAT = 1


@dataclass(frozen=True)
class About:
    """What a library says of itself.

    Parameters
    ----------
    inputs, outputs : tuple of TensorSpec
        In the order of `main`.
    target : dict
        Configuration of TVM's target.
    report : str
        The report as JSON.
    variants : tuple of Variant
        Of the other sizes that it takes.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    target: dict[str, Any]
    report: str
    variants: tuple[Variant, ...] = ()

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps({"format": _FORMAT, **dataclasses.asdict(self)})

    @staticmethod
    def from_json(text: str) -> About:
        """Return what `to_json` wrote.

        Raises
        ------
        ValueError
            When another version of this format wrote it.
        """
        fields = json.loads(text)
        if fields.pop("format") != _FORMAT:
            raise ValueError("written by another version of tvm_blislike")
        for key in ("inputs", "outputs"):
            fields[key] = tuple(map(TensorSpec.from_dict, fields[key]))
        fields["variants"] = tuple(map(Variant.from_dict, fields.get("variants", ())))
        return About(**fields)


def write(
    executable: Executable | Module,
    about: About,
    path: str | os.PathLike[str],
    cc: str | None = None,
) -> None:
    """Link `executable` and its description into the shared library `path`, all or nothing.

    Parameters
    ----------
    executable : tvm.runtime.Executable or Module
        What `tvm.compile` returned.
    about : About
        Its description.
    path : path
        The library.
    cc : str, optional
        Command of the compiler to link with; see `tvm_blislike.export.link.find_compiler`.

    Raises
    ------
    OutputError
        When `path` cannot be written.
    ToolchainError
        When there is no C compiler to link with, or it fails.
    """
    from tvm_blislike.tvm_seams import executables

    module = executables.module_of(executable)
    if not executables.is_exportable(module):
        raise OutputError(f"cannot write {path}: the model is itself a loaded library", "copy it")
    compiler = find_compiler(about.target, cc)
    with compiler_lock(), atomic_path(path) as fresh:
        executables.add_text(module, _ABOUT, about.to_json().encode())
        try:
            module.export_library(str(fresh), fcompile=partial(link, compiler))
        except (OSError, RuntimeError) as error:
            raise OutputError(f"cannot write {path}: {error}") from error
        require_machine(fresh, about.target)
        if not is_darwin(about.target):
            _append_checksum(fresh, path)


def read(path: str | os.PathLike[str], verify: bool = True) -> tuple[Module, About]:
    """Open a library that `write` made.

    Parameters
    ----------
    path : path
        The library.
    verify : bool
        Whether to compare it with its checksum before any of its code is loaded: 0.6 s for
        500 MB where the processor has instructions for SHA-256.

    Raises
    ------
    ModelError
        When it is missing, truncated, damaged, or not made by `write`.
    TargetError
        When it is for another architecture.
    """
    from tvm_blislike.tvm_seams import loaded

    path = Path(path)
    _require_loadable(path, verify)
    try:
        # The dynamic loader returns an old library again for a name it knows: use a fresh one.
        with tempfile.TemporaryDirectory() as folder:
            alias = Path(folder) / path.name
            alias.symlink_to(path.resolve())
            module = loaded.open_library(alias)
    except Exception as error:
        raise ModelError(f"{path} cannot be loaded: {str(error).splitlines()[0]}") from error
    text = loaded.text_in(module, _ABOUT)
    if text is None:
        raise ModelError(f"{path} was not written by tvm-blislike compile")
    return module, _parse_about(path, text)


def is_library(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` is to be opened as a library rather than as an ONNX model."""
    return Path(path).suffix in {".so", ".dylib"}


def _parse_about(path: Path, text: bytes) -> About:
    try:
        return About.from_json(text.decode())
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} cannot be opened: {error}", "compile the model again") from error


def _append_checksum(fresh: Path, path: str | os.PathLike[str]) -> None:
    try:
        checksum.append(fresh)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error


def _require_loadable(path: Path, verify: bool) -> None:
    """Check that `path` is a whole ELF file for this machine; with `verify`, its checksum too.

    Loading another one may crash the process, and runs code before anything of TVM sees it. Other
    formats are left to the system's loader.
    """
    try:
        with path.open("rb") as file:
            head = file.read(64)
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if not head.startswith(b"\x7fELF"):
        if sys.platform.startswith("linux"):
            raise ModelError(f"{path} is no shared library")
        return
    if len(head) < 64 or size < _elf_end(head):
        raise ModelError(f"{path} is truncated")
    here = architecture(platform.machine())
    if elf_machine(head) != here:
        raise TargetError(
            f"{path} was compiled for {elf_machine(head)}, this machine is {here}",
            "run it on such a machine, or compile it again with another --target",
        )
    if verify:
        checksum.verify(path)


def _elf_end(head: bytes) -> int:
    """Return where the section header table of a 64-bit ELF file ends; it comes last."""
    (offset,) = struct.unpack_from("<Q", head, 40)
    entry_bytes, entries = struct.unpack_from("<HH", head, 58)
    return offset + entry_bytes * entries
