"""The manifest of a bundle: what a board, or whoever looks at the folder, must know of a model."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_blislike.export import checksum, runtime_wheel
from tvm_blislike.export.link import machine_of

if TYPE_CHECKING:
    from tvm_blislike.frontend import TensorSpec
    from tvm_blislike.report import LayerReport, Report

FILE = "manifest.json"
# Raise it when blis_run could misread an older manifest.
FORMAT = 1
# What the wheels of TVM's runtime are linked with, by their platform tag (PEP 600).
_NEEDS = {"glibc": "2.28", "libraries": ["libstdc++.so.6", "libgcc_s.so.1", "libm.so.6"]}


def manifest(
    library: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    target: dict[str, Any],
    report: Report,
) -> dict[str, Any]:
    """Return the manifest, without the list of files.

    Parameters
    ----------
    library : str
        File name of the model's library.
    inputs, outputs : sequence of TensorSpec
        Of the model.
    target : dict
        Configuration of TVM's target.
    report : Report
        What was chosen for each layer.
    """
    version = importlib.metadata.version("tvm-blislike")
    return {
        "format": FORMAT,
        "library": library,
        "inputs": [asdict(spec) for spec in inputs],
        "outputs": [asdict(spec) for spec in outputs],
        "core": report.core,
        "threads": report.threads,
        "target": target,
        "versions": {"tvm-blislike": version, **runtime_wheel.versions()},
        "needs": {"architecture": machine_of(target), **_NEEDS},
        "layers": [_layer(layer) for layer in report.layers],
    }


def write(folder: Path, fields: dict[str, Any]) -> None:
    """Write the manifest of a folder, with the size and SHA-256 of every file that is there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = [_file(path, folder) for path in files]
    text = json.dumps({**fields, "files": listed}, indent=1)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def _layer(layer: LayerReport) -> dict[str, Any]:
    names = ("name", "kind", "workload", "implementation", "microkernel", "macs", "predicted_ms")
    return {name: getattr(layer, name) for name in names}


def _file(path: Path, folder: Path) -> dict[str, Any]:
    return {
        "path": path.relative_to(folder).as_posix(),
        "bytes": path.stat().st_size,
        "sha256": checksum.sha256(path),
    }
