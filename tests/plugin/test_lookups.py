"""Chains of elementwise operators between 8-bit tensors: tables of what the floats are."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import tvm
from guard import GuardedArrays
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_layers import Layers, assert_within_a_step, call_types
from rewrites import computed

import tvm_blislike
from tvm_blislike.hardware import Core
from tvm_blislike.passes import lookups
from tvm_blislike.runtime.runnable import why_not_runnable

Chain = Callable[[Layers, str], str]


def number(layers: Layers, value: float) -> str:
    return layers.constant(np.float32(value))


def gelu(layers: Layers, x: str) -> str:
    """As PyTorch exports it: x / sqrt(2), erf, + 1, * x, / 2."""
    erf = layers.put("Erf", layers.put("Div", x, number(layers, 1.4142135)))
    product = layers.put("Mul", x, layers.put("Add", erf, number(layers, 1)))
    return layers.put("Mul", product, number(layers, 0.5))


def gelu_of_tanh(layers: Layers, x: str) -> str:
    cube = layers.put("Mul", layers.put("Pow", x, number(layers, 3)), number(layers, 0.044715))
    inner = layers.put("Mul", layers.put("Add", x, cube), number(layers, 0.7978846))
    outer = layers.put("Add", layers.put("Tanh", inner), number(layers, 1))
    return layers.put("Mul", layers.put("Mul", x, outer), number(layers, 0.5))


def in_steps(layers: Layers, x: str) -> str:
    """x * sigmoid(x) as quantizers leave it, with steps in between."""
    return layers.put("Mul", x, layers.steps(layers.put("Sigmoid", x), 1 / 255, 0))


def hard_swish(layers: Layers, x: str) -> str:
    bounds = (number(layers, 0), number(layers, 6))
    clipped = layers.put("Clip", layers.put("Add", x, number(layers, 3)), *bounds)
    return layers.put("Mul", x, layers.put("Div", clipped, number(layers, 6)))


def one(operator: str, **attributes: object) -> Chain:
    return lambda layers, x: layers.put(operator, x, **attributes)


# One scale, one shift and bounds: as good in the kernel of a layer.
LINEAR: dict[str, Chain] = {
    "relu": one("Relu"),
    "hard sigmoid": one("HardSigmoid", alpha=1 / 6),
}
CHAINS: dict[str, Chain] = {
    **LINEAR,
    "sigmoid": one("Sigmoid"),
    "tanh": one("Tanh"),
    "exp": one("Exp"),
    "hard swish": one("HardSwish"),
    "hard swish of parts": hard_swish,
    "leaky": one("LeakyRelu", alpha=0.1),
    "elu": one("Elu"),
    "softplus": one("Softplus"),
    "silu": lambda layers, x: layers.put("Mul", x, layers.put("Sigmoid", x)),
    "silu in steps": in_steps,
    "gelu": gelu,
    "gelu of tanh": gelu_of_tanh,
    "square": lambda layers, x: layers.put("Mul", x, x),
    "distance": lambda layers, x: layers.put("Abs", layers.put("Sub", number(layers, 1), x)),
}


def all_values(chain: Chain, source: tuple, result: tuple, shape: tuple[int, ...]) -> Layers:
    """Return a model of every value of 8 bits, whose last node quantizes."""
    layers = Layers(1, *shape)
    scale, zero, dtype = source
    limits = np.iinfo(dtype)
    values = np.arange(limits.min, limits.max + 1)
    values = np.resize(values, shape)
    layers.x = ((values - zero) * np.float32(scale)).astype("float32")
    layers.quantized(chain(layers, layers.steps("x", *source)), *result)
    return layers


def expected(layers: Layers) -> tuple[np.ndarray, np.ndarray]:
    """Return the simulation's integers, and how far its floats are from the middle of two steps."""
    last = layers.nodes[-1]
    reference = onnx.reference.ReferenceEvaluator(layers.model(last.input[0]))
    scale, zero = (layers.constants[name] for name in last.input[1:])
    limits = np.iinfo(zero.dtype)
    with np.errstate(all="ignore"):
        # ONNX's own quantization takes infinity for the least integer.
        (floats,) = reference.run(None, {"x": layers.x})
        steps = np.nan_to_num(floats / scale, posinf=1e9, neginf=-1e9).astype("float64")
    wanted = np.clip(np.rint(steps) + int(zero), limits.min, limits.max).astype(zero.dtype)
    return wanted, np.abs(np.abs(steps - np.floor(steps)) - 0.5)


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(CHAINS)),
    scale=st.sampled_from([0.01, 0.05, 0.4]),
    dtypes=st.tuples(st.sampled_from(["uint8", "int8"]), st.sampled_from(["uint8", "int8"])),
    zeros=st.tuples(st.integers(0, 127), st.integers(0, 127)),
    result_scale=st.sampled_from([0.002, 0.02, 0.5]),
    shape=st.sampled_from([(256,), (1, 8, 8, 5), (2, 300)]),
)
def test_tables_are_the_floats_at_all_values(
    name: str,
    scale: float,
    dtypes: tuple[str, str],
    zeros: tuple[int, int],
    result_scale: float,
    shape: tuple[int, ...],
) -> None:
    source, result = zip((scale, result_scale), zeros, dtypes, strict=True)
    layers = all_values(CHAINS[name], source, result, shape)
    model = layers.model(layers.nodes[-1].output[0])
    wanted, from_ties = expected(layers)
    found = computed(model, layers.x)
    assert found.dtype == wanted.dtype
    differs = found != wanted
    assert not differs[from_ties > 1e-3].any()
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1


