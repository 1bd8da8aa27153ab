"""Every public ONNX case of the suite either agrees or is listed here with its reason."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

import tvm_blislike
from conformance import plain_tvm
from conformance.cases import OPERATORS, Case, collect
from tvm_blislike.errors import InputError, UnsupportedOperatorError

RUN_TIME_SHAPE = "TypeError: Reshape requires the input new shape to be Shape"
RUN_TIME_PADS = "ValueError: Dynamic pads are not supported yet"
RUN_TIME_AXES = "AttributeError: 'Var' object has no attribute 'value'"
SECOND_OUTPUT = "AssertionError: Missing outputs during conversion. Expected 2 but Got 1 in MaxPool"
RUN_TIME_AXIS = "ValueError: CumSum with non-constant axis input is not supported yet"
SHORTER_SHAPE = "ValueError: broadcast_to expects the input shape to have the number of ndim"
NO_CELU = "OpNotImplemented: The following operators are not supported for frontend ONNX: Celu"
NO_SWISH = "OpNotImplemented: The following operators are not supported for frontend ONNX: Swish"
# Before opset 7 a slope of shape (channels,) belonged to axis 1; TVM aligns it with the last axis.
OLD_PRELU = "AssertionError"

# What TVM's importer cannot take, with what it says. The cases with a shape, pads or axes that
# come at run time pass as "..._constant", the form in which exporters write them.
IMPORTER_CANNOT = {
    "test_PReLU_1d_multiparam": OLD_PRELU,
    "test_PReLU_2d_multiparam": OLD_PRELU,
    "test_PReLU_3d_multiparam": OLD_PRELU,
    "test_celu": NO_CELU,
    "test_celu_bfloat16": NO_CELU,
    "test_celu_float16": NO_CELU,
    "test_constant_pad": RUN_TIME_AXES,
    "test_constant_pad_axes": RUN_TIME_AXES,
    "test_constant_pad_negative_axes": RUN_TIME_AXES,
    "test_cumsum_1d": RUN_TIME_AXIS,
    "test_cumsum_1d_exclusive": RUN_TIME_AXIS,
    "test_cumsum_1d_int32_exclusive": RUN_TIME_AXIS,
    "test_cumsum_1d_reverse": RUN_TIME_AXIS,
    "test_cumsum_1d_reverse_exclusive": RUN_TIME_AXIS,
    "test_cumsum_2d_axis_0": RUN_TIME_AXIS,
    "test_cumsum_2d_axis_1": RUN_TIME_AXIS,
    "test_cumsum_2d_int32": RUN_TIME_AXIS,
    "test_cumsum_2d_negative_axis": RUN_TIME_AXIS,
    "test_edge_pad": RUN_TIME_PADS,
    "test_expand_shape_model1": SHORTER_SHAPE,
    "test_expand_shape_model2": SHORTER_SHAPE,
    "test_reflect_pad": RUN_TIME_PADS,
    "test_wrap_pad": RUN_TIME_PADS,
    "test_maxpool_with_argmax_2d_precomputed_pads": SECOND_OUTPUT,
    "test_maxpool_with_argmax_2d_precomputed_strides": SECOND_OUTPUT,
    "test_reshape_allowzero_reordered": RUN_TIME_SHAPE,
    "test_reshape_extended_dims": RUN_TIME_SHAPE,
    "test_reshape_negative_dim": RUN_TIME_SHAPE,
    "test_reshape_negative_extended_dims": RUN_TIME_SHAPE,
    "test_reshape_one_dim": RUN_TIME_SHAPE,
    "test_reshape_reduced_dims": RUN_TIME_SHAPE,
    "test_reshape_reordered_all_dims": RUN_TIME_SHAPE,
    "test_reshape_reordered_last_dims": RUN_TIME_SHAPE,
    "test_reshape_zero_and_negative_dim": RUN_TIME_SHAPE,
    "test_reshape_zero_dim": RUN_TIME_SHAPE,
    "test_swiglu_alpha_expanded": NO_SWISH,
    "test_swiglu_expanded": NO_SWISH,
    "test_swiglu_float16_expanded": NO_SWISH,
    "test_swish": NO_SWISH,
}

# What TVM imports without a word and then computes otherwise: the library must refuse it.
IMPORTER_MISREADS = {
    "test_batchnorm_epsilon_training_mode": "training_mode is ignored",
    "test_batchnorm_epsilon_training_mode_constant": "training_mode is ignored",
    "test_batchnorm_example_training_mode": "training_mode is ignored",
    "test_batchnorm_example_training_mode_constant": "training_mode is ignored",
    "test_convtranspose_output_shape": "output_shape is ignored",
    "test_convtranspose_output_shape_constant": "output_shape is ignored",
    "test_expand_dim_changed": "a size of 1 in a shape of run time is taken as it is",
    "test_expand_shape_model3": "a size of 1 in a shape of run time is taken as it is",
    "test_expand_shape_model4": "a size of 1 in a shape of run time is taken as it is",
    "test_isinf_negative": "detect_positive is ignored",
    "test_isinf_positive": "detect_negative is ignored",
    "test_roialign_mode_max": "the mode is ignored",
    "test_spacetodepth_crd_mode_example": "the mode is ignored",
}

# What the library itself refuses.
LIBRARY_REFUSES = {
    "test_expand_dim_unchanged": "a shape of run time, which may hold a size of 1",
    "test_reshape_allowzero_reordered_constant": "tensors without elements",
}

# What the importer cannot take, but the library writes otherwise before it does.
WRITTEN_OTHERWISE = {
    "test_maxpool_with_argmax_2d_precomputed_pads",
    "test_maxpool_with_argmax_2d_precomputed_strides",
}

# Relative tolerance that TVM needs where the case's own is narrower, and why.
# Mish and softplus: log(1 + exp(x)) loses the digits of exp(x) where it is far below 1.
WIDER = {"test_mish": 2e-3, "test_mish_expanded": 2e-3}

LISTED = IMPORTER_CANNOT | IMPORTER_MISREADS | LIBRARY_REFUSES
REFUSED = {name: why for name, why in LISTED.items() if name not in WRITTEN_OTHERWISE}
CASES = collect()


def check(case: Case, results: list[dict[str, np.ndarray]], rtol: float) -> None:
    """Assert that names, data types, shapes and values are those of the case."""
    for result, (_, expected) in zip(results, case.data_sets, strict=True):
        assert list(result) == list(expected)
        for name, array in expected.items():
            assert result[name].dtype == array.dtype
            assert result[name].shape == array.shape
            np.testing.assert_allclose(result[name], array, rtol=rtol, atol=case.atol)


def run_plain(case: Case) -> list[dict[str, np.ndarray]]:
    return [plain_tvm.run(case.model, inputs) for inputs, _ in case.data_sets]


@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_agrees(name: str) -> None:
    case = CASES[name]
    compiled = tvm_blislike.compile(case.model, target="native")
    results = [compiled.run(inputs) for inputs, _ in case.data_sets]
    check(case, results, WIDER.get(name, case.rtol))
    if case.operators & {"Conv", "ConvTranspose"}:
        assert "conv2d" in {layer.kind for layer in compiled.explain().layers}
        assert not _left_to_tvm(compiled)


def _left_to_tvm(compiled: tvm_blislike.CompiledModel) -> list[str]:
    """Names of convolutions without a template; weights of run time are packed without one."""
    layers = compiled.explain().layers
    by_default = [layer.name for layer in layers if layer.implementation == "default rule"]
    return [name for name in by_default if "conv" in name and "_pack" not in name]


@pytest.mark.parametrize("name", IMPORTER_CANNOT)
def test_importer_still_cannot(name: str) -> None:
    with pytest.raises(Exception) as raised:
        run_plain(CASES[name])
    assert f"{type(raised.value).__name__}: {raised.value}".startswith(IMPORTER_CANNOT[name])


@pytest.mark.parametrize("name", IMPORTER_MISREADS)
def test_importer_still_misreads(name: str) -> None:
    case = CASES[name]
    results = run_plain(case)
    with pytest.raises(AssertionError):
        check(case, results, case.rtol)


@pytest.mark.parametrize("name", WIDER)
def test_plain_tvm_still_needs_the_wider_tolerance(name: str) -> None:
    case = CASES[name]
    results = run_plain(case)
    check(case, results, WIDER[name])
    with pytest.raises(AssertionError):
        check(case, results, case.rtol)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_an_error_that_names_the_operator_or_input(name: str) -> None:
    case = CASES[name]
    with pytest.raises((UnsupportedOperatorError, InputError)) as raised:
        tvm_blislike.compile(case.model, target="native")
    (inputs, _), *_ = case.data_sets
    names = case.operators if raised.type is UnsupportedOperatorError else inputs
    assert any(re.search(rf"\b{re.escape(word)}\b", str(raised.value)) for word in names)


def test_lists_name_existing_cases_once() -> None:
    lists = [set(IMPORTER_CANNOT), set(IMPORTER_MISREADS), set(LIBRARY_REFUSES), set(WIDER)]
    listed = set().union(*lists)
    assert listed <= set(CASES)
    assert len(listed) == sum(map(len, lists))


def test_every_operator_has_a_case_that_runs() -> None:
    running = [case for name, case in CASES.items() if name not in REFUSED]
    covered = frozenset().union(*(case.operators for case in running))
    # The importer does not know these two at all.
    assert covered == OPERATORS - {"Celu", "Swish"}


def test_no_chosen_case_is_without_data() -> None:
    for case in CASES.values():
        onnx.checker.check_model(case.model)
        assert case.data_sets
        assert all(outputs for _, outputs in case.data_sets)
