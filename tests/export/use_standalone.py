"""A C program around a standalone model: arrays in one file, results in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tvm_blislike import standalone
from tvm_blislike.export.link import find_builder, run_tool

_PROGRAM = Path(__file__).with_suffix(".c")


def build(
    model: standalone.StandaloneModel,
    folder: Path,
    options: Sequence[str] = (),
    as_package: bool = False,
) -> Path:
    """Write the code of a model named "model" and a program that calls it; return the program.

    `options` are of the C compiler, for the model's own C, too.
    """
    compiler = find_builder(model.core.target_config())
    own = " ".join([*compiler, *options]) if options else None
    if as_package:
        header = standalone.package(model, folder / "package", own).header
        code = header.parents[1] / "lib" / "libmodel.a"
    else:
        code = folder / "net.o"
        header = standalone.write(model, code, own)
        header = header.rename(header.with_name("model.h"))
    program = folder / "use"
    command = [*compiler, *options, "-O1", "-Wall", "-Wextra", "-Werror", f"-I{header.parent}"]
    command += [str(_PROGRAM), str(code), "-lm", "-pthread"]
    run_tool([*command, "-o", str(program)], "build use.c")
    return program


def results(
    model: standalone.StandaloneModel,
    inputs: Sequence[np.ndarray],
    folder: Path,
    run: Callable[..., object],
    program: Path | None = None,
    arguments: Sequence[object] = (),
) -> Mapping[str, np.ndarray]:
    """Run the program of `build` by `run(program, *arguments)`; return the outputs by name."""
    program = program or build(model, folder)
    (folder / "in").write_bytes(b"".join(array.tobytes() for array in inputs))
    run(program, folder / "in", folder / "out", *arguments)
    content, found = (folder / "out").read_bytes(), {}
    for spec in model.outputs:
        part, content = content[: _bytes(spec)], content[_bytes(spec) :]
        found[spec.name] = np.frombuffer(part, spec.dtype).reshape(spec.shape)
    assert not content
    return found


def _bytes(spec: object) -> int:
    return int(np.prod(spec.shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
