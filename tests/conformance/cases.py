"""Collects the conformance cases that the installed `onnx` package brings along."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

# A case belongs to this suite when all its nodes are among these.
OPERATORS = frozenset(
    """
    Conv ConvTranspose Gemm MatMul
    MaxPool AveragePool LpPool GlobalMaxPool GlobalAveragePool
    Relu LeakyRelu PRelu ThresholdedRelu Clip Sigmoid HardSigmoid HardSwish Swish Mish Tanh Shrink
    Elu Selu Celu Gelu Softplus Softsign Softmax LogSoftmax Hardmax
    Concat Pad BatchNormalization LRN Add Sum Mul Flatten Reshape Transpose
    And Or Xor Not Where CumSum Range Expand Shape Size Cosh Sinh IsInf RoiAlign SpaceToDepth
    """.split()
)

# Operators whose operands after the first are usually weights or settings known at compile time.
WITH_PARAMETERS = frozenset(
    "Conv ConvTranspose Gemm MatMul BatchNormalization PRelu Clip Pad Reshape CumSum Expand".split()
)

DataSet = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]  # inputs and outputs by name


@dataclass(frozen=True)
class Case:
    """One model with inputs, the outputs that belong to them, and the tolerance."""

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
    """Return the cases of this suite by name, in the order of the names.

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
    chosen = [case for case in cases if case.operators and case.operators <= OPERATORS]
    chosen += list(_with_constants(chosen))
    names = sorted(case.name for case in chosen)
    assert len(names) == len(set(names)), "two cases of one name"
    by_name = {case.name: case for case in chosen}
    return {name: by_name[name] for name in names}


def _runtime_inputs(model: onnx.ModelProto) -> list[str]:
    weights = {weight.name for weight in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in weights]


def _named(
    model: onnx.ModelProto, inputs: Iterable[np.ndarray], outputs: Iterable[np.ndarray]
) -> DataSet:
    names = [value.name for value in model.graph.output]
    return (
        dict(zip(_runtime_inputs(model), map(np.asarray, inputs), strict=True)),
        dict(zip(names, map(np.asarray, outputs), strict=True)),
    )


def _node_case(test: TestCase) -> Case:
    operators = {node.op_type for node in test.model.graph.node}
    # Cases of other operators may hold sequences or strings: their data are not looked at.
    chosen = test.data_sets if operators <= OPERATORS else ()
    data_sets = tuple(_named(test.model, *data) for data in chosen)
    return Case(test.name, test.model, data_sets, test.rtol, test.atol)


def _tensors(folder: Path, prefix: str) -> list[np.ndarray]:
    paths = [folder / f"{prefix}_{index}.pb" for index in range(len(list(folder.glob("*.pb"))))]
    protos = [onnx.TensorProto.FromString(path.read_bytes()) for path in paths if path.exists()]
    return [numpy_helper.to_array(proto) for proto in protos]


def _stored_case(test: TestCase) -> Case:
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    case = Case(test.name, model, (), test.rtol, test.atol)
    if not case.operators <= OPERATORS:
        return case
    folders = sorted(folder.glob("test_data_set_*"))
    data = [_named(model, _tensors(f, "input"), _tensors(f, "output")) for f in folders]
    return replace(case, data_sets=tuple(data))


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