@pytest.mark.parametrize("name", sorted(CHAINS.keys() - LINEAR.keys()))
def test_nothing_is_computed_in_floats(name: str) -> None:
    layers = all_values(CHAINS[name], (0.05, 9, "uint8"), (0.02, 30, "uint8"), (256,))
    calls = call_types(layers.model(layers.nodes[-1].output[0]))
    assert [call for call in calls if call[0] == "take"] == [("take", "uint8")]
    # What quantizes x is.
    behind = calls[[name for name, _ in calls].index("take") :]
    assert not [call for call in behind if call[1] == "float32"]


@pytest.mark.parametrize("name", sorted(LINEAR))
def test_arithmetic_stays_in_its_kernels(name: str) -> None:
    layers = all_values(LINEAR[name], (0.05, 9, "uint8"), (0.02, 30, "uint8"), (256,))
    assert "take" not in dict(call_types(layers.model(layers.nodes[-1].output[0])))


def test_functions_of_two_tensors_are_no_tables() -> None:
    layers = Layers(2, 4, 100)
    one_of_two, other = layers.steps("x", 0.02, 9), layers.steps("x", 0.03, 8)
    value = layers.put("Mul", one_of_two, layers.put("Sigmoid", other))
    quantized, _ = layers.quantized(value, 0.02, 50, "uint8")
    model = layers.model(quantized)
    assert_within_a_step(model, layers.x)
    assert "take" not in dict(call_types(model))


def test_no_number_has_no_step() -> None:
    layers = Layers(2, 4, 100)
    value = layers.put("Sqrt", layers.steps("x", 0.02, 128))
    model = layers.model(layers.quantized(value, 0.02, 50, "uint8")[0])
    assert "take" not in dict(call_types(model))


def test_lookups_between_convolutions_have_their_layout() -> None:
    layers = Layers(5, 1, 16, 14, 14)
    value = layers.steps("x", 0.03, 100)
    for _ in range(2):
        kernel = layers.weights((16, 16, 3, 3), "int8", 0, 0)
        value = layers.steps(layers.put("Conv", value, kernel, pads=[1] * 4), 0.1, 90)
        value = layers.steps(in_steps(layers, value), 0.05, 10)
    pooled = layers.put("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    model = layers.model(layers.quantized(pooled, 0.05, 10, "uint8")[0])
    compiled = tvm_blislike.compile(model, threads=1)
    names = [layer.name for layer in compiled.explain().layers]
    assert sum("lookup" in name for name in names) == 2
    assert sum("transpose" in name for name in names) <= 2
    assert_within_a_step(model, layers.x)


def runnable(name: str) -> Core:
    core = Core.named(name)
    if reason := why_not_runnable(core.target_config(1)):
        pytest.skip(reason)
    return core


COUNTS = [1, 3, 63, 64, 65, 200, 4096, 8 * 4096 - 1, 8 * 4096, 8 * 4096 + 1, 9 * 4096 + 77]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
@pytest.mark.parametrize("name", ["zen4", "skylake-avx512", "x86-64-v3"])
def test_kernels_are_exact_between_forbidden_pages(name: str, dtype: str) -> None:
    core = runnable(name)
    rng = np.random.default_rng(7)
    limits = np.iinfo("int8" if dtype == "int8" else "uint8")
    functions = {
        f"of_{count}": lookups.kernel((count,), dtype, core).with_attr(
            {"global_symbol": f"of_{count}", "tirx.is_scheduled": True}
        )
        for count in COUNTS
    }
    library = tvm.compile(tvm.IRModule(functions), core.target_config(2))
    results = rng.integers(limits.min, limits.max, 256, endpoint=True).astype(dtype)
    table = GuardedArrays().at_end((256,), dtype)
    table[:] = np.roll(results, 128) if dtype == "int8" else results
    for count in COUNTS:
        guarded = GuardedArrays()
        data, result = guarded.at_end((count,), dtype), guarded.at_end((count,), dtype)
        data[:] = rng.integers(limits.min, limits.max, count, endpoint=True)
        library[f"of_{count}"](*(tvm.runtime.from_dlpack(a) for a in (table, data, result)))
        guarded.check()
        np.testing.assert_array_equal(result, results[data.astype(int) - limits.min])


@pytest.mark.parametrize(
    ("name", "instruction", "most"), [("zen4", "vperm[it]2b", 2), ("cortex-a76", r"\btb[lx]\b", 4)]
)
def test_a_vector_of_bytes_takes_a_few_instructions(name: str, instruction: str, most: int) -> None:
    core = Core.named(name)
    func = lookups.kernel((1, 64, 9, 16), "uint8", core).with_attr("tirx.is_scheduled", True)
    compiled = tvm.compile(tvm.IRModule({"main": func}), core.target_config(1))
    found = re.findall(instruction, compiled.mod.inspect_source("asm"))
    assert len(found) >= most
    assert len(found) % most == 0
