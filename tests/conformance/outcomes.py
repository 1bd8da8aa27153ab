"""What the library makes of one conformance case."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

import tvm_blislike
from conformance.cases import Case
from tvm_blislike.errors import BlislikeError

PASSES, WRONG, REFUSED, INTERNAL = "passes", "wrong", "refused", "internal error"


@dataclass(frozen=True)
class Outcome:
    """How a case ended: a kind, and what there is to say about it."""

    kind: str
    detail: str = ""


def outcome(case: Case) -> Outcome:
    """Compile and run a case in this process, and compare."""
    try:
        compiled = tvm_blislike.compile(case.model, target="native")
        results = [compiled.run(inputs) for inputs, _ in case.data_sets]
    except BlislikeError as error:
        return Outcome(REFUSED, f"{type(error).__name__}: {error}")
    except Exception:
        return Outcome(INTERNAL, traceback.format_exc())
    if not results:
        return Outcome(WRONG, "compiled, though its inputs or outputs are no tensors of numbers")
    try:
        compare(case, results)
    except AssertionError as error:
        return Outcome(WRONG, str(error))
    left = _left_to_tvm(compiled) if _has_convolutions_in_single(case) else []
    return Outcome(WRONG, f"no template for {left}") if left else Outcome(PASSES)


def compare(case: Case, results: list[dict[str, np.ndarray]]) -> None:
    """Assert that names, data types, shapes and values are those of the case."""
    for result, (_, expected) in zip(results, case.data_sets, strict=True):
        assert list(result) == list(expected), f"outputs {list(result)}, not {list(expected)}"
        for name, array in expected.items():
            given = result[name]
            assert given.dtype == array.dtype, f"{name} is {given.dtype}, not {array.dtype}"
            assert given.shape == array.shape, f"{name} is {given.shape}, not {array.shape}"
            np.testing.assert_allclose(_wide(given), _wide(array), rtol=case.rtol, atol=case.atol)


def _wide(array: np.ndarray) -> np.ndarray:
    """Return types that NumPy itself lacks, bfloat16 and the like, as float32."""
    return array if array.dtype.kind in "biufc" else array.astype(np.float32)


def _has_convolutions_in_single(case: Case) -> bool:
    """Whether there are templates for its convolutions on any machine."""
    types = {value.type.tensor_type.elem_type for value in case.model.graph.input}
    return bool(case.operators & {"Conv", "ConvTranspose"}) and TensorProto.FLOAT in types


def _left_to_tvm(compiled: tvm_blislike.CompiledModel) -> list[str]:
    """Names of convolutions without a template; weights of run time are packed without one."""
    layers = compiled.explain().layers
    by_default = [layer.name for layer in layers if layer.implementation == "default rule"]
    return [name for name in by_default if "conv" in name and "_pack" not in name]
