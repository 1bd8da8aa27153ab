"""Samples to calibrate on, from files of NumPy: each is one array for every input of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tvm_blislike.errors import InputError, suggest
from tvm_blislike.model.tensor_spec import TensorSpec
from tvm_blislike.onnx.inputs import random_inputs

Sample = Mapping[str, np.ndarray]


def random_samples(specs: Sequence[TensorSpec], count: int) -> list[Sample]:
    """Return seeded random samples, of values as `random_inputs` has them."""
    return [random_inputs(specs, seed) for seed in range(count)]


def read_samples(path: Path, specs: Sequence[TensorSpec]) -> list[Sample]:
    """Return the samples of a file, or of all files of a folder in the order of their names.

    Parameters
    ----------
    path : Path
        A .npz file with an array for each input by its name; a .npy file for a model of one input;
        or a folder of such files. An array is one sample, or several along its first axis.
    specs : sequence of TensorSpec
        The inputs of the model.

    Raises
    ------
    InputError
        When there are none, a file cannot be read, or what it holds does not fit the model.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    files = (
        sorted(f for f in path.iterdir() if f.suffix in (".npy", ".npz"))
        if path.is_dir()
        else [path]
    )
    samples = [sample for file in files for sample in _samples_of(file, specs)]
    if not samples:
        raise InputError(f"{path} has no samples", "put .npy or .npz files into it")
    return samples


def _samples_of(file: Path, specs: Sequence[TensorSpec]) -> list[Sample]:
    arrays = _arrays(file, specs)
    names = [spec.name for spec in specs]
    for name in arrays:
        if name not in names:
            raise InputError(f"{file}: the model has no input named {name!r}", suggest(name, names))
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InputError(
            f"{file} has no array for the input {', '.join(missing)}",
            f"write them with numpy.savez(FILE, {', '.join(f'{name}=...' for name in names)})",
        )
    parts = {spec.name: _parts(file, spec, arrays[spec.name]) for spec in specs}
    counts = {name: len(found) for name, found in parts.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise InputError(f"{file} has unlike numbers of samples: {listed}")
    return [dict(zip(names, each, strict=True)) for each in zip(*parts.values(), strict=True)]


def _arrays(file: Path, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """Return the arrays of a file by the inputs that they are for."""
    try:
        content = np.load(file, allow_pickle=False)
        arrays = {} if isinstance(content, np.ndarray) else dict(content)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error
    except Exception as error:  # of NumPy, its parser of headers and that of zip files
        raise InputError(
            f"{file} is no .npy or .npz file", "write it with numpy.save or numpy.savez"
        ) from error
    if not isinstance(content, np.ndarray):
        return arrays
    if len(specs) != 1:
        names = ", ".join(spec.name for spec in specs)
        raise InputError(
            f"{file} is one array, but the model has the inputs {names}",
            "write .npz files with numpy.savez, one array per input",
        )
    return {specs[0].name: content}


def _parts(file: Path, spec: TensorSpec, array: np.ndarray) -> list[np.ndarray]:
    """Return the samples of an array: it is one, a row of them, or some batches behind another."""
    if str(array.dtype) != spec.dtype:
        raise InputError(
            f"{file}: {spec.name} has data type {array.dtype}; the model takes {spec.dtype}",
            f"convert the array, for example with .astype({spec.dtype!r})",
        )
    if array.shape == spec.shape:
        return [array]
    if array.shape[1:] == spec.shape:
        return list(array)
    batch = spec.shape[0] if spec.shape else 0
    if batch and array.shape[1:] == spec.shape[1:] and array.shape[0] % batch == 0:
        return np.split(array, array.shape[0] // batch) if array.size else []
    given = TensorSpec(spec.name, array.shape, spec.dtype)
    raise InputError(
        f"{file}: {spec.name} has shape {given.sizes}; the model takes {spec.sizes}",
        "pass arrays of that shape, or of several samples along the first axis; where the model "
        f"leaves sizes open, --shape {spec.name}=... sets them",
    )
