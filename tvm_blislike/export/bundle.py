"""A folder with all that a board needs to run a model: copy it there and start `blis_run`."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tvm_blislike.errors import (
    OutputError,
    TargetError,
    ToolchainError,
    UnsupportedOperatorError,
)
from tvm_blislike.export import manifest, runtime_wheel
from tvm_blislike.export.link import find_builder, is_darwin, machine_of, run_tool
from tvm_blislike.files import bytes_below, scratch_beside, space_hint
from tvm_blislike.tvm_seams import wheels

if TYPE_CHECKING:
    from tvm_blislike.model.report import Report
    from tvm_blislike.model.tensor_spec import TensorSpec
    from tvm_blislike.model.variant import Variant

# Of the programs of a bundle.
SOURCES = Path(__file__).parent / "runner"
# By program.
_SOURCE_FILES = {"blis_run": ("blis_run.cc", "json.cc"), "blis_rpc": ("blis_rpc.cc",)}
_LIBRARY = "model.so"
# Of inputs and outputs: what npy.h knows.
_DTYPES = {"bool", "float16", "float32", "float64"} | {
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
}
_MOST_DIMENSIONS = 8
# Names of a user's files in a message.
_SHOWN = 5


class Exported(Protocol):
    """What a bundle needs of a `CompiledModel`, which has the documentation."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    variants: Sequence[Variant]
    target: dict[str, Any]
    functions_of_python: list[str]
    needs_extras: bool
    export: Callable[..., None]
    explain: Callable[[], Report]


@dataclass(frozen=True)
class Bundle:
    """What was written.

    Parameters
    ----------
    folder : Path
        The bundle.
    programs : tuple of str
        The programs that were built; the others are to be built on the board.
    bytes : int
        Size of all its files.
    """

    folder: Path
    programs: tuple[str, ...]
    bytes: int


def require_bundle(folder: str | os.PathLike[str], target: dict[str, Any]) -> None:
    """Check that a bundle for `target` can be written to `folder`, before long work begins.

    Raises
    ------
    TargetError
        When there is no runtime for the target.
    OutputError
        When the folder cannot be written, or holds anything but an older bundle as it was written.
    """
    if is_darwin(target) or "linux" not in target["mtriple"]:
        raise TargetError(
            f"a bundle is for Linux boards, not for {target['mtriple']}",
            "write a library with -o, or an object with --standalone",
        )
    with fresh_folder(Path(folder), keep=False):
        pass


def write(model: Exported, folder: str | os.PathLike[str], cc: str | None = None) -> Bundle:
    """Write the bundle of a model, all or nothing.

    It holds the model's library, a manifest, TVM's runtime libraries, the sources of the programs
    `blis_run` and `blis_rpc`, and the programs where there is a compiler to build them. An older
    bundle is replaced, unless something was added to it or changed.

    Parameters
    ----------
    model : CompiledModel
        The model.
    folder : path
        The bundle.
    cc : str, optional
        Command of a compiler for the model's target.

    Raises
    ------
    TargetError, OutputError
        As of `require_bundle`, and when there is no space left.
    ToolchainError
        When there is nothing to link the library with, or TVM's runtime cannot be downloaded.
    UnsupportedOperatorError
        When `blis_run` could not run the model.
    """
    folder, target = Path(folder), model.target
    require_bundle(folder, target)
    _require_runs_without_python(model)
    with fresh_folder(folder) as fresh:
        model.export(fresh / _LIBRARY, cc)
        programs = write_programs(fresh, target, cc, model.needs_extras)
        fields = manifest.manifest(_LIBRARY, model.variants, target, model.explain())
        manifest.write(fresh, fields)
        size = bytes_below(fresh)
    return Bundle(folder, programs, size)


def _require_runs_without_python(model: Exported) -> None:
    hint = "write a library with -o, and run it with tvm-blislike or in Python"
    if functions := model.functions_of_python:
        unknown = [str(spec) for spec in model.outputs if None in spec.shape]
        outputs = f"; sizes known at run time only: {', '.join(unknown)}" if unknown else ""
        raise UnsupportedOperatorError(
            f"no bundle can run this model: TVM has {', '.join(functions)} in Python only{outputs}",
            hint,
        )
    for spec in (*model.inputs, *model.outputs):
        if spec.dtype not in _DTYPES:
            raise UnsupportedOperatorError(
                f"no bundle can run this model: {spec} cannot be a .npy file", hint
            )
        if len(spec.shape) > _MOST_DIMENSIONS:
            raise UnsupportedOperatorError(
                f"no bundle can run this model: {spec} has more than {_MOST_DIMENSIONS} dimensions",
                hint,
            )


