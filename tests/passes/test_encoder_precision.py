"""Encoders in products of 16 bits, as the pass leaves them, computed by NumPy: what is in fp32,
what products add back, and how far the whole is off beside what is predicted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from attention_harness import rounded
from tvm import relax

from tvm_blislike.choose import precision_choice
from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core
from tvm_blislike.model.marks import ATTENTION, DEFAULT_RULE
from tvm_blislike.model.types import BFLOAT_DOT, Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload
from tvm_blislike.passes import lower_precision
from tvm_blislike.passes.attention.functions import attention_of
from tvm_blislike.passes.attention.to_kernels import Attentions
from tvm_blislike.passes.constants import TIDY
from tvm_blislike.passes.lower_precision import LowerPrecision
from tvm_blislike.passes.mean_rows import with_common_rows
from tvm_blislike.passes.whole_error import predicted
from tvm_blislike.tvm_seams import (
    bindings,
    constant,
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
)

ZEN4 = Core.named("zen4")
ROWS, HIDDEN, HEADS = 128, 384, 6


class Encoder:
    """Builds encoders of random weights, their attention operator by operator."""

    def __init__(self, layers: int, seed: int = 1) -> None:
        self.rng, self.builder = np.random.default_rng(seed), relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((1, ROWS, HIDDEN), "float32"))
        with self.builder.function("main", [x]):
            with self.builder.dataflow():
                stream = self.normalized(x)
                for _ in range(layers):
                    stream = self.layer(stream)
                result = self.builder.emit_output(stream)
            self.builder.emit_func_output(result)
        self.module = self.builder.finalize()

    def weights(self, *shape: int, size: float = 0.02) -> relax.Expr:
        values = size * self.rng.standard_normal(shape, dtype=np.float32)
        return constant(values, "float32")

    def normalized(self, data: relax.Expr) -> relax.Var:
        scale = constant(self.rng.uniform(0.5, 1.5, HIDDEN).astype("f4"), "float32")
        return self.builder.emit(
            relax.op.nn.layer_norm(data, scale, self.weights(HIDDEN), axes=[-1])
        )

    def dense(self, data: relax.Expr, inputs: int, outputs: int) -> relax.Var:
        weights = self.weights(inputs, outputs, size=inputs**-0.5)
        product = self.builder.emit(relax.op.matmul(data, weights))
        return self.builder.emit(relax.op.add(product, self.weights(outputs)))

    def heads(self, data: relax.Expr, order: list[int]) -> relax.Var:
        split = self.builder.emit(relax.op.reshape(data, (1, ROWS, HEADS, HIDDEN // HEADS)))
        return self.builder.emit(relax.op.permute_dims(split, order))

    def attention(self, stream: relax.Expr) -> relax.Var:
        emit = self.builder.emit
        q, k, v = (self.dense(stream, HIDDEN, HIDDEN) for _ in range(3))
        scores = emit(relax.op.matmul(self.heads(q, [0, 2, 1, 3]), self.heads(k, [0, 2, 3, 1])))
        root = relax.const(np.float32((HIDDEN // HEADS) ** 0.5))
        weights = emit(relax.op.nn.softmax(emit(relax.op.divide(scores, root)), -1))
        mixed = emit(relax.op.matmul(weights, self.heads(v, [0, 2, 1, 3])))
        return emit(
            relax.op.reshape(emit(relax.op.permute_dims(mixed, [0, 2, 1, 3])), (1, ROWS, HIDDEN))
        )

    def layer(self, stream: relax.Expr) -> relax.Var:
        emit = self.builder.emit
        attended = self.dense(self.attention(stream), HIDDEN, HIDDEN)
        stream = self.normalized(emit(relax.op.add(attended, stream)))
        inner = emit(relax.op.nn.relu(self.dense(stream, HIDDEN, 4 * HIDDEN)))
        down = self.dense(inner, 4 * HIDDEN, HIDDEN)
        return self.normalized(emit(relax.op.add(down, stream)))


def lowered(mod: tvm.IRModule, precision: str = "bf16") -> tvm.IRModule:
    """Return the module behind the pass, of products whose sums take as long as on Zen 4."""
    return LowerPrecision(Strategy(ZEN4, 1, constraints=Constraints(precision=precision)))(mod)


def values_of(mod: tvm.IRModule) -> dict[relax.Var, relax.Expr]:
    """Return the values of the variables of a module's function."""
    return {binding.var: binding.value for binding in bindings(mod["main"])}


