"""LSTM, GRU and RNN agree with a plain cell, and with ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from effort import examples
from hypothesis import given
from recurrent_layers import Case, cases, in_steps_first

import tvm_blislike
from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx.frontend import load

BOTH = "bidirectional"


def close(found: list[np.ndarray], expected: list[np.ndarray], tolerance: float = 3e-6) -> None:
    assert [a.shape for a in found] == [a.shape for a in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@examples(14)
@given(case=cases())
def test_random_layers(case: Case) -> None:
    close(case.computed(), case.reference())


@examples(60)
@given(case=cases())
def test_the_plain_cell_is_that_of_onnx_runtime(case: Case) -> None:
    case = in_steps_first(case)
    close(case.reference(), case.runtime(), 1e-5)


ALL = ("Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid")
OTHERS = ("Elu", "Softsign", "Softplus", "Sigmoid", "Tanh", "hardsigmoid")


@pytest.mark.parametrize("names", [ALL, OTHERS], ids=["piecewise", "smooth"])
def test_functions_and_their_numbers(names: tuple[str, ...]) -> None:
    numbers = {"activation_alpha": [0.3, 0.7, 0.2, 0.4, 0.1], "activation_beta": [0.45, 0.2, 0.6]}
    case = Case(
        direction=BOTH, given=("bias", "h", "c"), settings={"activations": names, **numbers}
    )
    known = [name[0].upper() + name[1:] for name in names]
    named = [{"hardsigmoid": "HardSigmoid"}.get(n, k) for n, k in zip(names, known, strict=True)]
    plain = replace(case, settings={**case.settings, "activations": named})
    close(case.computed(), plain.reference())
    close(case.computed(), case.runtime())


@pytest.mark.parametrize("opset", [7, 14])
def test_older_versions(opset: int) -> None:
    case = Case("GRU", opset=opset, given=("bias", "lengths", "h"))
    close(case.computed(), case.runtime())


def test_halves_are_computed_in_floats() -> None:
    case = Case(dtype="float16", given=("bias", "lengths", "h", "c", "peepholes"))
    found = case.computed()
    assert {a.dtype for a in found} == {np.dtype("float16")}
    close(found, case.reference(), 1e-3)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_divide_units(kind: str, threads: int) -> None:
    case = Case(kind, 7, 3, 4, 260, BOTH if threads == 3 else "forward", ("bias", "lengths"))
    compiled = tvm_blislike.compile(case.model(), threads=threads)
    kinds = [layer.kind for layer in compiled.explain().layers]
    assert any(f"units in {threads} parts" in kind for kind in kinds), kinds
    close([*compiled.run(case.inputs_of_run()).values()], case.reference(), 1e-4)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (Case(dtype="float64"), "its data is float64"),
        (Case(settings={"activations": ["Tanh"]}), "it has 1 activations, not 3"),
        (Case("RNN", settings={"activations": ["Mish"]}), "its activation 'Mish'"),
        (Case("RNN", settings={"activations": ["Affine"]}), "its activation 'affine' has no"),
        (Case(settings={"hidden_size": 9}), "its hidden_size is not the 8"),
    ],
)
def test_refusals_by_name(case: Case, says: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=says):
        load(case.model())


def test_operands_of_other_sizes_are_refused() -> None:
    model = Case(given=("bias", "h"), constant=False).model()
    (state,) = (value for value in model.graph.input if value.name == "h")
    state.type.tensor_type.shape.dim[2].dim_value = 9
    with pytest.raises(UnsupportedOperatorError, match=r"'h' should have the shape \(1, 2, 8\)"):
        load(model)


def test_unread_results_are_left_out() -> None:
    model = Case().model()
    node: onnx.NodeProto = model.graph.node[0]
    node.output[0] = node.output[2] = ""
    del model.graph.output[2], model.graph.output[0]
    found = tvm_blislike.compile(model).run(Case().inputs_of_run())
    close([found["y_h"]], Case().reference()[1:2])