def write_programs(
    folder: Path, target: dict[str, Any], cc: str | None = None, extras: bool = True
) -> tuple[str, ...]:
    """Write everything but the model: TVM's runtime, the programs' sources and the programs.

    Parameters
    ----------
    folder : Path
        Where to.
    target : dict
        Configuration of the `tvm.target.Target` of the machine they run on.
    cc : str, optional
        Command of a compiler for it.
    extras : bool
        Whether models that sort or draw random numbers are to run.

    Returns
    -------
    tuple of str
        The programs that were built.

    Raises
    ------
    OutputError, ToolchainError
        As of `write`.
    """
    _copy(runtime_wheel.runtime_libraries(machine_of(target), extras), folder / "lib")
    (folder / "lib" / "LICENSES").write_text(runtime_wheel.licenses(), encoding="utf-8")
    _copy_sources(folder / "src")
    return tuple(_build(folder, target, cc))


def _copy(files: list[Path], folder: Path) -> None:
    folder.mkdir()
    for file in files:
        shutil.copyfile(file, folder / file.name)


def _copy_sources(folder: Path) -> None:
    files = {path.relative_to(SOURCES): path for path in SOURCES.rglob("*") if path.is_file()}
    headers = {Path("include", name): path for name, path in wheels.headers().items()}
    for name, path in {**files, **headers}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)


def _build(folder: Path, target: dict[str, Any], cc: str | None) -> Iterator[str]:
    """Build the programs; without a compiler that can, warn: they can be built on the board."""
    for name in _SOURCE_FILES:
        try:
            build_program(folder, name, [*find_builder(target, cc), "-O2", "-s"], folder / name)
            yield name
        except ToolchainError as error:
            warnings.warn(
                f"{name} was not built ({error.message}): build it on the board, "
                "cmake -S src -B build && cmake --build build && cmake --install build",
                stacklevel=2,
            )


def build_program(folder: Path, name: str, compiler: Sequence[str], output: Path) -> None:
    """Build a program of a bundle.

    Parameters
    ----------
    folder : Path
        The bundle.
    name : str
        The program.
    compiler : sequence of str
        Command of a compiler, with options.
    output : Path
        The program's file.

    Raises
    ------
    ToolchainError
        When the compiler is missing, or fails.
    """
    sources, lib = folder / "src", folder / "lib"
    command = [*compiler, "-std=c++17", "-fno-exceptions", "-fno-rtti"]
    command += [f"-I{sources / 'include'}", *(str(sources / file) for file in _SOURCE_FILES[name])]
    # The model's library finds the runtime in the program: it must not be dropped.
    command += ["-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined"]
    command += [*map(str, sorted(lib.glob("*.so"))), "-Wl,-rpath,$ORIGIN/lib", "-o", str(output)]
    run_tool(command, f"build {name}")


@contextlib.contextmanager
def fresh_folder(folder: Path, keep: bool = True) -> Iterator[Path]:
    """Yield a new folder that takes the place of `folder` when the block ends well."""
    place = Path(os.path.realpath(folder))
    try:
        _require_replaceable(folder)
        with scratch_beside(place) as scratch:
            fresh = scratch / "new"
            fresh.mkdir()
            yield fresh
            if keep:
                # Compiling takes a while: a run may have written its outputs there.
                _require_replaceable(folder)
                if place.exists():
                    place.rename(scratch / "old")
                fresh.rename(place)
    except OSError as error:
        raise OutputError(*_explained(folder, error)) from error


def _require_replaceable(folder: Path) -> None:
    """Raise OutputError unless nothing of a user's is lost with what `folder` holds."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise OutputError(f"cannot write the bundle {folder}: it is a file")
    if not any(folder.iterdir()):
        return
    changes = manifest.not_as_written(folder)
    if changes is None:
        raise OutputError(
            f"cannot write the bundle {folder}: the folder holds other files",
            "name a new or empty folder, or an older bundle",
        )
    if changes:
        more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
        raise OutputError(
            f"cannot replace the bundle {folder}: it holds what was added or changed since it was "
            f"written: {', '.join(changes[:_SHOWN])}{more}",
            "move or remove that, or name another folder",
        )


def _explained(folder: Path, error: OSError) -> tuple[str, str | None]:
    message = f"cannot write the bundle {folder}: {error.strerror or error}"
    if error.errno == errno.ENOSPC:
        return message, space_hint(Path(os.path.realpath(folder)).parent)
    if not folder.parent.is_dir():
        return message, f"the directory {folder.parent} does not exist"
    return message, None
