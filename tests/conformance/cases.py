"""Collects the conformance cases that the installed `onnx` package brings along."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

# Operators whose operands after the first are usually weights or settings known at compile time.
WITH_PARAMETERS = frozenset(
    """
    Conv ConvTranspose Gemm MatMul BatchNormalization PRelu
    Clip CumSum Dropout Expand GridSample NonMaxSuppression OneHot Pad Range Reshape Resize Slice
    Split Squeeze Tile TopK Trilu Unsqueeze
    DequantizeLinear QuantizeLinear
    CenterCropPad Col2Im CumProd DFT ReverseSequence STFT
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare
    """.split()
)

DataSet = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]  # inputs and outputs by name


@dataclass(frozen=True)
class Case:
    """One model with inputs, the outputs that belong to them, and the tolerance.

    `data_sets` is empty where an input or output is no tensor of numbers: a sequence, an optional,
    strings.
    """

    name: str
    model: onnx.ModelProto
    data_sets: tuple[DataSet, ...]
    rtol: float
    atol: float

    @property
    def operators(self) -> frozenset[str]:
        """The operators of the model, without constants."""
        return frozenset(node.op_type for node in self.model.graph.node) - {"Constant"}


@cache
def collect() -> dict[str, Case]:
    """Return the cases by name, in the order of the names.

    The node cases pass weights and settings at run time. Cases of operators that usually have them
    as constants come a second time as "NAME_constant", with every input but the first a constant.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reference functions overflow on purpose
        tests = load_model_tests(kind="node")
    stored = [
        test
        for kind in ("pytorch-converted", "pytorch-operator", "simple")
        for test in load_model_tests(kind=kind)
    ]
    cases = [*map(_node_case, tests), *map(_stored_case, stored)]
    cases += list(_with_constants(cases))
    by_name = {case.name: case for case in cases}
    assert len(by_name) == len(cases), "two cases of one name"
    return {name: by_name[name] for name in sorted(by_name)}


def _runtime_inputs(model: onnx.ModelProto) -> list[str]:
    weights = {weight.name for weight in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in weights]


def _data_sets(
    model: onnx.ModelProto, data: Iterable[tuple[Sequence[Any], Sequence[Any]]]
) -> tuple[DataSet, ...]:
    return tuple(
        (
            dict(zip(_runtime_inputs(model), map(_array, inputs), strict=True)),
            dict(zip([v.name for v in model.graph.output], map(_array, outputs), strict=True)),
        )
        for inputs, outputs in data
        if all(_is_numeric(value) for value in (*inputs, *outputs))
    )


def _is_numeric(value: Any) -> bool:
    if isinstance(value, onnx.TensorProto):
        return value.data_type != onnx.TensorProto.STRING
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OSU"


def _array(value: Any) -> np.ndarray:
    is_proto = isinstance(value, onnx.TensorProto)
    return numpy_helper.to_array(value) if is_proto else np.asarray(value)


def _node_case(test: TestCase) -> Case:
    return Case(test.name, test.model, _data_sets(test.model, test.data_sets), test.rtol, test.atol)


def _stored_case(test: TestCase) -> Case:
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    case = Case(test.name, model, (), test.rtol, test.atol)
    values = [*model.graph.input, *model.graph.output]
    if any(not value.type.HasField("tensor_type") for value in values):
        return case
    folders = sorted(folder.glob("test_data_set_*"))
    data = [(_tensors(f, "input"), _tensors(f, "output")) for f in folders]
    return replace(case, data_sets=_data_sets(model, data))


def _tensors(folder: Path, prefix: str) -> list[onnx.TensorProto]:
    paths = [folder / f"{prefix}_{index}.pb" for index in range(len(list(folder.glob("*.pb"))))]
    return [onnx.TensorProto.FromString(path.read_bytes()) for path in paths if path.exists()]


def _with_constants(cases: Iterable[Case]) -> Iterable[Case]:
    for case in cases:
        inputs = _runtime_inputs(case.model)
        if case.operators & WITH_PARAMETERS and len(inputs) > 1 and len(case.data_sets) == 1:
            yield _frozen(case, inputs[0])


def _frozen(case: Case, first: str) -> Case:
    """Return the case with every input but `first` made a constant of the model."""
    ((inputs, outputs),) = case.data_sets
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = max(model.ir_version, 4)  # the first where constants are no graph inputs
    constants = [
        numpy_helper.from_array(array, name) for name, array in inputs.items() if name != first
    ]
    model.graph.initializer.extend(constants)
    kept = [value for value in model.graph.input if value.name == first]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    data = ({first: inputs[first]}, outputs)
    return replace(case, name=f"{case.name}_constant", model=model, data_sets=(data,))
