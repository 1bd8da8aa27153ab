"""A model as a static object with a C interface, for systems without TVM's runtime.

TVM's virtual machine is part of its runtime, so the calls of the kernels become a table and a
small C program (`static/standalone.c`). What is left is static shapes, and memory that is planned.
Threads come with a folder (`package`); an object needs no operating system, and runs in one.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import tirx

from tvm_blislike.api import built, resolve_core, resolve_strategy
from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.errors import OutputError, UsageError
from tvm_blislike.export.link import find_archiver, find_builder, is_darwin, run_tool
from tvm_blislike.files import atomic_path, is_stream, require_writable, scratch_beside
from tvm_blislike.passes import tir_pipeline
from tvm_blislike.passes.reporting import report_of
from tvm_blislike.passes.schedule import lowered
from tvm_blislike.pipeline import scheduled_calls
from tvm_blislike.standalone import c_tables
from tvm_blislike.standalone.c_header import SOURCES, header, identifier
from tvm_blislike.standalone.call_plan import CallPlan, plan_calls
from tvm_blislike.standalone.model import StandaloneModel
from tvm_blislike.tvm_seams import llvm_text

if TYPE_CHECKING:
    import onnx

    from tvm_blislike.choose.strategy import Strategy
    from tvm_blislike.hardware import Core
    from tvm_blislike.model.report import Report

# Of ELF files; the name is for linkers, which define it.
_SYMBOL_TABLE, _GLOBAL = 2, 1
_OF_LINKERS = "_GLOBAL_OFFSET_TABLE_"


def compile(
    model: str | os.PathLike[str] | onnx.ModelProto,
    target: str | os.PathLike[str] | Core,
    name: str = "model",
    shapes: Mapping[str, Sequence[int]] | None = None,
    threads: int = 1,
    **options: Any,
) -> StandaloneModel:
    """Compile an ONNX model without TVM's runtime.

    Parameters
    ----------
    model, target, shapes
        As of `tvm_blislike.compile`.
    name : str
        Prefix of all its C names; characters that C does not allow become underscores.
    threads : int
        Threads to schedule for. One that is to be an object has one.
    **options
        As of `tvm_blislike.compile`: override, constraints, records, learned.

    Raises
    ------
    UnsupportedOperatorError
        When the model does something that only TVM's virtual machine can.
    BlislikeError
        As of `tvm_blislike.compile`.
    """
    strategy = resolve_strategy(resolve_core(target), threads, **options)
    prefix = identifier(name)
    loaded, parts = built(strategy, model, shapes, partial(_compiled, prefix))
    return StandaloneModel(*parts, loaded.inputs, loaded.outputs, strategy.core, prefix, threads)


@compiler_lock()
def _compiled(
    prefix: str, mod: tvm.IRModule, strategy: Strategy
) -> tuple[CallPlan, tvm.runtime.Executable, Report]:
    """Return the calls of a module, its kernels, named with a prefix, and the report."""
    target = tvm.target.Target(strategy.core.target_config(strategy.threads))
    with target:
        calls, plan = scheduled_calls(mod, strategy, target)
    kernels = {
        gvar.name_hint: func.with_attr("global_symbol", f"{prefix}_{gvar.name_hint}")
        for gvar, func in calls.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }
    loops = lowered(tvm.IRModule(kernels), plan)
    executable = tir_pipeline.compiled(loops, target)
    return plan_calls(calls), executable, report_of(calls, plan)


def write(model: StandaloneModel, path: str | os.PathLike[str], cc: str | None = None) -> Path:
    """Write the object `path` and, beside it, a C header; return the header's path.

    The object is one relocatable file; for Apple's systems a static archive. It needs neither an
    operating system nor a C library but for what its header names.

    Parameters
    ----------
    model : StandaloneModel
        The model.
    path : path
        The object, such as model.o.
    cc : str, optional
        Command of a C compiler for the model's target; by default a system compiler or that of
        the package ziglang.

    Raises
    ------
    OutputError
        When a file cannot be written.
    ToolchainError
        When there is no C compiler, or it fails.
    UsageError
        When the model was compiled for several threads.
    """
    path = Path(path)
    beside = path.with_suffix(".h")
    require_places(path)
    if model.threads != 1:
        raise UsageError("a standalone object runs in one thread", "compile for one, or a folder")
    compiler = find_builder(model.core.target_config(), cc)
    with atomic_path(beside) as fresh_header, atomic_path(path) as fresh:
        with scratch_beside(fresh) as scratch:
            os.replace(joined(model, scratch, compiler, "-ffreestanding"), fresh)
        text = header(model, needs(model, fresh))
        fresh_header.write_text(text, encoding="utf-8")
    return beside


def require_places(path: Path) -> None:
    """Check that an object and its header can be written, before long work begins.

    Raises
    ------
    OutputError
        When they cannot.
    """
    if path.suffix == ".h":
        raise OutputError(f"cannot write {path}: its header has that name", "call it model.o")
    for place in (path, path.with_suffix(".h")):
        require_writable(place)
        if is_stream(place):
            raise OutputError(
                f"cannot write {place}: it is no file", "an object and its header are two files"
            )


def joined(model: StandaloneModel, folder: Path, compiler: Sequence[str], option: str) -> Path:
    """Build the parts of a model in a folder and join them; return the result.

    Parameters
    ----------
    model : StandaloneModel
        The model.
    folder : Path
        For all files.
    compiler : sequence of str
        Command of a C compiler.
    option : str
        Of the C program's compilation: -ffreestanding, or -DBLISLIKE_THREADS for a system with
        threads and a C library.
    """
    target = model.core.target_config()
    parts = [folder / f"{part}.o" for part in ("kernels", "weights", "calls")]
    model.kernels.mod.write_to_file(str(parts[0]))
    parts[0].write_bytes(llvm_text.with_own_variables(parts[0].read_bytes(), model.name))
    _write_weights(model.plan, folder / "weights.bin")
    (folder / "weights.S").write_text(c_tables.weights_source(model.name, is_darwin(target)))
    (folder / "tables.h").write_text(c_tables.tables(model))
    for source in (*SOURCES.glob("*.h"), SOURCES / "standalone.c"):
        shutil.copyfile(source, folder / source.name)
    compile_part = [*compiler, "-c", "-O2", "-fPIC", f"-I{folder}"]
    weights = [*compile_part, str(folder / "weights.S"), "-o", str(parts[1])]
    run_tool(weights, "compile weights.S")
    calls = ["-x", "c", option, str(folder / "standalone.c"), "-o", str(parts[2])]
    run_tool([*compile_part, *calls], "compile standalone.c")
    whole = folder / "whole"
    join = find_archiver(target, compiler)
    run_tool([*join, str(whole), *map(str, parts)], "join the object")
    return whole


def _write_weights(plan: CallPlan, path: Path) -> None:
    content = bytearray(plan.total("weight"))
    for storage in plan.storages:
        if storage.kind == "weight" and storage.value is not None:
            raw = np.ascontiguousarray(storage.value).tobytes()
            content[storage.offset : storage.offset + len(raw)] = raw
    path.write_bytes(content)


def needs(model: StandaloneModel, path: Path) -> list[str]:
    """Return the names that an object of a model takes from elsewhere, such as memcpy.

    Parameters
    ----------
    model : StandaloneModel
        The model.
    path : Path
        What `write` wrote. An archive is not read: then it is what the kernels declare and what
        compilers call on their own.
    """
    content = path.read_bytes()
    if content.startswith(b"\x7fELF"):
        return sorted(set(_undefined(content)) - {_OF_LINKERS})
    declared = llvm_text.declared(model.llvm_text)
    return sorted(declared | {"memcpy", "memset"})


def _undefined(content: bytes) -> Iterator[str]:
    """Yield the global names that a 64-bit ELF object does not define."""
    (sections,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    for index in range(count):
        header = struct.unpack_from("<IIQQQQI", content, sections + index * size)
        _, kind, _, _, offset, length, link = header
        if kind != _SYMBOL_TABLE:
            continue
        (texts,) = struct.unpack_from("<Q", content, sections + link * size + 24)
        for entry in range(offset, offset + length, 24):
            name, info, _, section = struct.unpack_from("<IBBH", content, entry)
            if section == 0 and info >> 4 == _GLOBAL:
                yield content[texts + name : content.index(b"\0", texts + name)].decode()
