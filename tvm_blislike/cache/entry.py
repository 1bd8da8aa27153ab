"""What is kept of a compiled model, and how it becomes one again.

Four files: the kernels as a library, the virtual machine's code, the weights, and a description of
all. The weights' checksums stand in the description, the others end with theirs. An entry that is
damaged is as good as none.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_blislike.cache import weights as weight_file
from tvm_blislike.errors import ModelError
from tvm_blislike.export import checksum
from tvm_blislike.export.link import find_compiler, link
from tvm_blislike.runtime.library import About
from tvm_blislike.runtime.runnable import remember
from tvm_blislike.side_by_side import code_threads, side_by_side

if TYPE_CHECKING:
    from tvm.runtime import Executable, Module

    from tvm_blislike.tvm_seams.loaded import Weights

_KERNELS, _MACHINE, _ABOUT = "kernels.so", "machine.bin", "about.json"
_WEIGHTS = "weights.bin"


@dataclass(frozen=True)
class Told:
    """What an entry says beside its code.

    Parameters
    ----------
    about : About
        Inputs, outputs, target and report.
    model : str
        The model's file; "" for a model without one.
    beside : dict of str to str
        Files with data of the model, relative to its folder, and their checksums.
    warnings : list of str
        Of which the compiler warned.
    extensions : list of str
        Of the processor that its code may use, see `runtime.runnable`.
    weights : dict
        How weights lie in their file, see `weights.write`, which knows it.
    """

    about: About
    model: str
    beside: dict[str, str]
    warnings: list[str]
    extensions: list[str]
    weights: dict[str, Any] = dataclasses.field(default_factory=dict)


def write(executable: Executable | Module, weights: Weights, told: Told, entry: Path) -> None:
    """Write an entry's files into its folder.

    Parameters
    ----------
    executable : Executable
        What runs.
    weights : mapping of str to sequence of Tensor
        What its functions take behind the model's inputs.
    told : Told
        The entry is to say, its weights aside.
    entry : Path
        The folder.

    Raises
    ------
    ToolchainError
        When there is nothing to link the kernels with.
    ValueError
        When not all of its code was generated.
    OSError, OutputError
        When a file cannot be written.
    """
    from tvm_blislike.tvm_seams import executables

    compiler = find_compiler(told.about.target)
    parts = executables.code_parts(executable)
    objects = [str(entry / f"kernels{i}.o") for i in range(len(parts))]
    pairs = list(zip(parts, objects, strict=True))
    side_by_side(lambda pair: pair[0].write_to_file(pair[1]), pairs, code_threads())
    link(compiler, str(entry / _KERNELS), objects)
    for path in objects:
        os.unlink(path)
    executables.write_machine(executable, entry / _MACHINE)
    text = {
        "model": told.model,
        "beside": told.beside,
        "warnings": told.warnings,
        "extensions": told.extensions,
        "weights": weight_file.write(weights, entry / _WEIGHTS),
    }
    (entry / _ABOUT).write_text(json.dumps({**text, "about": told.about.to_json()}) + "\n")
    for name in (_KERNELS, _MACHINE, _ABOUT):
        checksum.append(entry / name)


def describe(entry: Path) -> Told:
    """Return what an entry says of itself.

    Raises
    ------
    ModelError, OSError, ValueError, KeyError
        When it is damaged.
    """
    checksum.verify(entry / _ABOUT)
    fields: dict[str, Any] = json.loads((entry / _ABOUT).read_text().splitlines()[0])
    return Told(**{**fields, "about": About.from_json(fields["about"])})


def read(entry: Path, model: Path | None) -> tuple[Module, Weights, Told]:
    """Return what to run of an entry, its weights, and what it says, with its warnings given again.

    Parameters
    ----------
    entry : Path
        Its folder.
    model : Path or None
        The model's file, if it is in one: data beside it has to be what was compiled.

    Raises
    ------
    ModelError, OSError, ValueError, KeyError
        When it is damaged, or of other data.
    """
    from tvm_blislike.tvm_seams import loaded

    told = current(entry, model)
    for name in (_KERNELS, _MACHINE):
        checksum.verify(entry / name)
    remember(told.about.target, told.extensions)
    weights = weight_file.read(entry / _WEIGHTS, told.weights)
    return loaded.read_machine(entry / _MACHINE, kernels_of(entry)), weights, told


def current(entry: Path, model: Path | None) -> Told:
    """Return what an entry says, as `read` does, without opening its code.

    Raises
    ------
    ModelError, OSError, ValueError, KeyError
        When it is damaged, or of other data.
    """
    told = describe(entry)
    for name, digest in told.beside.items():
        if model is None or checksum.sha256(model.parent / name) != digest:
            raise ModelError(f"{name} has changed")
    for text in told.warnings:
        warnings.warn(text, stacklevel=4)
    return told


def kernels_of(entry: Path) -> Module:
    """Load the library of an entry's kernels."""
    from tvm_blislike.tvm_seams import loaded

    return loaded.open_library(entry / _KERNELS)


def data_beside(model: str | os.PathLike[str]) -> dict[str, str]:
    """Return the files that hold a model's data, relative to its folder, and their checksums.

    Raises
    ------
    OSError
        When one cannot be read.
    """
    path = Path(model)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        # What the format calls the place of such data.
        if content.find(b"location") < 0:
            return {}
    import onnx

    places = set(_places(onnx.load(path, load_external_data=False)))
    return {place: checksum.sha256(path.parent / place) for place in sorted(places)}


def _places(message: Any) -> Iterator[str]:
    """Yield the file of every tensor of a message of ONNX that has its data in one."""
    import onnx

    if isinstance(message, onnx.TensorProto):
        if message.data_location == onnx.TensorProto.EXTERNAL:
            yield from (each.value for each in message.external_data if each.key == "location")
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in (value,) if hasattr(value, "ListFields") else value:
                yield from _places(part)