def layer_norm(data: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Of the last axis."""
    centered = data - data.mean(-1, keepdims=True)
    variance = np.square(centered).mean(-1, keepdims=True)
    return centered / np.sqrt(variance + 1e-5) * scale + shift


def softmax(data: np.ndarray) -> np.ndarray:
    """Of the last axis."""
    powers = np.exp(data - data.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


OPERATORS: dict[str, Callable[..., np.ndarray]] = {
    "relax.matmul": lambda call, a, b: a.astype("f4") @ b.astype("f4"),
    "relax.add": lambda call, a, b: a + b,
    "relax.multiply": lambda call, a, b: a * b,
    "relax.divide": lambda call, a, b: a / b,
    "relax.nn.relu": lambda call, a: np.maximum(a, 0),
    "relax.nn.softmax": lambda call, a: softmax(a),
    "relax.nn.layer_norm": lambda call, a, scale, shift: layer_norm(a, scale, shift),
    "relax.astype": lambda call, a: a.astype(str(call.attrs.dtype)),
    "relax.permute_dims": lambda call, a: a.transpose([int(axis) for axis in call.attrs.axes]),
    "relax.reshape": lambda call, a, _: a.reshape([int(size) for size in call.ty.shape]),
}


def computed(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    """Return the result of a function, operator by operator; kernels of its own are TVM's."""
    known: dict[relax.Var, np.ndarray] = {mod["main"].params[0]: x}

    def operand(expr: relax.Expr) -> np.ndarray | None:
        if is_constant(expr):
            return constant_array(expr)
        return known.get(expr)

    for binding in bindings(mod["main"]):
        value = binding.value
        if isinstance(value, relax.Var):
            known[binding.var] = known[value]
        elif (attention := attention_of(mod, value)) is not None:
            operands = [known[arg] for arg in value.args[1].fields]
            known[binding.var] = rounded(attention, operands, static_shape(value))
        elif op_name(value) == "relax.call_tir":
            # The sum of every fourth row, see `test_sums_of_rows_are_those_of_some_rows`.
            (data,) = (known[arg] for arg in value.args[1].fields)
            known[binding.var] = data[:, ::4].astype("f4").sum(1, keepdims=True)
        else:
            known[binding.var] = OPERATORS[op_name(value)](value, *map(operand, value.args))
    return known[mod["main"].body.body]


def error(mod: tvm.IRModule, exact: tvm.IRModule) -> float:
    """Return the relative root mean square error of a module on random data."""
    x = np.random.default_rng(5).standard_normal((1, ROWS, HIDDEN), dtype=np.float32)
    ours, reference = computed(mod, x), computed(exact, x)
    return float(np.linalg.norm(ours - reference) / np.linalg.norm(reference))


def test_products_read_16_bits_and_residual_additions_fp32() -> None:
    values = values_of(lowered(Encoder(1).module))
    products = [value for value in values.values() if op_name(value) == "relax.matmul"]
    narrow = [value for value in products if dtype_name(value.args[0]) == "bfloat16"]
    assert len(narrow) == 6
    # The others are attention's own.
    assert len(products) == 8
    sums = [value for value in values.values() if op_name(value) == "relax.add"]
    streams = [arg for value in sums for arg in value.args if isinstance(arg, relax.Var)]
    residual = [arg for arg in streams if op_name(values[arg]) == "relax.nn.layer_norm"]
    assert len(residual) == 2
    # What nobody adds is rounded behind what makes it, what layers share once.
    casts = [value for value in values.values() if op_name(value) == "relax.astype"]
    assert [op_name(values[cast.args[0]]) for cast in casts] == [
        "relax.nn.layer_norm",
        "relax.reshape",
        "relax.nn.layer_norm",
        "relax.nn.relu",
    ]


def test_where_fp32_beside_it_costs_time_additions_take_what_is_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mod = Encoder(2).module
    kept = error(lowered(mod), mod)
    monkeypatch.setattr(precision_choice, "TERMS", 1e-4)
    rounded = lowered(mod)
    values = values_of(rounded)
    sums = [value for value in values.values() if op_name(value) == "relax.add"]
    terms = [arg for value in sums for arg in value.args if isinstance(arg, relax.Var)]
    widened = [arg for arg in terms if op_name(values[arg]) == "relax.astype"]
    assert len(widened) == 4
    assert {dtype_name(values[arg].args[0]) for arg in widened} == {"bfloat16"}
    assert error(rounded, mod) > 1.1 * kept


def test_rows_behind_activations_and_of_attention_have_much_in_common() -> None:
    mod = Encoder(1).module
    order = [v for v, value in values_of(mod).items() if op_name(value) == "relax.matmul"]
    found = with_common_rows(mod, mod["main"])
    # Query, key, value, scores, mixed, output, up, down.
    assert [order.index(var) for var in order if var in found] == [2, 5, 7]


def predictions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that gets what the pass predicts."""
    found: list[float] = []
    monkeypatch.setattr(
        lower_precision, "predicted", lambda *args: found.append(predicted(*args)) or found[-1]
    )
    return found


@pytest.mark.parametrize("layers", [3, 8])
def test_errors_of_encoders_are_predicted(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_precision, "WHOLE_ERRORS", {"bfloat16": np.inf})
    found = predictions(monkeypatch)
    mod = Encoder(layers).module
    measured = error(lowered(mod), mod)
    assert 0.8 < found[0] / measured < 1.25


def test_products_add_back_what_weights_lost_where_the_whole_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mod = Encoder(8).module
    monkeypatch.setattr(lower_precision, "WHOLE_ERRORS", {"bfloat16": 1.0})
    plain = lowered(mod)
    monkeypatch.setattr(lower_precision, "WHOLE_ERRORS", {"bfloat16": 1e-3})
    corrected = lowered(mod)
    lost = [
        value
        for value in values_of(corrected).values()
        if op_name(value) == "relax.matmul" and dtype_name(value.args[1]) == "int8"
    ]
    assert len(lost) == 3 * 8
    assert not any(op_name(value) == "relax.call_tir" for value in values_of(plain).values())
    assert error(corrected, mod) < 0.75 * error(plain, mod)


def test_nothing_is_added_back_to_few_rows_or_to_weights_that_lost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = Types.stored("int8")
    strategy = Strategy(ZEN4, 1)
    for rows, expected in ((1, False), (128, True)):
        layer = GemmWorkload(rows, HIDDEN, 4 * HIDDEN, types=BFLOAT_DOT)
        assert precision_choice.adds_back(strategy, layer, stored) == expected
    image = Conv2dWorkload(1, 64, 56, 56, 64, 1, 1, types=BFLOAT_DOT)
    assert not precision_choice.adds_back(strategy, image, stored)
    monkeypatch.setattr(lower_precision, "WHOLE_ERRORS", {"bfloat16": 1e-9})
    monkeypatch.setattr(
        Encoder,
        "weights",
        lambda self, *shape, **_: constant(self.rng.integers(-4, 5, shape).astype("f4"), "float32"),
    )
    values = values_of(lowered(Encoder(1).module))
    assert not any(op_name(value) == "relax.call_tir" for value in values.values())


def test_errors_add_up_and_branches_count_as_a_part() -> None:
    mod = Encoder(1).module
    values = values_of(mod)
    products = [v for v, value in values.items() if op_name(value) == "relax.matmul"]
    up, down = products[-2:]
    assert predicted(mod, mod["main"], {}) == 0
    assert predicted(mod, mod["main"], {up: 3e-3, down: 4e-3}) == pytest.approx(0.2**0.5 * 5e-3)
    # Behind the first addition, whose other term is exact.
    assert predicted(mod, mod["main"], {products[5]: 1e-3}) == pytest.approx(0.2**0.5 * 1e-3)


def of_kernels(layers: int) -> tvm.IRModule:
    """Return an encoder whose attentions are kernels."""
    return Attentions(ZEN4, 1)(TIDY(Encoder(layers).module))


def factors(mod: tvm.IRModule) -> list[str]:
    """Return what attentions round the factors of their products to."""
    found = (attention_of(mod, value) for value in values_of(mod).values())
    return [each.factors for each in found if each is not None]


@pytest.mark.parametrize("precision", ["bf16", "fast"])
def test_attentions_multiply_16_bits(precision: str) -> None:
    mod = of_kernels(2)
    assert factors(mod) == 2 * ["float32"]
    narrow = lowered(mod, precision)
    assert factors(narrow) == 2 * ["bfloat16"]
    # Equal ones are one kernel, and the old one is gone.
    kernels = [f for _, f in narrow.functions_items() if ATTENTION in (f.attrs or {})]
    assert len(kernels) == 1
    assert "error 2.4e-03" in str(kernels[0].attrs[DEFAULT_RULE])
    calls = [v for v in values_of(narrow).values() if attention_of(narrow, v) is not None]
    tensors = [arg for call in calls for arg in call.args[1].fields]
    assert {dtype_name(tensor) for tensor in tensors} == {"float32"}


@pytest.mark.parametrize(
    ("core", "limits"),
    [
        ("zen4", Constraints(precision="fp16")),
        ("zen4", Constraints(precision="bf16", max_error=1e-3)),
        ("zen3", Constraints(precision="bf16")),
    ],
)
def test_attentions_stay_in_fp32_without_such_products(core: str, limits: Constraints) -> None:
    strategy = Strategy(Core.named(core), 1, constraints=limits)
    mod = Attentions(strategy.core, 1)(TIDY(Encoder(1).module))
    assert factors(LowerPrecision(strategy)(mod)) == ["float32"]


@pytest.mark.parametrize("layers", [3, 8])
def test_errors_of_attentions_are_predicted(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_precision, "WHOLE_ERRORS", {"bfloat16": np.inf})
    found = predictions(monkeypatch)
    mod = of_kernels(layers)
    narrow = lowered(mod)
    assert factors(narrow) == layers * ["bfloat16"]
    assert 0.8 < found[-1] / error(narrow, mod) < 1.25


def test_attentions_stay_in_fp32_where_the_whole_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    found = predictions(monkeypatch)
    mod = of_kernels(8)
    monkeypatch.setattr(lower_precision, "WHOLE_ERRORS", {"bfloat16": 1e-9})
    without = lowered(mod)
    assert factors(without) == 8 * ["float32"]
    # The last prediction is that of all products in 16 bits, and of what they add back.
    monkeypatch.setattr(lower_precision, "WHOLE_ERRORS", {"bfloat16": 1.01 * found[-1]})
    within = lowered(mod)
    assert factors(within) == 8 * ["bfloat16"]
    assert max(error(without, mod), error(within, mod)) < 1.25 * found[-1]
