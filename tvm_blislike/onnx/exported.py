"""From a program of `torch.export` to an ONNX model, by torch's own exporter.

TVM has an importer of such programs. Of 88 small modules it computed five wrongly in silence
(additions in place through a view, grouped queries, `BatchNorm1d`, nearest neighbours, dropout)
and refused 26, where this road refuses six and computes the others right. And all that is known
of ONNX graphs holds: the same model is equally fast from either side.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.errors import ToolchainError, UnsupportedOperatorError

if TYPE_CHECKING:
    import onnx
    import torch


def is_exported(model: Any) -> bool:
    """Whether a model is a `torch.export.ExportedProgram`; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.export.ExportedProgram)


def to_onnx(program: torch.export.ExportedProgram) -> onnx.ModelProto:
    """Return an exported program as an ONNX model, its parameters as initializers.

    Raises
    ------
    UnsupportedOperatorError
        When the exporter does not know an operator, or the program writes into what it is given.
    ToolchainError
        Without the package onnxscript, of which torch's exporter is made.
    """
    import torch

    try:
        with _silent():
            result = torch.onnx.export(program, dynamo=True, optimize=True, verbose=False)
    except ImportError as error:
        raise ToolchainError(
            f"torch exports to ONNX by packages that are missing: {error}",
            "pip install 'tvm-blislike[torch]'",
        ) from error
    except Exception as error:
        raise UnsupportedOperatorError(
            f"torch cannot export this program to ONNX: {_innermost(error)}"
        ) from error
    _require_pure(result.exported_program)
    return result.model_proto


def digest_of(program: torch.export.ExportedProgram) -> str | None:
    """Return a digest of all that the ONNX model of a program follows from.

    That are its operators with their arguments, the sizes of its inputs, its weights, and what
    exports it. None for a program with operators or constants of others, whose text does not say
    what they do.
    """
    import torch

    values = {**program.state_dict, **program.constants}
    graphs = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.graph.nodes]
    if not all(isinstance(value, torch.Tensor) for value in values.values()):
        return None
    if not all(map(_is_torchs, nodes)):
        return None
    digest = hashlib.sha256()
    texts = [*_versions(), str(program.graph_signature), str(program.range_constraints)]
    for text in (*texts, *map(_text, nodes)):
        digest.update(f"{text}\n".encode())
    for name, value in sorted(values.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _versions() -> list[str]:
    """Return those of what exports; without onnxscript it is the exporter that says so."""
    names = ("torch", "onnxscript")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return [f"{name} {importlib.metadata.version(name)}" for name in names]
    return []


def _is_torchs(node: torch.fx.Node) -> bool:
    """Whether a node is no operator of a library of somebody else."""
    return getattr(node.target, "namespace", "aten") in ("aten", "prims", "higher_order")


def _text(node: torch.fx.Node) -> str:
    value = node.meta.get("val") if node.op == "placeholder" else None
    return f"{node.format_node()} {getattr(value, 'dtype', '')} {getattr(value, 'shape', value)}"


def _require_pure(program: torch.export.ExportedProgram) -> None:
    """Raise UnsupportedOperatorError when running a program changes its buffers or inputs."""
    signature = program.graph_signature
    changed = {**signature.buffers_to_mutate, **signature.user_inputs_to_mutate}
    if changed:
        raise UnsupportedOperatorError(
            f"the program writes into {', '.join(changed.values())}",
            "export the model after model.eval(), without operators in place on its inputs",
        )


def _innermost(error: BaseException) -> str:
    """Return the first line of the error that led to others: it names the operator."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep the exporter from telling what it does without, such as torchvision."""
    log = logging.getLogger("torch.onnx")
    # Under the lock: both are of the process.
    with compiler_lock(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level = log.level
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)
