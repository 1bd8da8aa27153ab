"""A standalone model as a folder for C and C++: header, libraries, and what build tools look for.

include/NAME.h, include/blislike.hpp
lib/libNAME.a, lib/libNAME.so
lib/cmake/NAME/NAMEConfig.cmake     find_package(NAME CONFIG) with the folder as prefix
lib/pkgconfig/NAME.pc
manifest.json
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_blislike.errors import TargetError
from tvm_blislike.export import manifest
from tvm_blislike.export.bundle import fresh_folder
from tvm_blislike.export.link import find_ar, find_builder, is_darwin, machine_of, run_tool
from tvm_blislike.files import bytes_below
from tvm_blislike.model.variant import MAIN, Variant
from tvm_blislike.standalone.build import joined, needs
from tvm_blislike.standalone.c_header import INTERFACE, SOURCES, header
from tvm_blislike.standalone.model import StandaloneModel


@dataclass(frozen=True)
class Package:
    """What was written.

    Parameters
    ----------
    folder : Path
        The folder.
    header : Path
        What a program includes.
    bytes : int
        Size of all its files.
    """

    folder: Path
    header: Path
    bytes: int


def require_package(folder: str | os.PathLike[str], mtriple: str) -> None:
    """Check that a folder for a system can be written, before long work begins.

    Raises
    ------
    TargetError
        When the system has no POSIX threads.
    OutputError
        When the folder cannot be written, or holds anything but an older one as it was written.
    """
    if not is_darwin({"mtriple": mtriple}) and "linux" not in mtriple:
        raise TargetError(
            f"a folder for C is for Linux and Apple's systems, not for {mtriple}",
            "write an object: -o NAME.o",
        )
    with fresh_folder(Path(folder), keep=False):
        pass


def package(
    model: StandaloneModel, folder: str | os.PathLike[str], cc: str | None = None
) -> Package:
    """Write the folder of a model, all or nothing.

    Parameters
    ----------
    model : StandaloneModel
        The model.
    folder : path
        A new or empty folder, or an older one, which is replaced unless somebody added or changed
        files in it.
    cc : str, optional
        As of `write`.

    Raises
    ------
    TargetError, OutputError
        As of `require_package`, and when there is no space left.
    ToolchainError
        When there is no C compiler, or it fails.
    """
    folder, target = Path(folder), model.core.target_config(model.threads)
    require_package(folder, target["mtriple"])
    compiler = find_builder(target, cc)
    with fresh_folder(folder) as fresh:
        for inner in ("include", "build"):
            (fresh / inner).mkdir()
        whole = joined(model, fresh / "build", compiler, "-DBLISLIKE_THREADS")
        needed = needs(model, whole)
        _write_libraries(model, whole, fresh / "lib", compiler)
        shutil.rmtree(fresh / "build")
        _write_texts(model, fresh)
        sizes = [Variant(MAIN, model.inputs, model.outputs)]
        fields = manifest.manifest(f"lib/lib{model.name}.a", sizes, target, model.report)
        fields["needs"] = {"architecture": machine_of(target), "symbols": needed}
        manifest.write(fresh, fields)
        size = bytes_below(fresh)
    return Package(folder, folder / "include" / f"{model.name}.h", size)


def _write_libraries(
    model: StandaloneModel, whole: Path, lib: Path, compiler: Sequence[str]
) -> None:
    lib.mkdir()
    archive = lib / f"lib{model.name}.a"
    if is_darwin(model.core.target_config()):
        whole.rename(archive)
        return
    # Its name is that of the archive's member.
    member = whole.rename(whole.with_name(f"{model.name}.o"))
    run_tool([*find_ar(compiler), "rcs", str(archive), str(member)], "write the archive")
    script = whole.with_name("exported")
    script.write_text(f"{{ global: {model.name}_model; local: *; }};\n")
    shared = f"lib{model.name}.so"
    command = [
        *compiler,
        "-shared",
        "-s",
        f"-Wl,-soname,{shared}",
        f"-Wl,--version-script,{script}",
    ]
    command += [str(member), "-lm", "-pthread", "-Wl,-z,noexecstack", "-o", str(lib / shared)]
    run_tool(command, "link the library")


def _write_texts(model: StandaloneModel, folder: Path) -> None:
    name = model.name
    texts = {
        f"include/{name}.h": header(model),
        "include/blislike.hpp": INTERFACE.with_suffix(".hpp").read_text(),
        f"lib/cmake/{name}/{name}Config.cmake": _filled("package.cmake", name),
        f"lib/pkgconfig/{name}.pc": _filled("package.pc", name),
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def _filled(template: str, name: str) -> str:
    return (SOURCES / template).read_text().replace("@NAME@", name)
