"""The manifest of a bundle: what a board, or whoever looks at the folder, must know of a model."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tvm_blislike.export import checksum, runtime_wheel
from tvm_blislike.export.link import machine_of

if TYPE_CHECKING:
    from tvm_blislike.model.report import LayerReport, Report
    from tvm_blislike.model.variant import Variant

FILE = "manifest.json"
# Raise it when blis_run could misread an older manifest.
FORMAT = 1
# The SHA-256 of all other fields: tells a manifest that somebody edited.
_SEAL = "seal"
# What the wheels of TVM's runtime are linked with, by their platform tag (PEP 600).
_NEEDS = {"glibc": "2.28", "libraries": ["libstdc++.so.6", "libgcc_s.so.1", "libm.so.6"]}


def manifest(
    library: str, variants: Sequence[Variant], target: dict[str, Any], report: Report
) -> dict[str, Any]:
    """Return the manifest, without the list of files.

    Parameters
    ----------
    library : str
        File name of the model's library.
    variants : sequence of Variant
        The sizes that the model takes, the largest last.
    target : dict
        Configuration of TVM's target.
    report : Report
        What was chosen for each layer.
    """
    return {
        **of_no_model(report.core, report.threads, target),
        "library": library,
        "inputs": [asdict(spec) for spec in variants[-1].inputs],
        "outputs": [asdict(spec) for spec in variants[-1].outputs],
        "variants": [asdict(variant) for variant in variants[:-1]],
        "layers": [_layer(layer) for layer in report.layers],
    }


def of_no_model(core: str, threads: int, target: dict[str, Any]) -> dict[str, Any]:
    """Return what a manifest tells of the board alone, without the list of files.

    Parameters
    ----------
    core : str
        Name of the board's core.
    threads : int
        Threads of what runs there.
    target : dict
        Configuration of TVM's target.
    """
    version = importlib.metadata.version("tvm-blislike")
    return {
        "format": FORMAT,
        "core": core,
        "threads": threads,
        "target": target,
        "versions": {"tvm-blislike": version, **runtime_wheel.versions()},
        "needs": {"architecture": machine_of(target), **_NEEDS},
    }


def write(folder: Path, fields: dict[str, Any]) -> None:
    """Write the manifest of a folder, with the size and SHA-256 of every file that is there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = [_file(path, folder) for path in files]
    fields = {**fields, "files": listed}
    text = json.dumps({**fields, _SEAL: _digest(fields)}, indent=1)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def not_as_written(folder: Path) -> list[str] | None:
    """Return what a user added to a bundle or changed in it, None for a folder that is no bundle.

    Files that are gone do not count, nor do times and permissions. A folder that was added is
    named once, without what is in it.

    Raises
    ------
    OSError
        When a file cannot be read.
    """
    fields = _read(folder / FILE)
    if fields is None:
        return None
    # Bundles of 0.3 and before have none.
    sealed = fields.pop(_SEAL, None) in (None, _digest(fields))
    listed = {entry["path"]: entry for entry in fields["files"]}
    folders = {str(above) for path in listed for above in PurePosixPath(path).parents}
    found = [] if sealed else [FILE]
    for place, inner, files in os.walk(folder):
        here = PurePosixPath(Path(place).relative_to(folder).as_posix())
        for name in (*inner, *files):
            path = str(here / name)
            if path != FILE and not _is_listed(folder, path, listed, folders):
                found.append(path)
        inner[:] = [name for name in inner if str(here / name) not in found]
    return sorted(found)


def _read(path: Path) -> dict[str, Any] | None:
    """Return the fields of a manifest that this library wrote, None for anything else."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        ours = fields["format"] == FORMAT and "tvm-blislike" in fields["versions"]
        named = all(
            isinstance(entry["path"], str) and "bytes" in entry for entry in fields["files"]
        )
        return fields if ours and named else None
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_listed(folder: Path, path: str, listed: dict[str, Any], folders: set[str]) -> bool:
    file, entry = folder / path, listed.get(path)
    if file.is_symlink() or not file.is_file():
        return path in folders and not file.is_symlink() and file.is_dir()
    # A large file is read only when the size is right.
    right_size = entry is not None and entry["bytes"] == file.stat().st_size
    return right_size and entry == _file(file, folder)


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _layer(layer: LayerReport) -> dict[str, Any]:
    names = ("name", "kind", "workload", "implementation", "microkernel", "macs", "predicted_ms")
    return {name: getattr(layer, name) for name in names}


def _file(path: Path, folder: Path) -> dict[str, Any]:
    return {
        "path": path.relative_to(folder).as_posix(),
        "bytes": path.stat().st_size,
        "sha256": checksum.sha256(path),
    }
